"""Small files, as late records leave them, are put together; what is in the archive stays the same."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from auditord.archive import table as archive_table
from auditord.archive import writing
from auditord.archive.archiver import Archiver
from auditord.archive.table import ArchiveTable
from auditord.archive.verifying import verify
from auditord.archive.writing import rows_in
from auditord.errors import StoreUnavailable
from auditord.store import Duplicates, Provenance, RecordStore
from auditord.store.archived import Removal
from auditord_hookspecs import Record, RecordQuery
from auditord_hookspecs.wire import encode_record
from tests.integration.archive.conftest import OpenedStores, Stores

pytestmark = pytest.mark.anyio

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
BEFORE = START + 1_000 * HOUR
SENT = Provenance(START + 2_000 * HOUR, "task:slurm")
EACH_NIGHT = 4


@pytest.fixture
def one_store() -> Stores:
    """Of the kind that takes less time, where that makes no difference."""
    return OpenedStores(None)


def jobs(night: int) -> list[Record]:
    """Late records of one month, in turns of two sites."""
    numbers = range(EACH_NIGHT * night, EACH_NIGHT * (night + 1))
    return [
        Record(f"job-{each:03}", START + each * HOUR, (), START + each * HOUR, {"site_id": (f"S{each % 2}",)})
        for each in numbers
    ]


async def night(store: RecordStore, table: ArchiveTable, number: int) -> int:
    """Archive what has come late; returns how many fewer files there are."""
    await store.add_all(jobs(number), SENT, Duplicates.SAME_RUN, atomic=True)
    return (await Archiver(store, table).run(BEFORE)).compacted


async def rows(store: RecordStore, table: ArchiveTable) -> list[int]:
    """The numbers of rows of all files."""
    return sorted(file.rows for file in table.files((await store.archive_state()).snapshot_id))


async def assert_all_is_there(store: RecordStore, table: ArchiveTable, nights: int) -> None:
    result = await verify(store, table)
    assert (result.findings, result.records) == ([], EACH_NIGHT * nights)
    async with store.stream(RecordQuery(archived=True)) as pages:
        found = [document async for page in pages for document in page]
    assert found == [encode_record(each) for number in range(nights) for each in jobs(number)]


async def test_the_files_of_a_month_and_site_become_one(stores: Stores, tmp_path: Path) -> None:
    async with stores(tmp_path) as (store, table):
        assert [await night(store, table, number) for number in range(4)] == [0, 0, 0, 6]
        assert await rows(store, table) == [8, 8]
        await assert_all_is_there(store, table, 4)
        assert len(list((tmp_path / "archive").rglob("*.parquet"))) == 2
        assert await store.recall(["job-001"]) == 1
        assert await night(store, table, 4) == 0
        await assert_all_is_there(store, table, 5)


async def test_a_large_file_is_left_as_it_is(
    one_store: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_table, "FILE_RECORDS", 12)
    async with one_store(tmp_path) as (store, table):
        assert [await night(store, table, number) for number in range(8)] == [0, 0, 0, 6, 0, 0, 0, 6]
        assert await rows(store, table) == [8, 8, 8, 8]
        await assert_all_is_there(store, table, 8)


async def test_a_run_that_ends_behind_the_commit_is_gone_on_with(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores(tmp_path) as (store, table):
        for number in range(3):
            await night(store, table, number)
        with monkeypatch.context() as patched:
            patched.setattr(type(store), "forget_removals", failing)
            with pytest.raises(StoreUnavailable):
                await night(store, table, 3)
        assert len(await rows(store, table)) == 8, "the store still reads the files that were there"
        await assert_all_is_there(store, table, 4)
        await Archiver(store, table).run(BEFORE)
        assert await rows(store, table) == [8, 8]
        await assert_all_is_there(store, table, 4)


async def failing(*_: object) -> None:
    raise StoreUnavailable("the power is cut")


def losing_rows(table: Table, files: Iterable[DataFile]) -> Iterator[Removal]:
    """The rows of several files, and those of a single one but its first."""
    several = list(files)
    return islice(rows_in(table, several), int(len(several) == 1), None)


async def test_a_file_that_cannot_be_read_back_takes_no_place(
    one_store: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_store(tmp_path) as (store, table):
        for number in range(3):
            await night(store, table, number)
        with monkeypatch.context() as patched:
            patched.setattr(writing, "rows_in", losing_rows)
            with pytest.raises(StoreUnavailable, match="does not hold what was written to it"):
                await night(store, table, 3)
        await assert_all_is_there(store, table, 4)
        assert await night(store, table, 4) == 8
        await assert_all_is_there(store, table, 5)
