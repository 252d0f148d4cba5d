"""A record that is released at the same time as something else happens is in one of both places, and counts once."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
import msgspec
import psycopg
import pytest

from auditord.database.postgres import Connection
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.opening import open_store
from auditord.store.postgres.driver import run
from auditord.store.releasing import release
from auditord.store.rollups.cells import FIRST_DAY
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, Record, RecordQuery
from tests.contract.store.feeds import settled
from tests.lake_in_memory import MemoryLake, snapshot, synced

pytestmark = pytest.mark.anyio

START = datetime(2024, 2, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)
SENT = Provenance(START + HOUR, "task:slurm")
SAME_RUN = Duplicates.SAME_RUN
MOVING = "job-0"
WAITING = """
SELECT count(*)
FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def job(number: int) -> Record:
    return Record(f"job-{number}", START, (Component("Cores", 8, ()),), START + HOUR)


@pytest.fixture
async def opened(new_postgres_url: Callable[[], str]) -> AsyncGenerator[tuple[RecordStore, Connection], None]:
    """A store whose first record can be released, and a connection to the same database."""
    url = new_postgres_url()
    async with (
        open_store(url, counted_keys=()) as store,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        await store.add(job(0), SENT, SAME_RUN)
        yield store, connection


@asynccontextmanager
async def moved(store: RecordStore, connection: Connection) -> AsyncGenerator[None, None]:
    """Inside, the record is released in a transaction that has not been committed yet."""
    store.lake = lake = MemoryLake()
    await store.catch_up()
    copies = lake.marked(await synced(store, [MOVING]), 1)
    async with connection.transaction():
        assert await run(connection, release(copies, 0, snapshot(1))) == 1
        yield


async def blocked(store_url: str) -> None:
    """Wait until a session of the database waits for another one."""
    async with await psycopg.AsyncConnection.connect(store_url, autocommit=True) as connection:
        while await (await connection.execute(WAITING)).fetchone() == (0,):  # noqa: ASYNC110 the server's sessions
            await asyncio.sleep(0.01)


async def texts(store: RecordStore) -> int:
    async with store.stream(RecordQuery()) as pages:
        return len([document async for page in pages for document in page])


async def one(store: RecordStore) -> Verdict:
    return await store.add(job(0), SENT, SAME_RUN)


async def few(store: RecordStore) -> Verdict:
    return (await store.add_all([job(0), job(1)], SENT, SAME_RUN, atomic=False))[0]


async def many(store: RecordStore) -> Verdict:
    return (await store.add_all([job(number) for number in range(300)], SENT, SAME_RUN, atomic=True))[0]


@pytest.mark.parametrize(("add", "stored"), [(one, 0), (few, 1), (many, 299)])
async def test_it_is_known_whatever_adds_it(
    opened: tuple[RecordStore, Connection], add: Callable[[RecordStore], Awaitable[Verdict]], stored: int
) -> None:
    store, connection = opened
    async with moved(store, connection):
        adding = asyncio.ensure_future(add(store))
        await blocked(connection.info.dsn)
    assert await adding is Verdict.SAME
    assert (await texts(store), (await store.lake_state()).records) == (stored, 1)
    assert (await store.counts()).total == stored + 1
    assert [(row.record_id, row.release) for row in await store.find_released([MOVING])] == [(MOVING, 1)]


async def test_it_is_known_to_a_plan_that_had_not_seen_it(opened: tuple[RecordStore, Connection]) -> None:
    """The record comes and is released while a plan for it waits, which has seen neither."""
    store, connection = opened
    other = msgspec.structs.replace(job(0), components=())
    await connection.execute("CREATE TEMPORARY TABLE kept AS SELECT * FROM auditord.records")
    await connection.execute("DELETE FROM auditord.records")
    async with connection.transaction():
        await connection.execute("INSERT INTO auditord.records SELECT * FROM kept")
        await connection.execute("DELETE FROM auditord.records")
        await connection.execute(
            "INSERT INTO auditord.released (record_id, start_time, stop_time, content, release, position)"
            " SELECT record_id, start_time, stop_time, content, 1, position FROM kept"
        )
        adding = asyncio.ensure_future(store.add_all([job(0), other], SENT, SAME_RUN, atomic=False))
        await blocked(connection.info.dsn)
    assert await adding == [Verdict.SAME, Verdict.DIFFERENT]


async def keep_by_project(store: RecordStore) -> None:
    store.rollups.keep_by(["project"])


async def start_over(store: RecordStore) -> None:
    await store.rollups.start_over()


@pytest.mark.parametrize(("begin", "key"), [(keep_by_project, "project"), (start_over, None)])
async def test_cells_that_are_begun_meanwhile_leave_its_day_to_the_lake(
    opened: tuple[RecordStore, Connection], begin: Callable[[RecordStore], Awaitable[None]], key: str | None
) -> None:
    """Else they would claim to have its day, and lack it for ever."""
    store, connection = opened
    async with moved(store, connection):
        beginning = asyncio.ensure_future(begin(store))
        with anyio.fail_after(10):
            await blocked(connection.info.dsn)
    await beginning
    await settled(store)
    await store.rollups.fold()
    (filled_from,) = [each.filled_from for each in await store.rollups.sets() if each.key == key]
    assert filled_from > FIRST_DAY
