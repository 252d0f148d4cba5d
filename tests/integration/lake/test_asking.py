"""Sums over a lake are those of the stores that sync there, whatever is asked; and nobody waits for them in vain."""

# pyiceberg's classes get their signatures while they are made; mypy checks the rest.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.lake import duckdb_engine
from auditord.lake.asking import LakeReader
from auditord.lake.duckdb_engine import DuckDb, EngineLimits, LakeUnreadable
from auditord.lake.table import LakeTable
from auditord.store.aggregates_sql import CompiledAggregate
from auditord.store.sql import Sql
from auditord_hookspecs import AggregateQuery, ComponentUsage, MetaValue
from auditord_hookspecs.query import AllOf, MetaContains
from tests.contract.store.test_aggregates import QUERIES
from tests.integration.lake.asked_lake import BY_DAEMON, asked_lake
from tests.integration.lake.killed import lake_in
from tests.summed_records import aggregate_records

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # some ten seconds together

EPOCH: Final = datetime(2024, 1, 1, tzinfo=UTC)
CORES: Final = AggregateQuery(by=(MetaValue("site_id"),), usage=(ComponentUsage("Cores"),))


def reader(table: LakeTable, daemon: str | None, folder: Path, memory: int = 256 << 20) -> LakeReader:
    return LakeReader(table, daemon, DuckDb(EngineLimits(memory, 1, folder / "spill")))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeTable]:
    table = asked_lake(tmp_path_factory.mktemp("lake"))
    yield table
    table.close()


def test_sums_over_files_that_are_chosen_equal_a_plain_evaluation(lake: LakeTable, tmp_path: Path) -> None:
    readers = {daemon: reader(lake, daemon, tmp_path) for daemon in BY_DAEMON}

    @given(query=QUERIES, daemon=st.sampled_from([None, "a", "b"]))
    @settings(deadline=None, max_examples=60)
    def check(query: AggregateQuery, daemon: str | None) -> None:
        answer = asyncio.run(readers[daemon].aggregate(query))
        assert answer.snapshot is not None
        assert answer.snapshot.number == lake.facts().snapshot_id
        assert replace(answer, snapshot=None) == aggregate_records(BY_DAEMON[daemon], query)

    check()


async def test_a_daemon_that_has_synced_nothing_yet_is_no_empty_answer(lake: LakeTable, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="no records of c yet"):
        await reader(lake, "c", tmp_path).aggregate(CORES)
    empty = lake_in(tmp_path / "empty")
    empty.open()
    with pytest.raises(StoreUnavailable, match="no records yet"):
        await reader(empty, None, tmp_path).aggregate(CORES)


async def test_an_unknown_site_is_an_empty_answer(lake: LakeTable, tmp_path: Path) -> None:
    asked = replace(CORES, where=AllOf((MetaContains("site_id", "nowhere"),)))
    answer = await reader(lake, "a", tmp_path).aggregate(asked)
    assert (answer.groups, answer.snapshot is not None) == ((), True)


async def test_too_little_memory_is_said(lake: LakeTable, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"lake\.memory"):
        await reader(lake, None, tmp_path, memory=1 << 18).aggregate(CORES)


async def test_rows_that_another_engine_has_marked_as_deleted_are_not_summed_up(
    lake: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: Any = SimpleNamespace(plan_files=lambda: [SimpleNamespace(delete_files=["rows"])])
    monkeypatch.setattr("pyiceberg.table.Table.scan", Mock(return_value=planned))  # pyiceberg writes no such files
    with pytest.raises(LakeUnreadable, match="rewrite_data_files"):
        await reader(lake, None, tmp_path).aggregate(CORES)


async def test_work_on_an_answer_that_nobody_waits_for_ends(
    lake: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = CompiledAggregate(Sql("SELECT sum(hash(a.range)) FROM range(10000000000) a, range(1000) b"), ())
    monkeypatch.setattr(duckdb_engine, "compile_aggregate", Mock(return_value=endless))
    asked = reader(lake, None, tmp_path)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await asked.aggregate(CORES)
    await asyncio.to_thread(asked.close)  # waits for its threads


async def test_files_of_an_object_store_are_refused(
    lake: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = SimpleNamespace(delete_files=(), file=SimpleNamespace(file_path="s3://bucket/lake/data/x.parquet"))
    planned: Any = SimpleNamespace(plan_files=lambda: [remote])
    monkeypatch.setattr("pyiceberg.table.Table.scan", Mock(return_value=planned))
    with pytest.raises(ConfigurationError, match="object store"):
        await reader(lake, None, tmp_path).aggregate(CORES)
