"""A record store in PostgreSQL as an end of a copy."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from itertools import chain
from typing import Final, LiteralString, TypeVar

from psycopg import AsyncConnection, AsyncServerCursor

from auditord.database.instants import to_micros
from auditord.database.postgres import Connection
from auditord.database.postgres.address import Address
from auditord.database.postgres.faults import translated
from auditord.database.postgres.migrations import is_of_first_release, migrate, require_current
from auditord.database.sql_files import load_queries, load_scripts
from auditord.store.columns import POSTGRES_LISTS
from auditord.store.copying.endpoints import AT_ONCE, CopiedRecord, End, Row, numbered
from auditord.store.postgres.copied_rows import BEGIN, END, CopiedRows, timestamptz
from auditord.store.postgres.dialect import PostgresDialect
from auditord.store.postgres.driver import run
from auditord.store.postgres.store import MIGRATIONS
from auditord.store.sources import Sources
from auditord.store.work import Work

T = TypeVar("T")

QUERIES: Final = load_queries("auditord.store.postgres", "copying.sql", lists=POSTGRES_LISTS)

_SETTINGS: Final = """
SELECT
    set_config('TimeZone', 'UTC', false), set_config('statement_timeout', '0', false),
    set_config('idle_in_transaction_session_timeout', '0', false)
"""


@asynccontextmanager
async def postgres_source(address: Address) -> AsyncGenerator["PostgresEnd", None]:
    """A database at one moment, even while it is being written.

    Raises:
        CopyRefused: it is itself an unfinished copy.
        SchemaMismatch: its schema is not this version's.
        StoreUnavailable: the server does not answer.
    """
    async with _connected(address) as connection:
        is_first_release = await is_of_first_release(connection)
        if not is_first_release:
            await require_current(connection, load_scripts(MIGRATIONS), address.where)
        async with connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            end = PostgresEnd(connection, address.where, is_first_release=is_first_release)
            await end.refuse_unfinished()  # the first look begins the snapshot
            yield end


@asynccontextmanager
async def postgres_target(address: Address, now: Callable[[], datetime]) -> AsyncGenerator["PostgresEnd", None]:
    """A database to be filled; its tables are made if there are none.

    Raises:
        SchemaMismatch: its schema is newer, or the server too old.
        StoreUnavailable: the server does not answer, or does not allow it.
    """
    async with _connected(address) as connection:
        await migrate(connection, load_scripts(MIGRATIONS), address.where, now)
        yield PostgresEnd(connection, address.where)


@asynccontextmanager
async def _connected(address: Address) -> AsyncGenerator[Connection, None]:
    with translated(address.where):
        async with await AsyncConnection.connect(autocommit=True, **address.parameters()) as connection:
            await connection.execute(_SETTINGS)
            yield connection


class PostgresEnd(End):
    """A database, through a connection that is of a source inside a transaction, of a target outside."""

    schema = "auditord."
    dialect = PostgresDialect()

    def __init__(self, connection: Connection, where: str, *, is_first_release: bool = False) -> None:
        super().__init__(where, QUERIES, is_first_release=is_first_release)
        self._connection = connection
        self._sources = Sources(self._look_up)

    async def run(self, work: Work[T]) -> T:
        """Do work on the store."""
        return await run(self._connection, work)

    async def exported_snapshot(self) -> str:
        """The name by which other sessions see the same moment, as long as the transaction of a source lasts."""
        ((name,),) = await self._rows("SELECT pg_export_snapshot()", {})
        return str(name)

    async def _rows(self, query: LiteralString, parameters: Mapping[str, object]) -> Sequence[Row]:
        cursor = await self._connection.execute(query, parameters)
        return await cursor.fetchall() if cursor.description else ()

    async def _stream(self, query: LiteralString, times: Collection[int]) -> AsyncIterator[Sequence[Row]]:
        del times  # the driver knows them
        async with AsyncServerCursor(self._connection, "rows") as cursor:
            await cursor.execute(query)
            while rows := await cursor.fetchmany(AT_ONCE):
                yield rows

    async def _write_rows(self, query: LiteralString, rows: Sequence[Row]) -> None:
        async with self._connection.cursor() as cursor:
            await cursor.executemany(query, rows)

    async def _write_records(self, added: Sequence[CopiedRecord]) -> None:
        pending = await numbered(self._sources, added)
        rows, updated = CopiedRows(further=1).rows(pending), map(_updated, added)
        async with self._connection.cursor() as cursor, cursor.copy(QUERIES["write_records"]) as copy:
            await copy.write(b"".join((BEGIN, *chain.from_iterable(zip(rows, updated, strict=True)), END)))

    def _transaction(self) -> AbstractAsyncContextManager[object]:
        return self._connection.transaction()


def _updated(kept: CopiedRecord) -> bytes:
    return timestamptz(None if kept.updated_at is None else to_micros(kept.updated_at))
