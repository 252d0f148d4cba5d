"""A record store in SQLite as an end of a copy.

A command has nothing else to do meanwhile, so its thread may wait for the disk.
"""

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import datetime
from pathlib import Path
from typing import Final, LiteralString, TypeVar

from auditord.database.connections import open_for_reading, open_for_writing, set_up_writer, translated
from auditord.database.instants import from_micros, to_micros
from auditord.database.migrations import is_of_first_release, load_migrations, migrate, refuse_foreign, require_current
from auditord.database.sql_files import load_queries
from auditord.store.columns import SQLITE_LISTS
from auditord.store.copying.endpoints import AT_ONCE, CopiedRecord, End, Row, numbered
from auditord.store.sources import Sources
from auditord.store.sqlite.dialect import SqliteDialect
from auditord.store.sqlite.driver import named_values, run
from auditord.store.sqlite.store import MIGRATIONS
from auditord.store.work import Work

T = TypeVar("T")

QUERIES: Final = load_queries("auditord.store.sqlite", "copying.sql", lists=SQLITE_LISTS)

_RECORD_TIMES: Final = (3, 4)
"""The places of instants in a row of ``read_records``."""


@asynccontextmanager
async def sqlite_source(path: Path) -> AsyncGenerator["SqliteEnd", None]:
    """A file at one moment, even while it is being written.

    Raises:
        CopyRefused: it is itself an unfinished copy.
        SchemaMismatch: it is another program's, or of another version.
        StoreUnavailable: it cannot be read.
    """
    with closing(open_for_reading(path)) as connection, translated(path):
        is_first_release = is_of_first_release(connection)
        if not is_first_release:
            require_current(connection, load_migrations(MIGRATIONS), path)
        connection.execute("BEGIN")
        end = SqliteEnd(connection, path, is_first_release=is_first_release)
        await end.refuse_unfinished()  # the first look begins the snapshot
        yield end


@asynccontextmanager
async def sqlite_target(path: Path) -> AsyncGenerator["SqliteEnd", None]:
    """A file to be filled, which is made if there is none.

    Raises:
        SchemaMismatch: it is another program's, or newer.
        StoreUnavailable: it cannot be written.
    """
    migrations = load_migrations(MIGRATIONS)
    with closing(open_for_writing(path)) as connection, translated(path):
        refuse_foreign(connection, migrations, path)
        set_up_writer(connection, None)
        migrate(connection, migrations, path)
        yield SqliteEnd(connection, path)


class SqliteEnd(End):
    """A file, through a connection that is of a source inside a transaction, of a target outside."""

    schema = ""
    dialect = SqliteDialect()

    def __init__(self, connection: sqlite3.Connection, path: Path, *, is_first_release: bool = False) -> None:
        super().__init__(str(path), QUERIES, is_first_release=is_first_release)
        self._connection = connection

    async def page(self, after: str) -> Sequence[CopiedRecord]:
        """The records behind an id, in the order of ids; none at the end."""
        rows = await self._ask("read_records", after=after, limit=AT_ONCE)
        return [CopiedRecord(*_with_times(row, _RECORD_TIMES)) for row in rows]

    async def _rows(self, query: LiteralString, parameters: Mapping[str, object]) -> Sequence[Row]:
        return self._connection.execute(query, parameters).fetchall()

    async def _stream(self, query: LiteralString, times: Collection[int]) -> AsyncIterator[Sequence[Row]]:
        cursor = self._connection.execute(query)
        while rows := cursor.fetchmany(AT_ONCE):
            yield [_with_times(row, times) for row in rows]

    async def _write_rows(self, query: LiteralString, rows: Sequence[Row]) -> None:
        values = [[to_micros(value) if isinstance(value, datetime) else value for value in row] for row in rows]
        self._connection.executemany(query, values)

    async def _write_records(self, added: Sequence[CopiedRecord]) -> None:
        # Numbers that were looked up belong to this transaction: they are forgotten with it.
        pending = await numbered(Sources(self._look_up), added)
        updated = [None if kept.updated_at is None else to_micros(kept.updated_at) for kept in added]
        rows = [{**values, "updated_at": at} for values, at in zip(named_values(pending), updated, strict=True)]
        self._connection.executemany(QUERIES["write_record"], rows)

    async def run(self, work: Work[T]) -> T:
        """Do work on the store."""
        return run(self._connection, work)

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[None, None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # else SQLite has undone everything itself
                self._connection.execute("ROLLBACK")
            raise


def _with_times(row: Row, times: Collection[int]) -> Row:
    return [_moment(value) if place in times else value for place, value in enumerate(row)]


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
