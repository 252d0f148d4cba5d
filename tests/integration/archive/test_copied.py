"""A copy of a store that has an archive: sums over archived months come from roll-ups, and are the same integers."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from auditord.archive.archiver import Archiver
from auditord.archive.reading import ArchiveReader
from auditord.config.model import StoreSection
from auditord.store import Action, Amendment, Duplicates, Provenance
from auditord.store.copying import copy_store
from auditord.store.opening import open_store
from auditord.store.store import SqlRecordStore
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    Component,
    ComponentUsage,
    MetaValue,
    Record,
    Score,
    ScoreValue,
)
from auditord_hookspecs.wire import encode_record
from tests.integration.archive.conftest import table_in
from tests.integration.test_copying import SilentProgress
from tests.summed_records import aggregate_records

pytestmark = pytest.mark.anyio

START = datetime(2024, 1, 15, tzinfo=UTC)
DAY = timedelta(days=1)
SENT = Provenance(START + 400 * DAY, "task:slurm")
SAME_RUN = Duplicates.SAME_RUN
MONTH, USER = CalendarPeriod(CalendarUnit.MONTH), MetaValue("user_id", "user")
LARGE = 1 << 52
"""An amount whose sums need more than 64 bits."""
SCORES = ("HEPscore23",)
QUERIES = (
    AggregateQuery(by=(MONTH, USER), usage=(ComponentUsage("Cores", SCORES), ComponentUsage("Disk"))),
    AggregateQuery(by=(ScoreValue("Cores", "HEPscore23"),), usage=(ComponentUsage("Cores"),)),
    AggregateQuery(by=(CalendarPeriod(CalendarUnit.DAY),), usage=(ComponentUsage("Cores", SCORES),)),
)


def job(number: int, score: float | None = None) -> Record:
    start = START + number * DAY
    scores = () if number % 5 == 0 else (Score("HEPscore23", score or 10 + number % 3 / 7),)
    components = (Component("Cores", number + 1, scores), Component("Disk", LARGE - number, ()))
    meta: dict[str, tuple[str, ...]] = {"site_id": ("S",), "user_id": (f"ü{number % 4}",)}
    return Record(f"job-{number}", start, components, start + timedelta(hours=number), meta)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Sequence[str]:
    """The stores, each of which is copied into the next one."""
    first, again = (f"sqlite://{tmp_path / name}" for name in ("first.db", "again.db"))
    if request.param == "sqlite":
        return [first, request.getfixturevalue("empty_postgres_url"), again]
    return [request.getfixturevalue("postgres_url"), first]


async def test_sums_over_archived_months_are_those_of_the_archive(urls: Sequence[str], tmp_path: Path) -> None:
    records = {number: job(number) for number in range(80)}
    table = table_in(tmp_path)
    async with open_store(urls[0], counted_keys=()) as store:
        store.archive = ArchiveReader(table)
        await store.add(job(99, 3.5), SENT, SAME_RUN)  # so that numbers of the source are not those of a new store
        await store.amend([Amendment(Action.DELETE, encode_record(job(99, 3.5)), None, "gone")], SENT)
        await store.add_all([records[number] for number in range(60)], SENT, SAME_RUN, atomic=True)
        assert (await Archiver(store, table).run(START + 40 * DAY)).moved == 39
        assert isinstance(store, SqlRecordStore)
        await store.rollups.fold()
        await store.add_all([records[number] for number in range(60, 80)], SENT, SAME_RUN, atomic=True)  # not folded
    for here, there in pairwise(urls):
        ends = StoreSection(url=here), StoreSection(url=there)
        await copy_store(*ends, resume=False, now=lambda: START, progress=SilentProgress())
        async with open_store(there, counted_keys=()) as store:
            assert (await store.counts()).total == len(records)
            store.archive = ArchiveReader(table)  # cells are not copied, and the records of those months are not here
            for query in QUERIES:
                assert await store.aggregate(query) == aggregate_records(records.values(), query)
            store.archive = ArchiveReader(table)
            late = len(records)
            records[late] = job(late, 7.25 + late)  # scores that the source has not
            await store.add(records[late], SENT, SAME_RUN)
            records[late % 39] = job(late % 39, 1.5)
            corrected = Amendment(Action.CORRECT, encode_record(job(late % 39)), job(late % 39, 1.5), "benchmarked")
            await store.amend([corrected], SENT)
            for query in QUERIES:
                assert await store.aggregate(query) == aggregate_records(records.values(), query)
            assert (await Archiver(store, table).run(START + 50 * DAY)).moved > 0
            for query in QUERIES:
                assert await store.aggregate(query) == aggregate_records(records.values(), query)
    table.close()
