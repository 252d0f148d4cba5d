"""A name that is taken out of an archived record is in no file of the archive after its next run."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from auditord.archive.archiver import Archiver
from auditord.archive.table import Head
from auditord.archive.writing import written
from auditord.errors import StoreUnavailable
from auditord.store import Action, Amendment, Duplicates, Provenance, RecordStore
from auditord.store.archived import ArchiveOvertaken, Removal
from auditord_builtin.privacy import retention
from auditord_builtin.privacy.retention import RetentionConfig
from auditord_hookspecs import AggregateQuery, Component, ComponentUsage, MetaValue, Record
from auditord_hookspecs.wire import decode_record, encode_record
from tests.contract.store.test_redacting import NOW, context
from tests.integration.archive.conftest import Stores, table_in
from tests.summed_records import aggregate_records

pytestmark = pytest.mark.anyio

START = datetime(2024, 1, 15, tzinfo=UTC)
DAY = timedelta(days=1)
BEFORE = START + 100 * DAY
SENT = Provenance(START + 400 * DAY, "task:slurm")
KEYS = ("user_id", "user")
NAME = "alicealice"
QUERY = AggregateQuery(by=(MetaValue("site_id", "site"),), usage=(ComponentUsage("Cores"),))


def job(number: int, user: str) -> Record:
    start = START + number * DAY
    meta: dict[str, tuple[str, ...]] = {"site_id": (f"S{number % 2}",), "user_id": (user,)}
    return Record(f"job-{number}", start, (Component("Cores", number, ()),), start + timedelta(hours=2), meta)


RECORDS = [job(number, NAME if number % 5 == 0 else "bob") for number in range(60)]
NAMED = [each.record_id for each in RECORDS if each.meta is not None and each.meta["user_id"] == (NAME,)]


async def put(store: RecordStore, records: Sequence[Record] = RECORDS) -> None:
    await store.add_all(records, SENT, Duplicates.SAME_RUN, atomic=True)


def texts(folder: Path) -> Iterator[tuple[Path, str]]:
    """All that the files below a folder hold, unpacked; SQLite's and JSON are as they are."""
    parquet: Any = import_module("pyarrow.parquet")  # Any: it ships no types
    for path in folder.rglob("*"):
        if path.suffix == ".parquet":
            yield path, f"{parquet.read_table(path).to_pylist()} {parquet.read_metadata(path).to_dict()}"
        elif path.suffix == ".avro":
            with AvroFile[Any](PyArrowFileIO().new_input(str(path))) as file:
                yield path, repr(list(file))
        if path.is_file():
            yield path, path.read_bytes().decode("latin-1")


def files_with(folder: Path, name: str) -> set[Path]:
    return {path for path, text in texts(folder) if name in text}


async def test_no_file_has_the_name_afterwards(stores: Stores, tmp_path: Path) -> None:
    async with stores(tmp_path) as (store, table):
        await put(store)
        await Archiver(store, table).run(BEFORE)
        assert {path.suffix for path in files_with(tmp_path / "archive", NAME)} == {".parquet", ".avro"}
        assert await store.redact([each.record_id for each in RECORDS], KEYS) == len(RECORDS)
        assert await store.aggregate(QUERY) == aggregate_records(RECORDS, QUERY)
        assert (await Archiver(store, table).run(BEFORE)).deleted > 0
        assert files_with(tmp_path / "archive", NAME) == set()
        assert files_with(tmp_path / "archive", "bob") == set()
        assert (await store.archive_state()).records == len(RECORDS)
        assert await store.aggregate(QUERY) == aggregate_records(RECORDS, QUERY)
        document = await store.get("job-5")
        assert document is not None
        assert decode_record(document) == msgspec.structs.replace(RECORDS[5], meta={"site_id": ("S1",)})


async def test_only_those_come_back_that_have_one_of_the_keys(stores: Stores, tmp_path: Path) -> None:
    others = [msgspec.structs.replace(each, record_id=f"other-{each.record_id}", meta=None) for each in RECORDS]
    async with stores(tmp_path) as (store, table):
        await put(store, [*RECORDS, *others])
        await Archiver(store, table).run(BEFORE)
        asked = [*NAMED, *[each.record_id for each in others], "none"]
        assert await store.redact(asked, KEYS) == len(NAMED)
        assert (await store.archive_state()).records == len(RECORDS) + len(others) - len(NAMED)
        await Archiver(store, table).run(BEFORE)
        assert files_with(tmp_path / "archive", NAME) == set()
        assert files_with(tmp_path / "archive", "bob") != set()
        assert await store.redact(asked, KEYS) == 0
        assert (await store.archive_state()).records == len(RECORDS) + len(others) == (await store.counts()).total


