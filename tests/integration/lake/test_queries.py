"""Sums over a lake are those of the stores that sync there, whatever is asked; and nobody waits for them in vain."""

# pyiceberg's classes get their signatures while they are made; mypy checks the rest.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import Mock, patch

import pytest
from msgspec.structs import replace

from auditord.errors import StoreUnavailable
from auditord.lake import engines
from auditord.lake.duckdb_engine import DuckDb, EngineLimits, LakeUnreadable
from auditord.lake.positions import POSITIONS
from auditord.lake.queries import LakeReader
from auditord.lake.table import LakeTable
from auditord.store.aggregates_sql import CompiledAggregate
from auditord.store.dialects import Sql
from auditord_hookspecs import AggregateQuery, ComponentUsage, MetaValue, RecordQuery
from auditord_hookspecs.query import AllOf, MetaContains
from tests.integration.lake.asked_lake import (
    BY_DAEMON,
    asked_lake,
    check_listings,
    check_sums,
    listed,
)
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
    check_sums({daemon: reader(lake, daemon, tmp_path) for daemon in BY_DAEMON}, lake, 60)


def test_records_equal_a_plain_evaluation(lake: LakeTable, tmp_path: Path) -> None:
    check_listings({daemon: reader(lake, daemon, tmp_path) for daemon in BY_DAEMON}, 60)


async def test_all_records_come_in_pages_and_who_leaves_early_ends_the_work(lake: LakeTable, tmp_path: Path) -> None:
    asked = reader(lake, "b", tmp_path)
    with patch.object(engines, "PAGE", 7):
        async with asked.stream(RecordQuery()) as pages:
            assert [len(page) async for page in pages] == [7] * 8 + [4]
        async with asked.stream(RecordQuery()) as pages:
            assert len(await anext(pages)) == 7
    await asyncio.to_thread(asked.close)  # waits for its threads


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
    monkeypatch.setattr(engines, "compile_aggregate", Mock(return_value=endless))
    asked = reader(lake, None, tmp_path)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await asked.aggregate(CORES)
    await asyncio.to_thread(asked.close)  # waits for its threads


def test_a_file_of_open_and_finished_records_counts_once(tmp_path: Path) -> None:
    table = asked_lake(tmp_path)
    with table.load() as lake:  # as another engine leaves it
        snapshot: Any = lake.current_snapshot()
        rows: Any = lake.scan().to_arrow()
        with lake.update_spec() as update:
            for field in lake.spec().fields:
                update.remove_field(field.name)
        lake.overwrite(rows, snapshot_properties={POSITIONS: snapshot.summary[POSITIONS]})
        assert len(list(lake.scan().plan_files())) == 1
    asked, query = reader(table, None, tmp_path), replace(CORES, as_of=EPOCH.replace(year=2030))
    answer = asyncio.run(asked.aggregate(query))
    assert replace(answer, snapshot=None) == aggregate_records(BY_DAEMON[None], query)
    assert len(asyncio.run(listed(asked, RecordQuery()))) == len(BY_DAEMON[None])
    table.close()


def test_a_copy_of_a_folder_whose_name_is_a_pattern_counts_for_nothing(tmp_path: Path) -> None:
    catalog, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/l*ke"  # as other engines may write it
    table = asked_lake(tmp_path, LakeTable({"type": "sql", "uri": catalog, "warehouse": warehouse}, warehouse))
    shutil.copytree(tmp_path / "l*ke", tmp_path / "lake")
    answer = asyncio.run(reader(table, "b", tmp_path).aggregate(CORES))
    assert replace(answer, snapshot=None) == aggregate_records(BY_DAEMON["b"], CORES)
    table.close()
