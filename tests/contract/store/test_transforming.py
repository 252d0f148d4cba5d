"""A transform acts exactly once on every record, on each way into a store."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from auditord.actions import Note
from auditord.duplicates import Duplicates
from auditord.errors import StoreUnavailable
from auditord.ingest import Ingest, StoreSink
from auditord.spool import Spool, retry
from auditord.store import Provenance
from auditord.store.opening import open_store
from auditord.store.reading import StoredRecords
from auditord.store.store import RecordStore
from auditord.tasks.demands import RecordEditor
from auditord.testing import make_record
from auditord_hookspecs import Batch, InvalidRecord, Quarantined, Record, RecordQuery
from tests.quarantined_entries import read_quarantine

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 3, 1, tzinfo=UTC)
BY = Provenance(NOW)
LOCAL = ("local",)


def pseudonymised(record: Record) -> Record:
    """A transform that shows how often it has acted; it refuses whom it does not know."""
    names = [f"<{name}>" for name in (record.meta or {}).get("user_id", ())]
    if "<mallory>" in names:
        raise InvalidRecord("nobody knows mallory")
    return msgspec.structs.replace(record, meta={**(record.meta or {}), "user_id": tuple(names)})


async def users(store: RecordStore) -> dict[str, tuple[str, ...]]:
    async with StoredRecords(store).stream(RecordQuery()) as stream:
        return {record.record_id: (record.meta or {})["user_id"] async for record in stream}


async def drain(spool: Spool, store: RecordStore) -> None:
    while claimed := await spool.claim("local", 10):
        assert await StoreSink(store, lambda: NOW).deliver([one.entry for one in claimed]) == {}
        await spool.settle("local", [one.entry_id for one in claimed], {})


@asynccontextmanager
async def opened(store_url: str, folder: Path) -> AsyncGenerator[tuple[RecordStore, Spool], None]:
    async with (
        open_store(store_url, counted_keys=()) as store,
        Spool.opened(folder, lambda: NOW, transform=pseudonymised) as spool,
    ):
        yield store, spool


class UnavailableStore:
    """A store that cannot be asked."""

    def __getattr__(self, name: str) -> object:
        async def fail(*_args: object, **_named: object) -> None:
            raise StoreUnavailable("away")

        return fail


async def test_each_way_in(store_url: str, tmp_path: Path) -> None:
    async with (
        open_store(store_url, counted_keys=()) as store,
        Spool.opened(tmp_path, lambda: NOW, transform=pseudonymised) as spool,
    ):
        near = Ingest(store, spool, LOCAL, transform=pseudonymised)
        far = Ingest(UnavailableStore(), spool, LOCAL, transform=pseudonymised)  # type: ignore[arg-type]  # it has every method
        for name, ingest, atomic in (("a", near, True), ("b", near, False), ("c", far, True), ("d", far, False)):
            records = [make_record(f"{name}{number}", user_id="alice") for number in range(2)]
            await ingest.accept(records, None, BY, atomic=atomic, duplicates=Duplicates.SAME_RUN)
        await spool.enqueue("slurm", Batch([make_record("e", user_id="alice")]), LOCAL)
        await drain(spool, store)
        assert set((await users(store)).values()) == {("<alice>",)}
        assert len(await users(store)) == 9


async def test_what_was_in_quarantine(store_url: str, tmp_path: Path) -> None:
    async with (
        open_store(store_url, counted_keys=()) as store,
        Spool.opened(tmp_path, lambda: NOW, transform=pseudonymised) as spool,
    ):
        await spool.enqueue(
            "slurm",
            Batch([make_record("a", user_id="alice")], quarantined=[Quarantined("b", {"id": "b"}, "no column")]),
            LOCAL,
        )
        [claimed] = await spool.claim("local", 10)
        await spool.settle("local", [], {claimed.entry_id: "refused"})
        body = msgspec.json.encode(make_record("c", user_id="alice"))
        await spool.keep_refused_body(body, "refused", BY, "POST /record")
        for entry in await read_quarantine(spool):
            await retry(spool, entry, lambda raw: make_record(raw["id"], user_id="alice"), LOCAL)
        await drain(spool, store)
        assert await users(store) == dict.fromkeys("abc", ("<alice>",))


async def test_a_correction_transforms_what_it_changes_and_nothing_else(store_url: str) -> None:
    async with open_store(store_url, counted_keys=()) as store:
        await store.add(make_record("a", user_id="<alice>"), BY, Duplicates.SAME_RUN)
        editor, note = RecordEditor(store, lambda: NOW, pseudonymised), Note("a mistake", "root")
        other_site = make_record("a", user_id="<alice>", site_id="B")
        assert (await editor.correct(other_site, None, note)).outcome == "done"
        assert await users(store) == {"a": ("<alice>",)}
        other_user = make_record("a", user_id="bob", site_id="B")
        assert (await editor.correct(other_user, None, note)).outcome == "done"
        assert await users(store) == {"a": ("<bob>",)}


async def test_a_record_that_the_transform_refuses_is_refused(store_url: str, tmp_path: Path) -> None:
    records = [make_record("a", user_id="alice"), make_record("b", user_id="mallory")]
    async with (
        open_store(store_url, counted_keys=()) as store,
        Spool.opened(tmp_path, lambda: NOW, transform=pseudonymised) as spool,
    ):
        ingest = Ingest(store, spool, LOCAL, transform=pseudonymised)
        with pytest.raises(InvalidRecord, match="mallory"):
            await ingest.accept(records, None, BY, atomic=True, duplicates=Duplicates.SAME_RUN)
        assert await users(store) == {}
        _, refused = await ingest.accept(records, None, BY, atomic=False, duplicates=Duplicates.SAME_RUN)
        assert isinstance(refused, InvalidRecord)
        assert await users(store) == {"a": ("<alice>",)}