async def test_their_former_versions_lose_it_as_well(stores: Stores, tmp_path: Path) -> None:
    async with stores(tmp_path) as (store, table):
        await put(store)
        right = msgspec.structs.replace(RECORDS[5], components=())
        await store.amend([Amendment(Action.CORRECT, encode_record(RECORDS[5]), right, "no cores")], SENT)
        await Archiver(store, table).run(BEFORE)
        assert await store.redact(["job-5"], KEYS) == 1
        assert all(NAME not in version.document.decode() for version in await store.history("job-5"))


async def test_a_deleted_record_leaves_no_file_either(stores: Stores, tmp_path: Path) -> None:
    async with stores(tmp_path) as (store, table):
        await put(store)
        await Archiver(store, table).run(BEFORE)
        named = [each for each in RECORDS if each.record_id in NAMED]
        await store.amend([Amendment(Action.DELETE, encode_record(each), None, "asked to") for each in named], SENT)
        await Archiver(store, table).run(BEFORE)
        assert files_with(tmp_path / "archive", NAME) == set()


async def test_a_run_that_has_nothing_to_clean_leaves_the_snapshots_to_their_readers(
    stores: Stores, tmp_path: Path
) -> None:
    async with stores(tmp_path) as (store, table):
        await put(store, RECORDS[:30])
        await Archiver(store, table).run(BEFORE)
        earlier = await store.archive_counted()
        await put(store, RECORDS[30:])
        assert (await Archiver(store, table).run(BEFORE)).deleted == 0
        assert len(list(table.records(earlier.state.snapshot_id))) == 30


async def test_who_reads_a_snapshot_that_is_gone_gets_an_error_and_never_too_little(
    stores: Stores, tmp_path: Path
) -> None:
    async with stores(tmp_path) as (store, table):
        await put(store)
        await Archiver(store, table).run(BEFORE)
        earlier = await store.archive_counted()
        await store.redact(NAMED, KEYS)
        await Archiver(store, table).run(BEFORE)
        archive = store.archive
        assert archive is not None
        with pytest.raises(ArchiveOvertaken, match="try again"):
            await archive.aggregate(earlier, QUERY, None)
        with pytest.raises(StoreUnavailable, match="restored without its archive"):
            await archive.find(earlier.state, {Removal("job-1", 1)})


async def test_a_process_that_writes_meanwhile_cannot_commit_what_is_deleted(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores(tmp_path) as (store, table):
        await put(store)
        await Archiver(store, table).run(BEFORE)
        other = table_in(tmp_path)
        deleted: list[int] = []

        def written_and_cleaned(*args: Any) -> Iterator[Any]:
            files = list(written(*args))
            left, head = table.leftovers(), table.head()
            assert left.is_any
            table.seal(head)
            deleted.append(table.clean(left.files))
            yield from files

        monkeypatch.setattr("auditord.archive.table.written", written_and_cleaned)
        (copy, *_) = table.records(table.head().snapshot_id)
        head, rows = other.head(), other.new_rows()
        rows.add([msgspec.structs.replace(copy, chunk=2)])
        with pytest.raises(StoreUnavailable):
            other.append(rows, head)
        other.close()
        assert deleted == [2]  # its file, and the list of manifests of the snapshot before
        assert len(list(table.records(table.head().snapshot_id))) == len(RECORDS)


async def test_files_that_were_never_committed_are_deleted(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any) -> None:
        list(args[-1])  # the files are written
        raise KeyboardInterrupt

    head = Head(0, 0, 0)
    async with stores(tmp_path) as (store, table):
        await put(store)
        with monkeypatch.context() as patched:
            patched.setattr("auditord.archive.table._commit", killed)
            table.create("archive")
            copies = [msgspec.structs.replace(each, chunk=1) for each in await store.archivable(BEFORE, None, 100)]
            rows = table.new_rows()
            rows.add(copies)
            with pytest.raises(KeyboardInterrupt):
                table.append(rows, head)
        orphans = set((tmp_path / "archive").rglob("*.parquet"))
        assert orphans
        assert (await Archiver(store, table).run(BEFORE)).deleted >= len(orphans)
        assert orphans.isdisjoint((tmp_path / "archive").rglob("*.parquet"))
        assert not table.leftovers().is_any
        assert await store.aggregate(QUERY) == aggregate_records(RECORDS, QUERY)


async def test_retention_finds_archived_records(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 7)
    recent = msgspec.structs.replace(job(1, NAME), record_id="recent", stop_time=NOW)
    async with stores(tmp_path) as (store, table):
        await put(store, [*RECORDS, recent])
        await Archiver(store, table).run(START + 30 * DAY)
        await retention.forget(RetentionConfig(months=3), context(store))
        await Archiver(store, table).run(BEFORE)
        assert files_with(tmp_path / "archive", NAME) == set()
        assert await store.aggregate(QUERY) == aggregate_records([*RECORDS, recent], QUERY)
        document = await store.get("recent")
        assert document is not None
        assert NAME in document.decode()
