"""Clusters give the integers of the store: a real Spark and a real Trino, asked as the daemon asks."""

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from auditord.errors import StoreUnavailable
from auditord.lake.engines import Chosen, Engine, Work
from auditord.lake.opening import lake_module
from auditord.lake.queries import LakeReader
from auditord.lake.table import LakeTable
from auditord.lake.writing import month_number
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord_hookspecs import (
    AggregateQuery,
    Component,
    ComponentUsage,
    MetaValue,
    Record,
    RecordQuery,
    ScoreValue,
    Window,
)
from auditord_hookspecs.query import AllOf, Comparison, Order, RuntimeCompares, SortField
from auditord_hookspecs.wire import encode_record
from tests import spark_cluster, trino_server
from tests.integration.lake.asked_lake import (
    BY_DAEMON,
    EPOCH,
    asked_lake,
    check_listings,
    check_sums,
    put,
)
from tests.integration.lake.killed import run
from tests.postgres_server import PostgresServer
from tests.summed_records import aggregate_records

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(900)]

FIRST, LAST = EPOCH.replace(year=1), EPOCH.replace(year=9000)
CORES = AggregateQuery(by=(MetaValue("site_id"),), usage=(ComponentUsage("Cores", ("HEPSPEC06",)),))
LAKES: Final = ("asked", "large", "growing", "released")
"""Each with a catalog of its own."""


class Cluster:
    """A cluster, and lakes that it can read.

    Args:
        folder: of the lakes' files.
        catalogs: URLs of the databases that have them, by the names of the lakes.
        connect: an engine that asks the lake of a name.
    """

    def __init__(self, folder: Path, catalogs: dict[str, str], connect: Callable[[str], Engine]) -> None:
        self._folder = folder
        self._catalogs = catalogs
        self.engine = connect

    def lake(self, name: str) -> LakeTable:
        """A lake, empty at first."""
        uri = self._catalogs[name].replace("postgresql://", "postgresql+psycopg://")
        warehouse = (self._folder / name).as_uri()
        return LakeTable({"type": "sql", "uri": uri, "warehouse": warehouse}, warehouse)

    def reader(self, name: str, table: LakeTable, daemon: str | None) -> LakeReader:
        """A reader of it."""
        return LakeReader(table, daemon, self.engine(name))


@contextmanager
def new_catalogs(server: PostgresServer) -> Generator[dict[str, str], None, None]:
    made = {name: server.create() for name in LAKES}
    yield made
    for url in made.values():
        server.drop(url)


def needing(name: str, missing: str | None) -> pytest.MarkDecorator:
    return pytest.mark.skipif(missing is not None, reason=f"no {name}: {missing}")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("spark", marks=[pytest.mark.spark, needing("Spark", spark_cluster.missing())]),
        pytest.param("trino", marks=[pytest.mark.trino, needing("Trino", trino_server.missing())]),
    ],
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer
) -> Generator[Cluster, None, None]:
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        catalogs = stack.enter_context(new_catalogs(postgres_server))
        if request.param == "spark":
            url = stack.enter_context(spark_cluster.spark_cluster(folder))
            yield Cluster(folder, catalogs, lambda _: lake_module("spark_engine").Spark(url))
        else:
            server = stack.enter_context(trino_server.trino_server(folder, catalogs))
            yield Cluster(folder, catalogs, lambda name: lake_module("trino_engine").Trino(f"{server}/{name}"))


@pytest.fixture(scope="module")
def lake(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeTable]:
    table = asked_lake(tmp_path_factory.mktemp("stores"), cluster.lake("asked"))
    yield table
    table.close()


def test_sums_equal_a_plain_evaluation(lake: LakeTable, cluster: Cluster) -> None:
    check_sums({daemon: cluster.reader("asked", lake, daemon) for daemon in BY_DAEMON}, lake, 12)


def test_records_equal_a_plain_evaluation(lake: LakeTable, cluster: Cluster) -> None:
    check_listings({daemon: cluster.reader("asked", lake, daemon) for daemon in BY_DAEMON}, 12)


