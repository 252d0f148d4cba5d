"""Sums over a lake are those of the stores that carry there, whatever is asked; and nobody waits for them in vain."""

# pyiceberg's classes get their signatures while they are made; mypy checks the rest.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import StringType

from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.lake import asking
from auditord.lake.asking import LakeReader, LakeUnreadable
from auditord.lake.carrying import carry
from auditord.lake.engine import DuckDb, EngineLimits
from auditord.lake.table import LakeTable
from auditord.store import Duplicates, Provenance
from auditord.store.aggregates_sql import CompiledAggregate
from auditord.store.opening import open_store
from auditord.store.sql import Sql
from auditord_hookspecs import AggregateQuery, Component, ComponentUsage, MetaValue, Record, Score
from auditord_hookspecs.query import AllOf, MetaContains
from tests.contract.store.test_aggregates import QUERIES
from tests.integration.lake.killed import LOG, lake_in
from tests.summed_records import aggregate_records

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # some ten seconds together

EPOCH: Final = datetime(2024, 1, 1, tzinfo=UTC)
CORES: Final = AggregateQuery(by=(MetaValue("site_id"),), usage=(ComponentUsage("Cores"),))


def job(number: int) -> Record:
    """A record in a small world, in which the queries of the contract's property find something."""
    day = (-40, -1, 0, 0, 1, 31, 400)[number % 7]
    start = EPOCH + timedelta(day, number % 5 - 2, (0, 0, 1, 999_999)[number % 4])
    stop = None if number % 6 == 0 else start + timedelta(days=(0, 1, 31)[number % 3], seconds=number % 4)
    scores = (Score("HEPSPEC06", (0.1, 9.2, 1 / 3)[number % 3]), Score("hepscore23", 9.2))[: number % 3]
    components = [Component("Cores", (1, 8, 2**62)[number % 3], scores)]
    components += [Component("Cores", 8, scores[:1])] if number % 11 == 0 else []
    components += [Component("Other", number, ())] if number % 4 else []
    meta = {
        "site_id": ("xyX"[number % 3],),
        "user_id": (("x", "y", "знач")[number % 3],),
        "VO": ("x", "y")[: number % 3],
    }
    meta |= {"site": ("y",)} if number % 13 == 0 else {}
    return Record(f"{'abc'[number % 3]}{number}", start, tuple(components), stop, meta)


JOBS: Final = [job(number) for number in range(60)]


async def put(folder: Path, daemon: str, records: Sequence[Record], table: LakeTable) -> None:
    """Store records, and carry them."""
    async with open_store(f"sqlite:///{folder}/{daemon}.db", counted_keys=()) as store:
        await store.add_all(records, Provenance(EPOCH), Duplicates.SAME_RUN, atomic=True)
        await carry(store, table, daemon, LOG)


def reader(table: LakeTable, daemon: str | None, folder: Path, memory: int = 256 << 20) -> LakeReader:
    return LakeReader(table, daemon, DuckDb(EngineLimits(memory, 1, folder / "spill")))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeTable]:
    """Records of two daemons, of which one has half of the ids of the other as well."""
    folder = tmp_path_factory.mktemp("lake")
    table = lake_in(folder / "lake")
    asyncio.run(put(folder, "a", JOBS[::2], table))
    with table.loaded() as opened, opened.update_schema() as update:
        update.add_column("ours", StringType())  # the files from now on have it
    asyncio.run(put(folder, "b", JOBS, table))
    yield table
    table.close()


def test_sums_over_files_that_are_chosen_equal_a_plain_evaluation(lake: LakeTable, tmp_path: Path) -> None:
    records = {None: [*JOBS[::2], *JOBS], "a": JOBS[::2], "b": JOBS}
    readers = {daemon: reader(lake, daemon, tmp_path) for daemon in records}

    @given(query=QUERIES, daemon=st.sampled_from([None, "a", "b"]))
    @settings(deadline=None, max_examples=60)
    def check(query: AggregateQuery, daemon: str | None) -> None:
        answer = asyncio.run(readers[daemon].aggregate(query))
        assert answer.snapshot is not None
        assert answer.snapshot.number == lake.facts().snapshot_id
        assert replace(answer, snapshot=None) == aggregate_records(records[daemon], query)

    check()


async def test_a_daemon_that_has_carried_nothing_yet_is_no_empty_answer(lake: LakeTable, tmp_path: Path) -> None:
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
    monkeypatch.setattr(asking, "compile_aggregate", Mock(return_value=endless))
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
