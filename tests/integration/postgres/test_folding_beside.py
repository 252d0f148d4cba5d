"""Sets of cells are dropped while another daemon folds: none of its cells stays, to be counted twice."""

# pyright: reportPrivateUsage=false

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
import psycopg
import pytest

from auditord.database.postgres import Connection
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.postgres.dialect import PostgresDialect
from auditord.store.postgres.driver import run
from auditord.store.rollups.folding import fold_slices
from auditord.store.store import RecordStore
from auditord_hookspecs import AggregateQuery, Component, MetaValue, Record
from tests.contract.store.feeds import settled
from tests.contract.store.test_rollups import BY_HAND, folded, from_rollups
from tests.integration.postgres.test_released_ids import blocked

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, tzinfo=UTC)
META: Final[Mapping[str, tuple[str, ...]]] = {"site_id": ("S",), "VO": ("x",), "queue": ("long",)}
JOB = Record(
    "job", START, (Component("Cores", 8, ()), Component("Disk", 1, ())), START + timedelta(hours=1), dict(META)
)
SENT = Provenance(START, "task:slurm")


@pytest.fixture
async def opened(new_postgres_url: Callable[[], str]) -> AsyncGenerator[tuple[RecordStore, Connection], None]:
    """A store with cells of a key, and a connection to the same database."""
    url = new_postgres_url()
    async with (
        open_store(url, counted_keys=()) as store,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        store.rollups.limits = BY_HAND
        store.rollups.keep_by(["VO"])
        await folded(store)
        yield store, connection


async def start_over(store: RecordStore) -> None:
    await store.rollups.start_over()


async def keep_by_queue(store: RecordStore) -> None:
    """The number of the former key is used again."""
    store.rollups.keep_by(["queue"])


@pytest.mark.parametrize("drop", [start_over, keep_by_queue])
async def test_cells_that_another_daemon_is_about_to_commit_are_dropped(
    opened: tuple[RecordStore, Connection], drop: Callable[[RecordStore], Awaitable[None]]
) -> None:
    store, connection = opened
    async with store.rollups._folding:  # so that only the other daemon folds
        await store.add(JOB, SENT, Duplicates.SAME_RUN)
        await settled(store)
        async with connection.transaction():
            await run(connection, fold_slices(100, PostgresDialect()))
            dropping = asyncio.ensure_future(drop(store))
            with anyio.fail_after(10):
                await blocked(connection.info.dsn)
    await dropping
    await folded(store)
    for query in (AggregateQuery(by=(MetaValue("site_id"),)), AggregateQuery(by=(MetaValue("queue"),))):
        answer = await from_rollups(store, query)
        assert answer is None or [group.records for group in answer.groups] == [1]
