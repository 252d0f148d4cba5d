"""Folding goes on by itself after what stopped it has ended, without any further change."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from auditord.database.postgres import Connection
from auditord.errors import StoreUnavailable
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.rollups.upkeep import FoldingLimits
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, Record

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, tzinfo=UTC)
RECORDS = [
    Record(f"job-{number}", START, (Component("Cores", 8, ()),), START + timedelta(hours=1)) for number in range(300)
]
SENT = Provenance(START, "task:slurm")


@pytest.fixture
async def opened(new_postgres_url: Callable[[], str]) -> AsyncGenerator[tuple[RecordStore, Connection], None]:
    """A store that folds soon, and a connection to the same database."""
    url = new_postgres_url()
    async with (
        open_store(url, counted_keys=()) as store,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        store.rollups.limits = FoldingLimits(quiet_seconds=0.01, behind_seconds=0.01)
        yield store, connection


async def folded_records(connection: Connection) -> int:
    rows = await connection.execute("SELECT coalesce(sum(records), 0)::int FROM auditord.rollups WHERE level = 1")
    return int((await rows.fetchall())[0][0])


async def until_folded(connection: Connection) -> None:
    async with asyncio.timeout(30):
        while await folded_records(connection) < len(RECORDS):  # noqa: ASYNC110 nothing else says that it is done
            await asyncio.sleep(0.01)


async def until_it_has_looked(store: RecordStore) -> None:
    async with asyncio.timeout(30):
        while store.rollups._next_look is None:  # noqa: ASYNC110 # pyright: ignore[reportPrivateUsage] # nothing else
            await asyncio.sleep(0)


async def test_after_an_idle_transaction_of_another_session_has_ended(opened: tuple[RecordStore, Connection]) -> None:
    store, connection = opened
    async with await psycopg.AsyncConnection.connect(connection.info.dsn) as foreign:
        await foreign.execute("SELECT pg_current_xact_id()")
        await store.add_all(RECORDS, SENT, Duplicates.SAME_RUN, atomic=True)
        await until_it_has_looked(store)
        assert await folded_records(connection) == 0
    await until_folded(connection)


async def test_after_a_fault(opened: tuple[RecordStore, Connection], monkeypatch: pytest.MonkeyPatch) -> None:
    store, connection = opened
    failures = 0
    write = store.rollups._write  # pyright: ignore[reportPrivateUsage] # a fault of the server, without a server's

    async def failing(make: Any, *, is_long: bool = False) -> Any:
        nonlocal failures
        failures += 1
        if failures <= 3:
            raise StoreUnavailable("away")
        return await write(make, is_long=is_long)

    monkeypatch.setattr(store.rollups, "_write", failing)
    await store.add_all(RECORDS, SENT, Duplicates.SAME_RUN, atomic=True)
    await until_folded(connection)
    assert failures > 3


async def test_it_does_not_look_again_once_all_is_folded(opened: tuple[RecordStore, Connection]) -> None:
    store, connection = opened
    await store.add_all(RECORDS, SENT, Duplicates.SAME_RUN, atomic=True)
    await until_folded(connection)
    async with asyncio.timeout(30):
        while store.rollups._next_look is not None or not (store.rollups._task and store.rollups._task.done()):  # noqa: ASYNC110 # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.01)
