"""Administration of the database: its status, and migrations."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from auditord.database.postgres.address import Address
from auditord.database.postgres.faults import translated
from auditord.database.postgres.migrations import (
    Applied,
    applied,
    as_script,
    migrate,
    refuse_newer,
    refuse_others,
    refuse_shared_sessions,
)
from auditord.database.sql_files import Script, load_queries, load_scripts
from auditord.store.postgres.store import MIGRATIONS

_QUERIES: Final = load_queries("auditord.store.postgres", "administration.sql")


class Relation(msgspec.Struct, frozen=True):
    """A table or an index, and the bytes that it has on the disk."""

    name: str
    size: int


class DatabaseStatus(msgspec.Struct, frozen=True):
    """The status of a database.

    Args:
        where: server and database.
        server_version: as the server says it.
        applied: the migrations that it has had.
        pending: those that this version has beside them.
        relations: tables and indexes by size.
        records: how many there are, as the maintained counts say; None before the first migration.
    """

    where: str
    server_version: str
    applied: Sequence[Applied]
    pending: Sequence[Script]
    relations: Sequence[Relation]
    records: int | None


async def migrate_database(
    address: Address,
    now: Callable[[], datetime],
    *,
    end_sessions: bool = False,
    begins: Callable[[Script], None] = lambda _: None,
) -> Sequence[Script]:
    """Bring the schema up to date; returns the scripts that ran.

    Raises:
        SchemaMismatch: it is newer than this version, or the server is not supported.
        DaemonsConnected: other daemons use it; not with ``end_sessions``.
        StoreUnavailable: the server does not answer, or does not allow it.
    """
    scripts = load_scripts(MIGRATIONS)
    async with _connected(address) as connection:
        await refuse_shared_sessions(connection, address)
        return await migrate(connection, scripts, address.where, now, end_sessions=end_sessions, begins=begins)


async def refuse_daemons(address: Address) -> None:
    """Return if no other auditord is connected to a database.

    Raises:
        DaemonsConnected: one is.
        StoreUnavailable: the server does not answer.
    """
    async with _connected(address) as connection:
        await refuse_others(connection, address.where)


async def pending_script(address: Address) -> str:
    """The missing migrations for psql; nothing if there are none.

    Raises:
        SchemaMismatch: the schema is newer than this version.
        StoreUnavailable: the server does not answer.
    """
    pending = (await database_status(address)).pending
    return as_script(pending) if pending else ""


async def database_status(address: Address) -> DatabaseStatus:
    """Look at a database.

    Raises:
        SchemaMismatch: the schema is newer than this version.
        StoreUnavailable: the server does not answer.
    """
    scripts = load_scripts(MIGRATIONS)
    async with _connected(address) as connection:
        done = await applied(connection)
        refuse_newer(len(done), scripts, address.where)
        version = connection.info.parameter_status("server_version") or ""
        relations = await (await connection.execute(_QUERIES["list_relations"])).fetchall()
        records = await (await connection.execute(_QUERIES["count_records"])).fetchone() if done else None
    sizes = [Relation(*row) for row in relations]
    count = records[0] if records else None
    return DatabaseStatus(address.where, version, done, scripts[len(done) :], sizes, count)


async def clock_offset(address: Address, now: Callable[[], datetime]) -> timedelta:
    """The server's clock less ours, as little of it as is certain: it was read between two looks at ours.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    async with _connected(address) as connection:
        before = now()
        (clock,) = await _only(connection, "read_clock")
        after = now()
    offset: timedelta = clock - before if clock < before else max(clock - after, timedelta(0))
    return offset


async def oldest_writer(address: Address) -> str | None:
    """Describe the transaction that has been writing for longest, be it in another database, if that is over a minute.

    Consumers of the feed read nothing that was stored after it began.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    async with _connected(address) as connection:
        found = await _only(connection, "oldest_writer")
    return str(found[0]) if found else None


async def _only(connection: AsyncConnection[TupleRow], name: str) -> TupleRow:
    row = await (await connection.execute(_QUERIES[name])).fetchone()
    return row or ()


@asynccontextmanager
async def _connected(address: Address) -> AsyncGenerator[AsyncConnection[TupleRow], None]:
    with translated(address.where):
        connection = await AsyncConnection.connect(autocommit=True, **address.parameters())
        async with connection:
            yield connection
