"""A record store that was restored from a backup, while the archive has gone on: each record counts once."""

import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.expressions import BooleanExpression

from auditord.archive import archiver
from auditord.archive.archiver import Archiver
from auditord.archive.table import ArchiveTable, Head
from auditord.errors import StoreUnavailable
from auditord.store import Action, Amendment, Duplicates, Provenance, RecordStore
from auditord_hookspecs import AggregateQuery, Component, ComponentUsage, Record, RecordQuery
from auditord_hookspecs.wire import decode_record, encode_record
from tests.integration.archive.conftest import OpenedStores
from tests.summed_records import aggregate_records

arrow: Any = import_module("pyarrow")  # Any: it ships no types
compute: Any = import_module("pyarrow.compute")

pytestmark = pytest.mark.anyio

START = datetime(2024, 1, 15, tzinfo=UTC)
DAY = timedelta(days=1)
BEFORE = START + 100 * DAY
SENT = Provenance(START + 400 * DAY, "task:slurm")
QUERY = AggregateQuery(usage=(ComponentUsage("Cores"),))


def job(number: int, cores: int = 4) -> Record:
    start = START + number * DAY
    return Record(f"job-{number}", start, (Component("Cores", cores, ()),), start + timedelta(hours=2), {})


RECORDS = [job(number) for number in range(20)]
LATER = [job(number, cores=400) if number == 3 else job(number) for number in range(20) if number != 5]


class KilledBeforeCleaning(ArchiveTable):
    """The snapshots of before stay, as after a kill."""

    def seal(self, head: Head) -> Head:
        raise StoreUnavailable(f"killed at {head}")


async def archive_until_killed(store: RecordStore, folder: Path) -> None:
    """Archive all, as far as a process comes that is killed before it deletes files."""
    killed = KilledBeforeCleaning(f"sqlite:///{folder}/catalog.db", f"file://{folder}/archive")
    try:
        with pytest.raises(StoreUnavailable, match="killed"):
            await Archiver(store, killed).run(BEFORE)
    finally:
        killed.close()


async def everything(store: RecordStore) -> Sequence[Record]:
    async with store.stream(RecordQuery(archived=True)) as pages:
        return sorted([decode_record(each) async for page in pages for each in page], key=lambda each: each.start_time)


async def test_what_changed_after_the_backup_is_as_of_the_backup(tmp_path: Path) -> None:
    stores = OpenedStores(None)
    async with stores(tmp_path) as (store, table):
        await store.add_all(RECORDS, SENT, Duplicates.SAME_RUN, atomic=True)
        await Archiver(store, table).run(BEFORE)
    shutil.copy(tmp_path / "records.db", tmp_path / "backup.db")
    async with stores(tmp_path) as (store, table):
        changes = [
            Amendment(Action.CORRECT, encode_record(RECORDS[3]), LATER[3], "counted wrong"),
            Amendment(Action.DELETE, encode_record(RECORDS[5]), None, "a test"),
        ]
        await store.amend(changes, SENT)
        await archive_until_killed(store, tmp_path)  # job-3 has a new row, and neither has the one of the backup
        assert await store.aggregate(QUERY) == aggregate_records(
            [*RECORDS[:3], job(3, 400), RECORDS[4], *RECORDS[6:]], QUERY
        )
    shutil.copy(tmp_path / "backup.db", tmp_path / "records.db")  # a store that was closed has no other files
    async with stores(tmp_path) as (store, table):
        for _ in range(3):
            assert await store.aggregate(QUERY) == aggregate_records(RECORDS, QUERY)
            assert [msgspec.structs.replace(each, meta={}) for each in await everything(store)] == RECORDS
            await Archiver(store, table).run(BEFORE)
        assert (await store.archive_state()).records == len(RECORDS)


