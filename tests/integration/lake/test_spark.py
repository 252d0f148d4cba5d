"""A real Spark gives the integers of the store: a master and two workers, asked as the daemon asks."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditord.errors import StoreUnavailable
from auditord.lake.asking import LakeReader
from auditord.lake.opening import lake_module
from auditord.lake.table import LakeTable
from auditord_hookspecs import AggregateQuery, Component, ComponentUsage, MetaValue, Record, ScoreValue, Window
from auditord_hookspecs.query import AllOf, Comparison, RuntimeCompares
from tests.contract.store.test_aggregates import QUERIES
from tests.integration.lake.asked_lake import BY_DAEMON, EPOCH, asked_lake, put
from tests.integration.lake.killed import lake_in
from tests.spark_cluster import missing, spark_cluster
from tests.summed_records import aggregate_records

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing() is not None, reason=f"no Spark: {missing()}"),
]

FIRST, LAST = EPOCH.replace(year=1), EPOCH.replace(year=9000)
CORES = AggregateQuery(by=(MetaValue("site_id"),), usage=(ComponentUsage("Cores", ("HEPSPEC06",)),))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_cluster(tmp_path_factory.mktemp("spark")) as url:
        yield url


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeTable]:
    table = asked_lake(tmp_path_factory.mktemp("lake"))
    yield table
    table.close()


def reader(lake: LakeTable, daemon: str | None, url: str) -> LakeReader:
    return LakeReader(lake, daemon, lake_module("spark_engine").Spark(url))


def test_sums_equal_a_plain_evaluation(lake: LakeTable, spark: str) -> None:
    readers = {daemon: reader(lake, daemon, spark) for daemon in BY_DAEMON}

    @given(query=QUERIES, daemon=st.sampled_from([None, "a", "b"]))
    @settings(deadline=None, max_examples=12)
    def check(query: AggregateQuery, daemon: str | None) -> None:
        answer = asyncio.run(readers[daemon].aggregate(query))
        assert answer.snapshot is not None
        assert answer.snapshot.number == lake.facts().snapshot_id
        assert replace(answer, snapshot=None) == aggregate_records(BY_DAEMON[daemon], query)

    check()


async def test_a_million_years_of_exabytes_in_microseconds(tmp_path: Path, spark: str) -> None:
    records = [Record(f"id{number}", FIRST, (Component("Memory", 2**62 + number, ()),), LAST) for number in range(150)]
    table = lake_in(tmp_path / "lake")
    await put(tmp_path, "a", records, table)
    window = Window(FIRST, LAST - timedelta(days=1))
    for query in (
        AggregateQuery(usage=(ComponentUsage("Memory"),)),
        AggregateQuery(usage=(ComponentUsage("Memory"),), window=window),
        AggregateQuery(by=(ScoreValue("Memory", "none"),), usage=(ComponentUsage("Memory"),)),
    ):
        answer = await reader(table, "a", spark).aggregate(query)
        assert replace(answer, snapshot=None) == aggregate_records(records, query)
    table.close()


async def test_numbers_that_no_record_can_have_are_compared_with(lake: LakeTable, spark: str) -> None:
    asked = replace(
        CORES, where=AllOf((RuntimeCompares(Comparison.LT, 10**40), RuntimeCompares(Comparison.GT, -(10**40))))
    )
    answer = await reader(lake, None, spark).aggregate(asked)
    assert replace(answer, snapshot=None) == aggregate_records(BY_DAEMON[None], asked)


async def test_an_answer_is_about_the_snapshot_that_it_names(tmp_path: Path, spark: str) -> None:
    table = lake_in(tmp_path / "lake")
    await put(tmp_path, "a", BY_DAEMON["a"], table)
    with table.loaded() as before:
        await put(tmp_path, "b", BY_DAEMON["b"], table)
        engine = lake_module("spark_engine").Spark(spark)
        work = lake_module("engines").Work()
        former = await asyncio.to_thread(engine.sums, before, CORES, None, work)
    assert former == aggregate_records(BY_DAEMON["a"], CORES)
    assert replace(await reader(table, None, spark).aggregate(CORES), snapshot=None) == aggregate_records(
        BY_DAEMON[None], CORES
    )
    table.close()


async def test_work_on_an_answer_that_nobody_waits_for_ends(lake: LakeTable, spark: str) -> None:
    asked = reader(lake, None, spark)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asked.aggregate(CORES)
    await asyncio.to_thread(asked.close)  # waits for its threads


async def test_a_spark_that_is_not_there_is_said(lake: LakeTable) -> None:
    with pytest.raises(StoreUnavailable, match=r"lake\.spark"):
        await reader(lake, None, "sc://127.0.0.1:1").aggregate(CORES)
