"""A copy of a store that has released records counts them as the source does, and goes on with their lake."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from auditord.config.model import StoreSection
from auditord.lake.duckdb_engine import DuckDb, EngineLimits
from auditord.lake.queries import LakeReader
from auditord.lake.syncing import sync
from auditord.lake.writing import month_number
from auditord.store import Action, Amendment, Duplicates, Provenance
from auditord.store.copying import copy_store
from auditord.store.opening import open_store
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
from tests.integration.lake.killed import LOG, lake_in, run
from tests.integration.lake.lake_rows import rows
from tests.integration.test_copying import SilentProgress
from tests.summed_records import aggregate_records

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

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


@pytest.fixture(params=["sqlite", "postgresql"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Sequence[str]:
    """The stores, each of which is copied into the next one."""
    first, again = (f"sqlite://{tmp_path / name}" for name in ("first.db", "again.db"))
    if request.param == "sqlite":
        return [first, request.getfixturevalue("empty_postgres_url"), again]
    return [request.getfixturevalue("postgres_url"), first]


async def test_a_copy_counts_released_records(urls: Sequence[str], tmp_path: Path) -> None:
    records = {number: job(number) for number in range(80)}
    table = lake_in(tmp_path / "lake")
    reader = LakeReader(table, "a", DuckDb(EngineLimits(256 << 20, 1, tmp_path / "spill")))
    month = month_number(START)
    async with open_store(urls[0], counted_keys=()) as store:
        store.lake = reader
        await store.add(job(99, 3.5), SENT, SAME_RUN)  # so that numbers of the source are not those of a new store
        await store.amend([Amendment(Action.DELETE, encode_record(job(99, 3.5)), None, "gone")], SENT)
        await store.add_all([records[number] for number in range(60)], SENT, SAME_RUN, atomic=True)
        released = await run(store, table, "a", month + 1)
        assert released > 10
        await store.rollups.fold()
        await store.add_all([records[number] for number in range(60, 80)], SENT, SAME_RUN, atomic=True)  # not folded
    for here, there in pairwise(urls):
        ends = StoreSection(url=here), StoreSection(url=there)
        await copy_store(*ends, resume=False, now=lambda: START, progress=SilentProgress())
        async with open_store(there, counted_keys=()) as store:
            assert (await store.counts()).total == len(records)
            store.lake = reader  # cells are not copied, and the records of those months are not here
            for query in QUERIES:
                assert await store.aggregate(query) == aggregate_records(records.values(), query)
            late = len(records)
            records[late] = job(late, 7.25 + late)  # scores that the source has not
            await store.add(records[late], SENT, SAME_RUN)
            records[late % released] = job(late % released, 1.5)
            corrected = Amendment(
                Action.CORRECT, encode_record(job(late % released)), job(late % released, 1.5), "benchmarked"
            )
            await store.amend([corrected], SENT)
            for query in QUERIES:
                assert await store.aggregate(query) == aggregate_records(records.values(), query)
            month += 1
            assert await run(store, table, "a", month) > 0
            assert len(rows(table, "a")) == len(records)
            assert table.count_unaccounted() == {}
            assert await store.recall(["job-0"]) == 1
            assert await run(store, table, "a", 0) == 0
            assert table.count_unaccounted() == {}
            assert await run(store, table, "a", month) == 1
            for query in QUERIES:
                assert await store.aggregate(query) == aggregate_records(records.values(), query)
    reader.close()
    table.close()


async def test_the_source_can_take_the_place_of_its_copy_again(tmp_path: Path) -> None:
    """The lake has batches of the copy by then, whose numbers must not be taken for those of the source."""
    source, target = (f"sqlite://{tmp_path / name}" for name in ("source.db", "target.db"))
    table = lake_in(tmp_path / "lake")
    async with open_store(source, counted_keys=()) as store:
        await store.add_all([job(1), job(2), job(3)], SENT, SAME_RUN, atomic=True)
        await store.amend([Amendment(Action.DELETE, encode_record(job(3)), None, "gone")], SENT)
        await sync(store, table, "a", LOG)
    ends = StoreSection(url=source), StoreSection(url=target)
    await copy_store(*ends, resume=False, now=lambda: START, progress=SilentProgress())
    async with open_store(target, counted_keys=()) as store:
        await store.add_all([job(4), job(5)], SENT, SAME_RUN, atomic=True)  # as many as the copy has numbers less
        await sync(store, table, "a", LOG)
    async with open_store(source, counted_keys=()) as store:
        await sync(store, table, "a", LOG)
    assert rows(table, "a").keys() == {"job-1", "job-2"}
    table.close()