async def test_a_restored_store_takes_the_archive_up_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows nothing of it: all that is there has to be compared, and need not be in memory together."""
    monkeypatch.setattr(archiver, "CHUNK_RECORDS", 2)
    monkeypatch.setattr(archiver, "COMMIT_RECORDS", 6)
    stores, sizes = OpenedStores(None), list[int]()
    async with stores(tmp_path) as (store, _):
        await store.add_all(RECORDS, SENT, Duplicates.SAME_RUN, atomic=True)
    shutil.copy(tmp_path / "records.db", tmp_path / "backup.db")
    async with stores(tmp_path) as (store, table):
        assert (await Archiver(store, table).run(BEFORE)).moved == len(RECORDS)
    shutil.copy(tmp_path / "backup.db", tmp_path / "records.db")
    async with stores(tmp_path) as (store, table):
        read = table.rows

        def reading(snapshot_id: int, where: BooleanExpression) -> Iterator[Any]:
            found = list(read(snapshot_id, where))
            sizes.append(sum(batch.num_rows for batch in found))
            return iter(found)

        monkeypatch.setattr(table, "rows", reading)
        assert (await Archiver(store, table).run(BEFORE)).moved == len(RECORDS)
        assert (max(sizes), sum(sizes)) == (6, len(RECORDS))
        assert await store.aggregate(QUERY) == aggregate_records(RECORDS, QUERY)


async def test_chunks_that_are_empty_by_now_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next numbers lie behind theirs, so that a commit ends further from the last chunk than it is long."""
    monkeypatch.setattr(archiver, "CHUNK_RECORDS", 2)
    monkeypatch.setattr(archiver, "COMMIT_RECORDS", 6)
    stores = OpenedStores(None)
    async with stores(tmp_path) as (store, table):
        await store.add_all(RECORDS[:4], SENT, Duplicates.SAME_RUN, atomic=True)
        await Archiver(store, table).run(BEFORE)
    shutil.copy(tmp_path / "records.db", tmp_path / "backup.db")
    async with stores(tmp_path) as (store, table):
        await store.add_all(RECORDS[4:6], SENT, Duplicates.SAME_RUN, atomic=True)
        await Archiver(store, table).run(BEFORE)
        deletions = [Amendment(Action.DELETE, encode_record(each), None, "a test") for each in RECORDS[4:6]]
        await store.amend(deletions, SENT)
        await archive_until_killed(store, tmp_path)  # no row is left of their chunk
    shutil.copy(tmp_path / "backup.db", tmp_path / "records.db")
    async with stores(tmp_path) as (store, table):
        await store.add_all(RECORDS[6:12], SENT, Duplicates.SAME_RUN, atomic=True)
        assert (await Archiver(store, table).run(BEFORE)).moved == 6
        stored = [*RECORDS[:4], *RECORDS[6:12]]
        assert await store.aggregate(QUERY) == aggregate_records(stored, QUERY)


@pytest.mark.parametrize("lost", [slice(0, 1), slice(2, 4)], ids=["a record", "a whole chunk"])
async def test_records_that_are_not_read_back_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: slice
) -> None:
    monkeypatch.setattr(archiver, "CHUNK_RECORDS", 2)
    monkeypatch.setattr(archiver, "COMMIT_RECORDS", 6)
    stores = OpenedStores(None)
    async with stores(tmp_path) as (store, table):
        await store.add_all(RECORDS, SENT, Duplicates.SAME_RUN, atomic=True)
        read = table.rows

        def forgetful(snapshot_id: int, where: BooleanExpression) -> Iterator[Any]:
            for batch in read(snapshot_id, where):
                gone = compute.is_in(batch["record_id"], arrow.array([each.record_id for each in RECORDS[lost]]))
                yield batch.filter(compute.invert(gone))

        with monkeypatch.context() as damaged:
            damaged.setattr(table, "rows", forgetful)
            with pytest.raises(StoreUnavailable, match="does not give back"):
                await Archiver(store, table).run(BEFORE)
        assert not await store.archived([each.record_id for each in RECORDS[lost]])
        assert await store.aggregate(QUERY) == aggregate_records(RECORDS, QUERY)
        await Archiver(store, table).run(BEFORE)
        assert await store.aggregate(QUERY) == aggregate_records(RECORDS, QUERY)
        assert (await store.archive_state()).records == len(RECORDS)