async def test_a_million_years_of_exabytes_in_microseconds(tmp_path: Path, cluster: Cluster) -> None:
    records = [Record(f"id{number}", FIRST, (Component("Memory", 2**62 + number, ()),), LAST) for number in range(150)]
    table = cluster.lake("large")
    await put(tmp_path, "a", records, table)
    window = Window(FIRST, LAST - timedelta(days=1))
    for query in (
        AggregateQuery(usage=(ComponentUsage("Memory"),)),
        AggregateQuery(usage=(ComponentUsage("Memory"),), window=window),
        AggregateQuery(by=(ScoreValue("Memory", "none"),), usage=(ComponentUsage("Memory"),)),
    ):
        answer = await cluster.reader("large", table, "a").aggregate(query)
        assert replace(answer, snapshot=None) == aggregate_records(records, query)
    table.close()


async def test_numbers_that_no_record_can_have_are_compared_with(lake: LakeTable, cluster: Cluster) -> None:
    asked = replace(
        CORES, where=AllOf((RuntimeCompares(Comparison.LT, 10**40), RuntimeCompares(Comparison.GT, -(10**40))))
    )
    answer = await cluster.reader("asked", lake, None).aggregate(asked)
    assert replace(answer, snapshot=None) == aggregate_records(BY_DAEMON[None], asked)


async def test_an_answer_is_about_the_snapshot_that_it_names(tmp_path: Path, cluster: Cluster) -> None:
    table = cluster.lake("growing")
    await put(tmp_path, "a", BY_DAEMON["a"], table)
    with table.load() as before:
        await put(tmp_path, "b", BY_DAEMON["b"], table)
        named = before.current_snapshot()
        assert named is not None
        for each in (before, table):
            with nullcontext(before) if each is before else table.load() as asked:
                chosen = Chosen(named.snapshot_id)
                former = await asyncio.to_thread(cluster.engine("growing").sums, asked, CORES, chosen, Work())
            assert former == aggregate_records(BY_DAEMON["a"], CORES)
    answer = await cluster.reader("growing", table, None).aggregate(CORES)
    assert replace(answer, snapshot=None) == aggregate_records(BY_DAEMON[None], CORES)
    table.close()


async def test_released_records_are_those_of_their_snapshot(tmp_path: Path, cluster: Cluster) -> None:
    table, records = cluster.lake("released"), BY_DAEMON["a"]
    async with open_store(f"sqlite:///{tmp_path}/a.db", counted_keys=()) as store:
        store.lake = reader = cluster.reader("released", table, "a")
        await store.add_all(records, Provenance(EPOCH), Duplicates.SAME_RUN, atomic=True)
        assert await run(store, table, "a", month_number(EPOCH) + 1) > 10
        await put(tmp_path, "b", BY_DAEMON["b"], table)
        assert await store.recall([records[3].record_id, records[5].record_id]) > 0
        by_label = AggregateQuery(by=(MetaValue("VO"),), usage=(ComponentUsage("Cores", ("HEPSPEC06",)),))
        for query in (by_label, CORES):
            assert await store.aggregate(query) == aggregate_records(records, query)
        async with store.stream(RecordQuery(order=Order(SortField.ID), released=True)) as pages:
            listed = [document async for page in pages for document in page]
        assert sorted(listed) == sorted(map(encode_record, records))
    reader.close()
    table.close()


async def test_work_on_an_answer_that_nobody_waits_for_ends(lake: LakeTable, cluster: Cluster) -> None:
    asked = cluster.reader("asked", lake, None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asked.aggregate(CORES)
    await asyncio.to_thread(asked.close)  # waits for its threads


@pytest.mark.parametrize(
    ("module", "name", "url"),
    [("spark_engine", "Spark", "sc://127.0.0.1:1"), ("trino_engine", "Trino", "http://auditord@127.0.0.1:1/asked")],
)
def test_a_cluster_that_is_not_there_is_said(module: str, name: str, url: str, tmp_path: Path) -> None:
    if name == "Spark":
        pytest.importorskip("pyspark")
    table = asked_lake(tmp_path)
    engine: Engine = getattr(lake_module(module), name)(url)
    with pytest.raises(StoreUnavailable, match=rf"lake\.{name.lower()} \("):
        asyncio.run(LakeReader(table, None, engine).aggregate(CORES))
    table.close()
