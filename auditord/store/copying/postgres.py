"""A record store in PostgreSQL as an end of a copy."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from itertools import chain
from typing import Final, LiteralString, TypeVar

from psycopg import AsyncConnection, AsyncServerCursor

from auditord.database.instants import to_micros
from auditord.database.postgres import Connection
from auditord.database.postgres.address import Address
from auditord.database.postgres.faults import translate_errors
from auditord.database.postgres.migrations import migrate, require_current
from auditord.database.sql_files import load_scripts
from auditord.store.copying.endpoints import PAGE_SIZE, End, Row
from auditord.store.postgres.copied_rows import BEGIN, END, CopiedRows, timestamptz
from auditord.store.postgres.dialect import PostgresDialect
from auditord.store.postgres.driver import QUERIES, run
from auditord.store.postgres.store import MIGRATIONS
from auditord.store.rows import PendingRecord
from auditord.store.statements import POSTGRES_WORDS
from auditord.store.work import Work

T = TypeVar("T")

_SETTINGS: Final = """
SELECT
    set_config('TimeZone', 'UTC', false), set_config('statement_timeout', '0', false),
    set_config('idle_in_transaction_session_timeout', '0', false)
"""


@asynccontextmanager
async def postgres_source(address: Address) -> AsyncGenerator["PostgresEnd", None]:
    """Open a database as the source of a copy, as of one moment, even while it is being written.

    Raises:
        CopyRefused: it is itself an unfinished copy.
        SchemaMismatch: its schema is not this version's.
        StoreUnavailable: the server does not answer.
    """
    async with _connect(address) as connection:
        await require_current(connection, load_scripts(MIGRATIONS), address.where)
        async with connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            end = PostgresEnd(connection, address.where)
            await end.refuse_unfinished()  # the first read fixes the snapshot
            yield end


@asynccontextmanager
async def postgres_target(address: Address, now: Callable[[], datetime]) -> AsyncGenerator["PostgresEnd", None]:
    """Open a database as the target of a copy, and migrate it.

    Raises:
        SchemaMismatch: its schema is newer, or the server is too old.
        StoreUnavailable: the server does not answer, or refuses a migration.
    """
    async with _connect(address) as connection:
        await migrate(connection, load_scripts(MIGRATIONS), address.where, now)
        yield PostgresEnd(connection, address.where)


@asynccontextmanager
async def _connect(address: Address) -> AsyncGenerator[Connection, None]:
    with translate_errors(address.where):
        async with await AsyncConnection.connect(autocommit=True, **address.parameters()) as connection:
            await connection.execute(_SETTINGS)
            yield connection


class PostgresEnd(End):
    """A PostgreSQL database at one end of a copy. Only the connection to a source is in a transaction."""

    words = POSTGRES_WORDS
    dialect = PostgresDialect()

    def __init__(self, connection: Connection, where: str) -> None:
        super().__init__(where, QUERIES)
        self._connection = connection

    async def run(self, work: Work[T]) -> T:
        return await run(self._connection, work)

    async def export_snapshot(self) -> str:
        """Return the name of the source's snapshot, which other sessions can use until the transaction ends."""
        ((name,),) = await self._rows("SELECT pg_export_snapshot()", {})
        return str(name)

    async def _rows(self, query: LiteralString, parameters: Mapping[str, object]) -> Sequence[Row]:
        cursor = await self._connection.execute(query, parameters)
        return await cursor.fetchall() if cursor.description else ()

    async def _stream(self, query: LiteralString) -> AsyncIterator[Sequence[Row]]:
        async with AsyncServerCursor(self._connection, "rows") as cursor:
            await cursor.execute(query)
            while rows := await cursor.fetchmany(PAGE_SIZE):
                yield rows

    async def _write_rows(self, query: LiteralString, rows: Sequence[Row]) -> None:
        async with self._connection.cursor() as cursor:
            await cursor.executemany(query, rows)

    async def _write_records(self, added: Sequence[PendingRecord], updated: Sequence[datetime | None]) -> None:
        rows = CopiedRows(further=1).pending_rows(added)
        behind = [timestamptz(None if moment is None else to_micros(moment)) for moment in updated]
        async with self._connection.cursor() as cursor, cursor.copy(QUERIES["write_records"]) as copy:
            await copy.write(b"".join((BEGIN, *chain.from_iterable(zip(rows, behind, strict=True)), END)))

    def _transaction(self) -> AbstractAsyncContextManager[object]:
        return self._connection.transaction()
