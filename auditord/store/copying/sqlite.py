"""A record store in SQLite as an end of a copy.

A command has nothing else to do meanwhile, so its thread may wait for the disk.
"""

import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from auditord.database.connections import open_for_reading, open_for_writing, set_up_writer
from auditord.database.faults import translated
from auditord.database.migrations import load_migrations, migrate, refuse_foreign, require_current
from auditord.database.queries import load_queries
from auditord.store.copying.sides import AT_ONCE, TABLES, CopyRefused, Kept, Row, Source, numbered
from auditord.store.rows import from_micros, to_micros
from auditord.store.sources import Sources
from auditord.store.sqlite.driver import record_values, run
from auditord.store.sqlite.store import MIGRATIONS
from auditord.store.work import Work

T = TypeVar("T")

QUERIES: Final = load_queries("auditord.store.sqlite", "copying.sql")

_NUMBERED: Final = [table.name for table in TABLES if table.numbered is not None]


@asynccontextmanager
async def sqlite_source(path: Path) -> AsyncGenerator["SqliteEnd", None]:
    """A file as it is now, whoever writes to it meanwhile.

    Raises:
        CopyRefused: it is itself an unfinished copy.
        SchemaMismatch: it is another program's, or of another version.
        StoreUnavailable: it cannot be read.
    """
    with closing(open_for_reading(path)) as connection, translated(path):
        require_current(connection, load_migrations(MIGRATIONS), path)
        connection.execute("BEGIN")
        end = SqliteEnd(connection, path)
        if (unfinished := await end.unfinished()) is not None:  # the first look begins the snapshot
            raise CopyRefused(f"{path} holds a part of {unfinished} from an interrupted copy")
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


class SqliteEnd:
    """Implements :class:`auditord.store.copying.sides.Source` and :class:`auditord.store.copying.sides.Target`.

    Args:
        connection: of a source inside a transaction, of a target outside.
        path: the file.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.where = str(path)
        self._connection = connection

    async def count(self) -> int:
        """See :class:`Source`."""
        return self._number("count_records")

    async def page(self, after: str) -> Sequence[Kept]:
        """See :class:`Source`."""
        return [
            Kept(record_id, document, content, from_micros(received_at), _moment(updated_at), principal, agent)
            for record_id, document, content, received_at, updated_at, principal, agent in self._connection.execute(
                QUERIES["read_records"], (after, AT_ONCE)
            )
        ]

    async def rows(self, name: str) -> AsyncIterator[Sequence[Row]]:
        """See :class:`Source`."""
        times = next((table.times for table in TABLES if table.name == name), ())
        cursor = self._connection.execute(QUERIES[f"read_{name}"])
        while rows := cursor.fetchmany(AT_ONCE):
            yield [
                tuple(_moment(value) if place in times else value for place, value in enumerate(row)) for row in rows
            ]

    async def last_numbers(self) -> Mapping[str, int]:
        """See :class:`Source`."""
        return {name: self._number("last_number", name) for name in _NUMBERED}

    async def unfinished(self) -> str | None:
        """See :class:`Target`."""
        row = self._connection.execute(QUERIES["unfinished"]).fetchone()
        return None if row is None else str(row[0])

    async def is_empty(self) -> bool:
        """See :class:`Target`."""
        return bool(self._number("is_empty"))

    async def begin(self, source: str) -> None:
        """See :class:`Target`."""
        self._connection.execute(QUERIES["begin_copy"], (source,))

    async def write(self, added: Sequence[Kept], removed: Sequence[str]) -> None:
        """See :class:`Target`."""
        with _transaction(self._connection):
            self._connection.executemany(QUERIES["remove_record"], [(record_id,) for record_id in removed])
            # What is looked up is of this transaction: it is remembered no longer.
            pending = await numbered(Sources(self._look_up), added)
            updated = [None if kept.updated_at is None else to_micros(kept.updated_at) for kept in added]
            rows = [(*values, at) for values, at in zip(record_values(pending), updated, strict=True)]
            self._connection.executemany(QUERIES["write_record"], rows)

    async def _look_up(self, make: Callable[[], Work[T]]) -> T:
        return run(self._connection, make())

    async def refill(self, source: Source) -> None:
        """See :class:`Target`."""
        with _transaction(self._connection):
            await self._write_all("sources", source)
            for table in TABLES:
                self._connection.execute(QUERIES[f"empty_{table.name}"])
                await self._write_all(table.name, source)
            for name, number in (await source.last_numbers()).items():
                self._connection.execute(QUERIES["forget_last_number"], (name,))
                self._connection.execute(QUERIES["set_last_number"], (name, number))
            self._connection.execute(QUERIES["forget_counts"])
            self._connection.execute(QUERIES["forget_counted_keys"])

    async def finish(self) -> None:
        """See :class:`Target`."""
        self._connection.execute(QUERIES["finish_copy"])

    async def _write_all(self, name: str, source: Source) -> None:
        async for rows in source.rows(name):
            values = [[to_micros(value) if isinstance(value, datetime) else value for value in row] for row in rows]
            self._connection.executemany(QUERIES[f"write_{name}"], values)

    def _number(self, query: str, *parameters: str) -> int:
        return int(self._connection.execute(QUERIES[query], parameters).fetchone()[0])


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None, None, None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # else SQLite has undone everything itself
            connection.execute("ROLLBACK")
        raise


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)
