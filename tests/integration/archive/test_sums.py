"""Sums over the archive and the record store together are those over all records."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFile

from auditord.archive.archiver import Archiver
from auditord.archive.files import DurableFileIO
from auditord.errors import StoreUnavailable
from auditord.store import Duplicates, Provenance
from auditord.store.store import SqlRecordStore
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    Component,
    ComponentUsage,
    MetaValue,
    Record,
    RecordUpdate,
    Score,
)
from auditord_hookspecs.query import Comparison, IdEquals, MetaContains, TimeCompares, TimeField
from tests.contract.store.test_aggregates import QUERIES, RECORDS
from tests.contract.store.test_rollups import folded
from tests.integration.archive.conftest import Stores
from tests.summed_records import aggregate_records

pytestmark = pytest.mark.anyio

EXAMPLES = int(os.environ.get("ARCHIVE_EXAMPLES", "5"))
START = datetime(2024, 1, 15, tzinfo=UTC)
DAY = timedelta(days=1)
SENT = Provenance(START + 400 * DAY, "task:slurm")


def job(number: int, **changes: object) -> Record:
    start = START + number * DAY
    components = (Component("Cores", number, (Score("HEPscore23", 1.5),)), Component("Disk", number, ()))
    meta: dict[str, tuple[str, ...]] = {"site_id": (f"S{number % 3}",), "project": ("p",)}
    record = Record(f"job-{number}", start, components, start + timedelta(hours=number), meta if number % 4 else None)
    return msgspec.structs.replace(record, **changes)


@given(records=RECORDS, queries=st.lists(QUERIES, min_size=10, max_size=20), days=st.integers(-3_000, 3_000))
@settings(
    deadline=None,
    max_examples=EXAMPLES,
    phases=[Phase.generate],  # a table takes a second: making a failing example small would take an hour
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_sums_are_those_of_all_records(
    stores: Stores, tmp_path: Path, records: Sequence[Record], queries: Sequence[AggregateQuery], days: int
) -> None:
    async with stores(Path(mkdtemp(dir=tmp_path))) as (store, table):
        await store.add_all(records, SENT, Duplicates.SAME_RUN, atomic=True)
        before = START + timedelta(days=days)
        archived = await Archiver(store, table).run(before)
        assert archived.moved == sum(each.stop_time is not None and each.stop_time < before for each in records)
        for query in queries:
            assert await store.aggregate(query) == aggregate_records(records, query)


async def test_what_comes_back_late_or_is_changed_counts_once(stores: Stores, tmp_path: Path) -> None:
    records = {number: job(number) for number in range(40)}
    query = AggregateQuery(
        by=(CalendarPeriod(CalendarUnit.MONTH), MetaValue("site_id", "site")),
        usage=(ComponentUsage("Cores", ("HEPscore23",)), ComponentUsage("Disk")),
    )
    async with stores(tmp_path) as (store, table):
        await store.add_all(
            [each for number, each in records.items() if number != 7], SENT, Duplicates.SAME_RUN, atomic=True
        )
        archiver = Archiver(store, table)
        assert (await archiver.run(START + 30 * DAY)).moved == 28
        await store.add(records[7], SENT, Duplicates.SAME_RUN)
        assert (await archiver.run(START + 30 * DAY)).moved == 29
        for number in (3, 11):
            records[number] = job(number, stop_time=START + 60 * DAY)
            await store.stop(RecordUpdate(f"job-{number}", (), START + 60 * DAY), SENT)
            assert await store.aggregate(query) == aggregate_records(records.values(), query)
        assert (await Archiver(store, table).run(START + 90 * DAY)).removed == 2
        assert await store.aggregate(query) == aggregate_records(records.values(), query)
        assert (await store.archive_state()).records == 40
        assert await store.archive_removals() == []


async def test_sums_over_other_times_open_no_file_and_others_are_never_too_small(
    stores: Stores, tmp_path: Path
) -> None:
    async with stores(tmp_path) as (store, table):
        await store.add_all([job(number) for number in range(40)], SENT, Duplicates.SAME_RUN, atomic=True)
        await Archiver(store, table).run(START + 30 * DAY)
        store.archive = None
        late = TimeCompares(TimeField.STOP, Comparison.GTE, START + 31 * DAY)
        (group,) = (await store.aggregate(AggregateQuery(late))).groups
        assert group.records == 10
        with pytest.raises(StoreUnavailable, match="29 records are in the archive"):
            await store.aggregate(AggregateQuery(MetaContains("project", "p")))


async def test_sums_that_roll_ups_answer_open_no_data_file(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def counting(self: DurableFileIO, location: str) -> PyArrowFile:
        opened.append(location)
        return new_input(self, location)

    new_input = DurableFileIO.new_input
    monkeypatch.setattr(DurableFileIO, "new_input", counting)
    records = [job(number, meta={"site_id": (f"S{number % 3}",)}) for number in range(1, 40)]
    by_month = AggregateQuery(
        by=(CalendarPeriod(CalendarUnit.MONTH), MetaValue("site_id", "site")), usage=(ComponentUsage("Cores"),)
    )
    until_then = TimeCompares(TimeField.STOP, Comparison.LT, START + 99 * DAY + timedelta(hours=7))
    one = AggregateQuery(IdEquals("job-7"), usage=(ComponentUsage("Cores"),))
    async with stores(tmp_path) as (store, table):
        await store.add_all(records, SENT, Duplicates.SAME_RUN, atomic=True)
        assert (await Archiver(store, table).run(START + 100 * DAY)).moved == len(records)
        opened.clear()
        for query in (by_month, replace(by_month, where=until_then)):
            assert await store.aggregate(query) == aggregate_records(records, query)
        assert opened == [], "not even a list of files"
        assert await store.aggregate(one) == aggregate_records(records, one)
        assert [each for each in opened if each.endswith(".parquet")] != []
        unusual = job(40, meta={"site_id": ("S1", "S2")})
        await store.add(unusual, SENT, Duplicates.SAME_RUN)
        assert (await Archiver(store, table).run(START + 100 * DAY)).moved == 1
        assert (await store.archive_state()).beside_rollups == 1
        assert await store.aggregate(by_month) == aggregate_records([*records, unusual], by_month)
        assert await store.recall([unusual.record_id]) == 1
        store.archive = None
        assert await store.aggregate(by_month) == aggregate_records([*records, unusual], by_month)


async def test_cells_of_a_new_key_answer_for_the_days_behind_the_archive(stores: Stores, tmp_path: Path) -> None:
    records = {number: job(number) for number in range(1, 40)}
    by_project = AggregateQuery(
        by=(CalendarPeriod(CalendarUnit.MONTH), MetaValue("project")), usage=(ComponentUsage("Cores"),)
    )
    later = replace(by_project, where=TimeCompares(TimeField.STOP, Comparison.GTE, START + 31 * DAY))
    async with stores(tmp_path) as (store, table):
        assert isinstance(store, SqlRecordStore)
        await store.add_all(list(records.values()), SENT, Duplicates.SAME_RUN, atomic=True)
        assert (await Archiver(store, table).run(START + 30 * DAY)).moved > 0
        store.rollups.keep_by(["project"])
        await folded(store)
        first = START.toordinal() - datetime(1970, 1, 1, tzinfo=UTC).toordinal() + 30
        assert {each.filled_from for each in await store.rollups.sets() if each.key is not None} == {first}
        records[3] = job(3, stop_time=START + 60 * DAY)
        await store.stop(RecordUpdate("job-3", (), START + 60 * DAY), SENT)
        assert await store.aggregate(by_project) == aggregate_records(records.values(), by_project)
        assert (await Archiver(store, table).run(START + 30 * DAY)).moved == 0
        store.archive = None  # no file is read
        assert await store.aggregate(later) == aggregate_records(records.values(), later)


async def test_cells_that_are_filled_anew_leave_archived_days_to_the_archive(stores: Stores, tmp_path: Path) -> None:
    records = [job(number, meta={"site_id": (f"S{number % 3}",), "user_id": ("u",)}) for number in range(1, 40)]
    query = AggregateQuery(
        by=(CalendarPeriod(CalendarUnit.MONTH), MetaValue("site_id", "site")),
        usage=(ComponentUsage("Cores", ("HEPscore23",)), ComponentUsage("Disk")),
    )
    expected = aggregate_records(records, query)
    async with stores(tmp_path) as (store, table):
        assert isinstance(store, SqlRecordStore)
        await store.add_all(records, SENT, Duplicates.SAME_RUN, atomic=True)
        await Archiver(store, table).run(START + 20 * DAY)
        archive, store.archive = store.archive, None
        assert await store.aggregate(query) == expected, "by cells alone"
        await store.rollups.start_over()
        with pytest.raises(StoreUnavailable, match="the configuration has none"):
            await store.aggregate(query)
        store.archive = archive
        assert await store.aggregate(query) == expected, "while they are filled"
        await folded(store)
        assert await store.aggregate(query) == expected
        assert await store.recall(["job-5"]) == 1
        await folded(store)
        assert await store.aggregate(query) == expected
        await store.add(job(3, record_id="late"), SENT, Duplicates.SAME_RUN)
        assert await store.aggregate(query) == aggregate_records([*records, job(3, record_id="late")], query)
        assert (await Archiver(store, table).run(START + 30 * DAY)).moved > 10
        assert await store.aggregate(query) == aggregate_records([*records, job(3, record_id="late")], query)
