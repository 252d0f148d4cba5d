"""The record store in one SQLite file."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace
from typing_extensions import override

from auditord.database import Database
from auditord.database.connections import open_for_reading
from auditord.database.memory import HeldTurn, Occasion, SqliteMemory, sqlite_memory
from auditord.database.migrations import load_migrations, require_current
from auditord.database.readers import PAGE_BYTES, Page, Query, take_page
from auditord.store.aggregates import Folding, Overflow, Row
from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.conditions import can_be_there, compile_query
from auditord.store.counting import read_counts, set_counted_keys, unread_values
from auditord.store.dialects import Sql, StoreDialect
from auditord.store.feed import begin_outbox
from auditord.store.lake import Released
from auditord.store.planning import Outcome
from auditord.store.protocol import Difference, RecordCounts
from auditord.store.releasing import read_released
from auditord.store.rollups.scope import FEW_TO_SORT, Scope, find_rolled_part, have_few, have_totals, users_wanted
from auditord.store.rows import Bulk
from auditord.store.sqlite.dialect import (
    SqliteDialect,
    SumOfShares,
    other_times,
    perhaps_of,
)
from auditord.store.sqlite.driver import QUERIES, change_in_bulk, make_changes, record_values, run
from auditord.store.store import Recognise, RecordStore, Sums, difference, refuse_unfinished_copy
from auditord.store.work import Work, atomic
from auditord_hookspecs import AggregateQuery, RecordQuery
from auditord_hookspecs.query import AnyOf, Condition, Leaf, MetaContains, MetaContainsAny, SortField, fold

T = TypeVar("T")

MIGRATIONS: Final = "auditord.store.sqlite.migrations"

_ROWS_AT_ONCE: Final = 64
_SUMS_AT_ONCE: Final = 1_000


class SqliteRecordStore(RecordStore):
    """Implements :class:`auditord.store.store.RecordStore` on one file. Make one with :meth:`open`."""

    def __init__(self, database: Database, *, keeps_rollups: bool = False) -> None:
        """Use :meth:`open`."""
        super().__init__(database.gathering(make_changes), SqliteDialect(), keeps_rollups=keeps_rollups)
        self._database = database

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        counted_keys: Sequence[str] = (),
        outbox: bool = False,
        recognise: Recognise | None = None,
    ) -> "SqliteRecordStore":
        """Open or create the file, migrate it, and start to count newly configured keys.

        Args:
            path: the file; its folder must exist.
            counted_keys: meta keys whose values :meth:`counts` has.
            outbox: whether senders forward the changes by clients; see :meth:`RecordStore.outbox`.
            recognise: returns work that raises StoreMismatch if it is not the expected store.

        Raises:
            SchemaMismatch: the file is another program's, or newer than this version.
            StoreMismatch: it is not the expected store.
            StoreUnavailable: it cannot be opened or written.
        """
        database = Database.open(path, MIGRATIONS)
        store = cls(database, keeps_rollups=True)
        try:
            await store._read(refuse_unfinished_copy(path))
            if recognise is not None:
                await store._read(await recognise())
            await store._write(atomic(lambda: set_counted_keys(counted_keys, others_too=False)))
            if outbox:
                await store._write(atomic(begin_outbox))
            store.rollups.wake()
        except BaseException:
            await store.close()
            raise
        return store

    @classmethod
    def open_read_only(cls, path: Path) -> "SqliteRecordStore":
        """Open a file for reading, beside a daemon that may be writing it.

        Raises:
            SchemaMismatch: the file is another program's, newer, or older and not migrated yet.
            StoreUnavailable: it does not exist or cannot be opened.
        """
        with closing(open_for_reading(path)) as connection:
            require_current(connection, load_migrations(MIGRATIONS), path)
            run(connection, refuse_unfinished_copy(path))
        return cls(Database.open_read_only(path, MIGRATIONS))

    @classmethod
    async def open_beside(cls, path: Path) -> "SqliteRecordStore":
        """Open another process's file, to read records and to read and write plugins' state, without migrating it.

        Raises:
            SchemaMismatch: the file is another program's, newer, or older and not migrated yet.
            StoreUnavailable: it does not exist, or cannot be opened or written.
        """
        await cls.open_read_only(path).close()
        return cls(Database.open(path, MIGRATIONS))

    @asynccontextmanager
    async def _stream(
        self, query: RecordQuery
    ) -> AsyncGenerator[tuple[AsyncIterator[Sequence[bytes]], Released], None]:
        released = [Released()]

        def make(connection: sqlite3.Connection) -> Query:
            if query.released:
                released[0] = run(connection, read_released())
            return _compile(connection, query).to_query()

        async with self._database.stream(make, _take_documents) as pages:
            yield pages, released[0]

    @override
    async def counts(self) -> RecordCounts:
        return await self._read(read_counts(None, self._dialect))

    @asynccontextmanager
    @override
    async def differences(self) -> AsyncGenerator[AsyncIterator[Difference], None]:
        async with (
            self._database.stream(lambda _: (QUERIES["list_differences"], ()), _take_differences) as pages,
            aclosing(each async for page in pages for each in page) as differences,
        ):
            yield differences

    @override
    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[SqliteMemory]:
        del occasion  # one daemon uses the file
        return sqlite_memory(self._database, task, waiting)

    @override
    async def turns(self) -> Sequence[HeldTurn]:
        return ()

    @override
    async def check(self) -> None:
        """Write as much as a large record takes, and delete it again."""
        await self._database.write(_probe)

    @override
    async def close(self) -> None:
        await self.rollups.close()
        await self._origins.wait()
        await self._database.close()

    async def _submit_bulk(self, bulk: Bulk) -> Sequence[Outcome]:
        # Values are made here, so that the writer's thread holds the interpreter lock less and others can run.
        values = [each async for part in bulk.parts(bulk.records) for each in record_values(part)]
        return await self._database.write(change_in_bulk, bulk, values)

    async def _write(self, work: Work[T], *, is_long: bool = False) -> T:
        del is_long  # it sets network timeouts, which SQLite does not need
        return await self._database.write(run, work)

    async def _read(self, work: Work[T]) -> T:
        return await self._database.read(run, work)

    async def _sum_up(self, query: AggregateQuery, dialect: StoreDialect, *, from_cells: bool) -> Sums:
        made: list[tuple[Folding, Released, Scope | None]] = []

        def fold(cursor: sqlite3.Cursor) -> Page[Row]:  # runs in a reader's thread, since thousands of groups take long
            page = take_rows(cursor)
            made[0][0].add(page.rows)
            return page

        def make(connection: sqlite3.Connection) -> Query:
            rolled = run(connection, find_rolled_part(query)) if from_cells else None
            has_totals = (rolled is not None and rolled.has_removals) or run(connection, have_totals())
            if has_totals and query.window is not None:  # only then, since it expires all prepared statements
                connection.create_aggregate("sum_of_shares", 5, SumOfShares)
            compiled = compile_aggregate(query, dialect, rolled, has_totals=has_totals)
            scope = None if rolled is None else rolled.scope
            made.append((Folding(query, compiled.parts), run(connection, read_released()), scope))
            return compiled.statement.to_query()

        with noticing_overflow():
            async with self._database.stream(make, fold) as pages:
                async for _ in pages:
                    pass
        folding, released, scope = made[0]
        return Sums(await asyncio.to_thread(folding.result), released, scope)


def take_rows(cursor: sqlite3.Cursor) -> Page[Row]:
    """Return the next rows of an aggregate's statement.

    Raises:
        Overflow: a sum did not fit 64 bits.
    """
    page: Page[Row] = take_page(cursor, _SUMS_AT_ONCE)
    if any(float in map(type, row) for row in page.rows):
        raise Overflow
    return page


@contextmanager
def noticing_overflow() -> Generator[None, None, None]:
    """Turn SQLite's "integer overflow" error within the context into :class:`Overflow`."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if str(error) != "integer overflow":
            raise
        raise Overflow from error


