"""Administration of a PostgreSQL database: status and migrations."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from auditord.database.postgres.address import Address
from auditord.database.postgres.faults import translate_errors
from auditord.database.postgres.migrations import (
    Applied,
    as_script,
    list_applied,
    migrate,
    refuse_newer,
    refuse_others,
    refuse_shared_sessions,
)
from auditord.database.sql_files import Script, load_queries, load_scripts
from auditord.store.postgres.store import MIGRATIONS

_QUERIES: Final = load_queries("auditord.store.postgres", "administration.sql")


class Relation(msgspec.Struct, frozen=True):
    """A table or an index, and its size on disk in bytes."""

    name: str
    size: int


class DatabaseStatus(msgspec.Struct, frozen=True):
    """The status of a database.

    Args:
        where: server and database.
        server_version: the version that the server reports.
        applied: the migrations that have been applied.
        pending: the migrations of this version that have not.
        relations: tables and indexes by size.
        records: the number of records, from the maintained counts; None before the first migration.
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
    """Bring the schema up to date. Return the scripts that ran.

    Raises:
        SchemaMismatch: the schema is newer than this version, or the server is not supported.
        DaemonsConnected: other daemons use the database, and ``end_sessions`` is False.
        StoreUnavailable: the server does not answer, or refuses a migration.
    """
    scripts = load_scripts(MIGRATIONS)
    async with _connect(address) as connection:
        await refuse_shared_sessions(connection, address)
        return await migrate(connection, scripts, address.where, now, end_sessions=end_sessions, begins=begins)


async def refuse_daemons(address: Address) -> None:
    """Check that no other auditord is connected to a database.

    Raises:
        DaemonsConnected: another one is connected.
        StoreUnavailable: the server does not answer.
    """
    async with _connect(address) as connection:
        await refuse_others(connection, address.where)


async def pending_script(address: Address) -> str:
    """Return the pending migrations as a script for psql; an empty string if there are none.

    Raises:
        SchemaMismatch: the schema is newer than this version.
        StoreUnavailable: the server does not answer.
    """
    pending = (await database_status(address)).pending
    return as_script(pending) if pending else ""


async def database_status(address: Address) -> DatabaseStatus:
    """Return the status of a database.

    Raises:
        SchemaMismatch: the schema is newer than this version.
        StoreUnavailable: the server does not answer.
    """
    scripts = load_scripts(MIGRATIONS)
    async with _connect(address) as connection:
        done = await list_applied(connection)
        refuse_newer(len(done), scripts, address.where)
        version = connection.info.parameter_status("server_version") or ""
        relations = await (await connection.execute(_QUERIES["list_relations"])).fetchall()
        records = await (await connection.execute(_QUERIES["count_records"])).fetchone() if done else None
    sizes = [Relation(*row) for row in relations]
    count = records[0] if records else None
    return DatabaseStatus(address.where, version, done, scripts[len(done) :], sizes, count)


async def clock_offset(address: Address, now: Callable[[], datetime]) -> timedelta:
    """Return the difference of the server's clock from ours: the smallest one that our times before and after allow.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    async with _connect(address) as connection:
        before = now()
        (clock,) = await _only(connection, "read_clock")
        after = now()
    offset: timedelta = clock - before if clock < before else max(clock - after, timedelta(0))
    return offset


async def oldest_writer(address: Address) -> str | None:
    """Describe the oldest writing transaction, in any database of the server, if it is older than a minute.

    Consumers of the feed cannot read records that were stored after it began.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    async with _connect(address) as connection:
        found = await _only(connection, "oldest_writer")
    return str(found[0]) if found else None


async def _only(connection: AsyncConnection[TupleRow], name: str) -> TupleRow:
    row = await (await connection.execute(_QUERIES[name])).fetchone()
    return row or ()


@asynccontextmanager
async def _connect(address: Address) -> AsyncGenerator[AsyncConnection[TupleRow], None]:
    with translate_errors(address.where):
        connection = await AsyncConnection.connect(autocommit=True, **address.parameters())
        async with connection:
            yield connection
