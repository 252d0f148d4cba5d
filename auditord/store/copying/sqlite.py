"""A record store in SQLite as an end of a copy.

Reads and writes block the event loop, since a command has nothing else to do.
"""

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import datetime
from pathlib import Path
from typing import LiteralString, TypeVar

from auditord.database.connections import open_for_reading, open_for_writing, set_up_writer, translate_errors
from auditord.database.instants import to_micros
from auditord.database.migrations import load_migrations, migrate, refuse_foreign, require_current
from auditord.store.copying.endpoints import PAGE_SIZE, End, Row
from auditord.store.dialects import Sql
from auditord.store.rows import PendingRecord
from auditord.store.sqlite.dialect import SqliteDialect
from auditord.store.sqlite.driver import QUERIES, run, values_by_name
from auditord.store.sqlite.store import MIGRATIONS
from auditord.store.statements import SQLITE_WORDS
from auditord.store.work import Work

T = TypeVar("T")


@asynccontextmanager
async def sqlite_source(path: Path) -> AsyncGenerator["SqliteEnd", None]:
    """Open a file as the source of a copy, as of one moment, even while it is being written.

    Raises:
        CopyRefused: it is itself an unfinished copy.
        SchemaMismatch: it is another program's, or of another version.
        StoreUnavailable: it cannot be read.
    """
    with closing(open_for_reading(path)) as connection, translate_errors(path):
        require_current(connection, load_migrations(MIGRATIONS), path)
        connection.execute("BEGIN")
        end = SqliteEnd(connection, path)
        await end.refuse_unfinished()  # the first read fixes the snapshot
        yield end


@asynccontextmanager
async def sqlite_target(path: Path) -> AsyncGenerator["SqliteEnd", None]:
    """Open a file as the target of a copy, creating it if necessary, and migrate it.

    Raises:
        SchemaMismatch: it is another program's, or newer.
        StoreUnavailable: it cannot be written.
    """
    migrations = load_migrations(MIGRATIONS)
    with closing(open_for_writing(path)) as connection, translate_errors(path):
        refuse_foreign(connection, migrations, path)
        set_up_writer(connection)
        migrate(connection, migrations, path)
        yield SqliteEnd(connection, path)


class SqliteEnd(End):
    """An SQLite file at one end of a copy. Only the connection to a source is in a transaction."""

    words = SQLITE_WORDS
    dialect = SqliteDialect()

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        super().__init__(str(path), QUERIES)
        self._connection = connection

    async def _rows(self, query: LiteralString, parameters: Mapping[str, object]) -> Sequence[Row]:
        return self._connection.execute(query, parameters).fetchall()

    async def _stream(self, query: LiteralString) -> AsyncIterator[Sequence[Row]]:
        cursor = self._connection.execute(query)
        while rows := cursor.fetchmany(PAGE_SIZE):
            yield rows

    async def _write_rows(self, query: LiteralString, rows: Sequence[Row]) -> None:
        statement, _ = Sql(query).to_query()
        values = [[to_micros(value) if isinstance(value, datetime) else value for value in row] for row in rows]
        self._connection.executemany(statement, values)

    async def _write_records(self, added: Sequence[PendingRecord], updated: Sequence[datetime | None]) -> None:
        moments = [None if moment is None else to_micros(moment) for moment in updated]
        rows = [{**values, "updated_at": at} for values, at in zip(values_by_name(added), moments, strict=True)]
        self._connection.executemany(QUERIES["write_records"], rows)

    async def run(self, work: Work[T]) -> T:
        return run(self._connection, work)

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[None, None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # else SQLite has already rolled back
                self._connection.execute("ROLLBACK")
            raise
