"""The way of a collector's record into the store: encoded once, and read once."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from auditord.ingest import StoreSink
from auditord.spool import Spool, encoding
from auditord.store import Duplicates, Provenance, rows
from auditord.store.sqlite import SqliteRecordStore
from auditord.store.store import RecordStore
from auditord_hookspecs import Batch, Component, Entry, Insert, Produced, Record, Score
from auditord_hookspecs.entries import Encoded
from auditord_hookspecs.wire import decode_record, encode_record, encode_with

pytestmark = pytest.mark.anyio

NOON: Final = datetime(2026, 6, 1, 12, tzinfo=UTC)
SCORED: Final = Component("Cores", 8, (Score("HEPscore23", 12.5),))
PLAIN: Final = Record("job-1", NOON, (SCORED,), NOON + timedelta(hours=1), {"site_id": ("A",), "path": ("a\\b",)})


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncGenerator[Spool, None]:
    async with Spool.opened(tmp_path, lambda: NOON) as opened:
        yield opened


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[RecordStore, None]:
    opened = await SqliteRecordStore.open(tmp_path / "records.db", outbox=True)
    yield opened
    await opened.close()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The number of times that a record was encoded and decoded on its way."""
    counts = {"encoded": 0, "decoded": 0}

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            counts[name] += 1
            return function(*values)

        return call

    monkeypatch.setattr(encoding, "encode_record", counting("encoded", encode_record))
    monkeypatch.setattr(rows, "encode_with", counting("encoded", encode_with))
    monkeypatch.setattr(encoding, "decode_record", counting("decoded", decode_record))
    return counts


async def entries(spool: Spool) -> list[Entry]:
    return [queued.entry for queued in await spool.claim("local", 10)]


async def test_a_record_is_encoded_once_and_read_once(
    spool: Spool, store: RecordStore, counted: dict[str, int]
) -> None:
    await spool.enqueue("slurm", Batch([PLAIN]), ["local"])
    assert await StoreSink(store, lambda: NOON).deliver(await entries(spool)) == {}
    assert counted == {"encoded": 1, "decoded": 1}
    assert await store.get("job-1") == encode_record(PLAIN)


async def test_a_record_under_its_alternate_id_has_that_id_in_its_text(spool: Spool, store: RecordStore) -> None:
    await store.add(
        msgspec.structs.replace(PLAIN, start_time=NOON - timedelta(days=1)), Provenance(NOON), Duplicates.SAME_RUN
    )
    await spool.enqueue("slurm", Batch([Produced(PLAIN, "job-1-b")]), ["local"])
    assert await StoreSink(store, lambda: NOON).deliver(await entries(spool)) == {}
    assert await store.get("job-1-b") == encode_record(msgspec.structs.replace(PLAIN, record_id="job-1-b"))


async def test_what_a_client_wrote_is_forwarded_as_it_is_stored(
    spool: Spool, store: RecordStore, counted: dict[str, int]
) -> None:
    await store.add(PLAIN, Provenance(NOON, "client"), Duplicates.SAME_RUN)
    await spool.take_over([(each.number, each.entry) for each in (await store.outbox(10)).entries], ["far"])
    assert counted == {"encoded": 1, "decoded": 0}
    (queued,) = await spool.claim("far", 10)
    assert queued.entry == Insert(PLAIN, None, Provenance(NOON, "client"))


async def test_the_text_of_another_record_is_not_used(spool: Spool, store: RecordStore) -> None:
    read = Insert(PLAIN, encoded=Encoded(PLAIN, encode_record(PLAIN)))
    assert read == Insert(PLAIN)
    other = msgspec.structs.replace(PLAIN, record_id="other")
    for entry in (read, replace(read, record=other), Insert(PLAIN, encoded=Encoded(other, encode_record(other)))):
        await spool.accept([entry], Provenance(NOON), ["far"])
        assert await StoreSink(store, lambda: NOON).deliver([entry]) == {}
    queued = [each.entry.record for each in await spool.claim("far", 10) if isinstance(each.entry, Insert)]
    assert queued == [PLAIN, other]  # the third is equal to the first
    assert await store.documents(["job-1", "other"]) == {each.record_id: encode_record(each) for each in queued}


@pytest.mark.parametrize(
    "change",
    [
        {"record_id": 7},
        {"components": (("Cores", 8, ()),)},
        {"components": (Component("Cores", True, ()),)},  # noqa: FBT003 a wrong type on purpose
        {"meta": {"site_id": ("A", 7)}},
        {"meta": {"site_id": ("",)}},
        {"start_time": "2026-06-01T12:00:00Z", "stop_time": 12},
    ],
)
async def test_wrong_types_are_found_before_they_are_queued(spool: Spool, change: dict[str, Any]) -> None:
    broken = msgspec.structs.replace(PLAIN)
    for name, value in change.items():
        msgspec.structs.force_setattr(broken, name, value)
    made = await spool.enqueue("slurm", Batch([PLAIN, broken]), ["local"])
    assert (made.records, made.quarantined) == (1, 1)


async def test_lists_are_as_good_as_tuples(spool: Spool) -> None:
    listed = msgspec.structs.replace(PLAIN)
    msgspec.structs.force_setattr(listed, "components", [SCORED])
    msgspec.structs.force_setattr(listed, "meta", {key: list(values) for key, values in (PLAIN.meta or {}).items()})
    assert (await spool.enqueue("slurm", Batch([listed]), ["local"])).records == 1
    assert await entries(spool) == [Insert(PLAIN, None, Provenance(NOON, "task:slurm"))]