def _compile(connection: sqlite3.Connection, query: RecordQuery) -> Sql:
    """Compile a query, choosing a plan by the number of records that it may match."""
    if has_none(connection, query.where):
        query = replace(query, where=AnyOf())
    users = users_wanted(query) if query.order.field is SortField.START else ()  # other orders have an index with users
    if bool(users) and run(connection, have_few(users, query.limit)):
        return compile_query(query, SqliteDialect(), perhaps_of(users), few=True)
    few, times = False, other_times(query)
    if times is not None:  # an index on the time that is not the order's may find few records
        count = f"SELECT count(*) FROM (SELECT 1 FROM records WHERE {times.sql} LIMIT %s)"  # noqa: S608 literals
        ((found,),) = connection.execute(*Sql(count, (*times.parameters, FEW_TO_SORT)).to_query()).fetchall()
        few = found < FEW_TO_SORT
    return compile_query(query, SqliteDialect(), few=few)


def has_none(connection: sqlite3.Connection, where: Condition) -> bool:
    """Return whether the counts show that no record meets a condition, because none has the values that it requires.

    Return False if the counts do not tell. No index has the values, so this saves a scan of all records. A key that is
    counted since records were released lacks those of them that have been recalled.
    """
    _, _, _, released_in, *_ = connection.execute(QUERIES["read_lake"]).fetchone()
    if released_in:
        return False
    positions: Mapping[str, int] = dict(connection.execute(QUERIES["list_counted_keys"]).fetchall())
    return fold(where, lambda leaf: _is_unknown(connection, leaf, positions), any, all)


def _is_unknown(connection: sqlite3.Connection, leaf: Leaf, positions: Mapping[str, int]) -> bool:
    match leaf:
        case MetaContains(key, value):
            values: Sequence[str] = (value,)
        case MetaContainsAny(key, values):
            pass
        case _:
            return False
    if key not in positions or not all(map(can_be_there, values)):
        return False
    if connection.execute(
        QUERIES["has_count"], {"key": key, "values": msgspec.json.encode(values).decode()}
    ).fetchone():
        return False
    unread = run(connection, unread_values(key, positions[key], SqliteDialect()))
    return {value for value, _ in unread}.isdisjoint(values)


def _probe(connection: sqlite3.Connection) -> None:
    connection.execute(QUERIES["fill_probe"])
    connection.execute(QUERIES["empty_probe"])


def _take_documents(cursor: sqlite3.Cursor) -> Page[bytes]:
    taken: list[bytes] = []
    size, is_last = 0, False
    while size < PAGE_BYTES and not is_last:
        rows = cursor.fetchmany(_ROWS_AT_ONCE)
        is_last = len(rows) < _ROWS_AT_ONCE
        documents = [document for (document,) in rows]
        size += sum(map(len, documents))
        taken += documents
    return Page(taken, is_last)


def _take_differences(cursor: sqlite3.Cursor) -> Page[Difference]:
    rows, is_last = take_page(cursor, _ROWS_AT_ONCE)
    return Page(list(map(difference, rows)), is_last)
