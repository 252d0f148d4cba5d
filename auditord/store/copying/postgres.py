"""A record store in PostgreSQL as an end of a copy."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final

from psycopg import AsyncConnection, AsyncServerCursor

from auditord.database.postgres import Connection
from auditord.database.postgres.address import Address
from auditord.database.postgres.faults import translated
from auditord.database.postgres.migrations import migrate, require_current
from auditord.database.queries import load_queries
from auditord.database.scripts import load_scripts
from auditord.store.copying.sides import AT_ONCE, TABLES, CopyRefused, Kept, Row, Source, numbered
from auditord.store.postgres.driver import COPY_TYPES, copy_rows, run, since_2000
from auditord.store.postgres.store import MIGRATIONS
from auditord.store.rows import to_micros
from auditord.store.sources import Sources
from auditord.store.work import as_json

QUERIES: Final = load_queries("auditord.store.postgres", "copying.sql")

_NUMBERED: Final = {table.name: table.numbered for table in TABLES if table.numbered is not None}

_SETTINGS: Final = """
SELECT
    set_config('TimeZone', 'UTC', false), set_config('statement_timeout', '0', false),
    set_config('idle_in_transaction_session_timeout', '0', false)
"""


@asynccontextmanager
async def postgres_source(address: Address) -> AsyncGenerator["PostgresEnd", None]:
    """A database as it is now, whoever writes to it meanwhile.

    Raises:
        CopyRefused: it is itself an unfinished copy.
        SchemaMismatch: its schema is not this version's.
        StoreUnavailable: the server does not answer.
    """
    async with _connected(address) as connection:
        await require_current(connection, load_scripts(MIGRATIONS), address.where)
        async with connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            end = PostgresEnd(connection, address.where)
            if (unfinished := await end.unfinished()) is not None:  # the first look begins the snapshot
                raise CopyRefused(f"{address.where} holds a part of {unfinished} from an interrupted copy")
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
        async with await AsyncConnection.connect(autocommit=True, **address.parameters) as connection:
            await connection.execute(_SETTINGS)
            yield connection


class PostgresEnd:
    """Implements :class:`auditord.store.copying.sides.Source` and :class:`auditord.store.copying.sides.Target`.

    Args:
        connection: of a source inside a transaction, of a target outside.
        where: server and database.
    """

    def __init__(self, connection: Connection, where: str) -> None:
        self.where = where
        self._connection = connection
        self._sources = Sources(lambda make: run(connection, make()))

    async def count(self) -> int:
        """See :class:`Source`."""
        return int(await self._one("count_records"))

    async def page(self, after: str) -> Sequence[Kept]:
        """See :class:`Source`."""
        found = await self._connection.execute(QUERIES["read_records"], (after, AT_ONCE))
        return [Kept(*row) for row in await found.fetchall()]

    async def rows(self, name: str) -> AsyncIterator[Sequence[Row]]:
        """See :class:`Source`."""
        async with AsyncServerCursor(self._connection, f"rows_of_{name}") as cursor:
            await cursor.execute(QUERIES[f"read_{name}"])
            while rows := await cursor.fetchmany(AT_ONCE):
                yield rows

    async def last_numbers(self) -> Mapping[str, int]:
        """See :class:`Source`."""
        return {name: int(await self._one("last_number", name, column)) for name, column in _NUMBERED.items()}

    async def unfinished(self) -> str | None:
        """See :class:`Target`."""
        row = await (await self._connection.execute(QUERIES["unfinished"])).fetchone()
        return None if row is None else str(row[0])

    async def is_empty(self) -> bool:
        """See :class:`Target`."""
        return bool(await self._one("is_empty"))

    async def begin(self, source: str) -> None:
        """See :class:`Target`."""
        await self._connection.execute(QUERIES["begin_copy"], (source,))

    async def write(self, added: Sequence[Kept], removed: Sequence[str]) -> None:
        """See :class:`Target`."""
        pending = await numbered(self._sources, added)
        async with self._connection.transaction(), self._connection.cursor() as cursor:
            await cursor.execute(QUERIES["remove_records"], (as_json(removed),))
            async with cursor.copy(QUERIES["write_records"]) as copy:
                copy.set_types((*COPY_TYPES, "int8"))
                for kept, row in zip(added, copy_rows(pending), strict=True):
                    updated_at = None if kept.updated_at is None else since_2000(to_micros(kept.updated_at))
                    await copy.write_row((*row, updated_at))

    async def refill(self, source: Source) -> None:
        """See :class:`Target`."""
        async with self._connection.transaction():
            await self._write_all("sources", source)
            for table in TABLES:
                await self._connection.execute(QUERIES[f"empty_{table.name}"])
                await self._write_all(table.name, source)
            for name, number in (await source.last_numbers()).items():
                await self._one("set_last_number", name, _NUMBERED[name], number, number)
            for forget in ("forget_changes", "forget_counted_keys", "forget_counts", "count_all"):
                await self._connection.execute(QUERIES[forget])

    async def finish(self) -> None:
        """See :class:`Target`."""
        await self._connection.execute(QUERIES["finish_copy"])

    async def _write_all(self, name: str, source: Source) -> None:
        async with self._connection.cursor() as cursor:
            async for rows in source.rows(name):
                await cursor.executemany(QUERIES[f"write_{name}"], rows)

    async def _one(self, query: str, *parameters: str | int) -> int:
        row = await (await self._connection.execute(QUERIES[query], parameters)).fetchone()
        if row is None:
            raise LookupError(query)
        value: int = row[0]
        return value
