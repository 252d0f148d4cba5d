"""The record store in a PostgreSQL database."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from typing import Any, Final, LiteralString, NamedTuple, TypeVar, cast

from psycopg import AsyncRawCursor, AsyncServerCursor, capabilities
from psycopg.errors import NumericValueOutOfRange
from typing_extensions import override

from auditord.database.memory import HeldTurn, Occasion
from auditord.database.postgres import Connection, Server
from auditord.database.postgres.address import Address
from auditord.database.postgres.faults import translate_errors
from auditord.database.postgres.server import (
    ANSWER_WITHIN,
    PREPARE_WITHIN,
    READER_PATIENCE,
    WRITE_WITHIN,
    PreparedSelect,
    copy_out,
    limit_time,
)
from auditord.database.sql_files import load_scripts
from auditord.errors import SchemaMismatch, StoreMismatch
from auditord.store.aggregates import Folding, Overflow, Part, Row
from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.conditions import can_be_there, compile_query
from auditord.store.counting import read_counts, set_counted_keys
from auditord.store.dialects import Sql, StoreDialect, literal
from auditord.store.feed import begin_outbox
from auditord.store.lake import Released
from auditord.store.planning import Change, Outcome, ids_of
from auditord.store.postgres import turns
from auditord.store.postgres.batches import Batches
from auditord.store.postgres.dialect import PostgresDialect, find_tied_stop, follows_an_index, in_parts
from auditord.store.postgres.driver import QUERIES, make_changes, run
from auditord.store.postgres.turns import PostgresMemory, memory
from auditord.store.protocol import Difference, RecordCounts
from auditord.store.releasing import read_released
from auditord.store.rollups.scope import Rolled, find_rolled_part, have_few, have_totals, users_wanted
from auditord.store.rows import Bulk
from auditord.store.store import Recognise, RecordStore, Sums, difference, refuse_unfinished_copy
from auditord.store.work import Work, as_json, ask, atomic
from auditord_hookspecs import AggregateQuery, RecordQuery
from auditord_hookspecs.query import RuntimeCompares, fold

T = TypeVar("T")

MIGRATIONS: Final = "auditord.store.postgres.migrations"

_AT_ONCE: Final = 2
"""Concurrent transactions: one of gathered changes and one of a bulk, or two of bulks."""

_PREPARE_ORDER: Final = (
    "SELECT set_config('enable_sort', %s, false), set_config('enable_parallel_append', 'off', false)"
)

_GET_DOCUMENT: Final = PreparedSelect("get_document", QUERIES["get_document"].replace("%(id)s", "$1"))
_GET_DOCUMENTS: Final = PreparedSelect("get_documents", QUERIES["get_documents"].replace("%(ids)s", "$1"))

_FEW_TO_SORT: Final = 100_000
"""Sorting this many records takes some tens of megabytes."""

_ROWS_AT_ONCE: Final = 64

_SUMS_AT_ONCE: Final = 1_000
"""Rows of sums in memory at a time. An aggregate can have as many rows as records before it is refused."""

_CHECK_WITHIN: Final = 4.0  # shorter than the callers' timeouts
_BULK_WITHIN: Final = 120.0
_WRITTEN_WITHIN: Final = 1_000
"""Records that even a busy server writes within the time for one write."""


class LogPosition(NamedTuple):
    """The position of a PostgreSQL server in its write-ahead log.

    Args:
        is_replica: whether it follows another server.
        reached: the number of bytes of the log that its answers include.
        cluster: the identifier that a server shares with its replicas.
    """

    is_replica: bool
    reached: int
    cluster: int


class _Found(NamedTuple):
    """The wire text of a record, or the fact that only the lake has it."""

    document: bytes | None = None
    is_released: bool = False


class PostgresRecordStore(RecordStore):
    """Implements :class:`auditord.store.store.RecordStore` on a database that several daemons may share.

    Args:
        address: the database.
        counted_keys: meta keys whose values :meth:`counts` has; None for all that are counted.
        outbox: whether changes are kept for senders.
        read_only: whether only reading works.
        recognise: returns work that raises StoreMismatch if it is not the expected store. It runs before anything else,
            and again whenever the server comes back.
        patience: seconds that long reads wait for a connection.
    """

    def __init__(
        self,
        address: Address,
        counted_keys: Sequence[str] | None,
        *,
        outbox: bool = False,
        read_only: bool = False,
        recognise: Recognise | None = None,
        patience: float = READER_PATIENCE,
    ) -> None:
        self._recognise = recognise
        self._batches = Batches[Change | Bulk](lambda: self._server.connection(None), self._make, _AT_ONCE, ids_of)
        self._lookups = Batches[str](lambda: self._server.connection(None), self._look_up, 1, lambda _: ())
        keeps_rollups = not read_only and counted_keys is not None
        super().__init__(self._batches.submit, PostgresDialect(), keeps_rollups=keeps_rollups)
        self._shown = counted_keys
        self._has_outbox = outbox
        scripts = load_scripts(MIGRATIONS)
        self._server = Server(address, scripts, self._prepare, self._probe, read_only=read_only, patience=patience)
        self._read_only = read_only

    async def open(self) -> None:
        """Connect.

        Raises:
            SchemaMismatch: the schema is not this version's.
            StoreMismatch: it is not the expected store.
            StoreUnavailable: the server does not answer now. The store can be used, and works once the server does.
        """
        await self._server.open()
        self.rollups.wake()

    async def wait_for_refusal(self) -> SchemaMismatch | StoreMismatch:
        """Wait until a connection, perhaps hours later, finds the wrong store or schema. Return the error."""
        await self._server.refusal.wait()
        if self._server.refused is None:
            raise AssertionError("the event is set after the reason")
        return self._server.refused

    @asynccontextmanager
    async def _stream(
        self, query: RecordQuery
    ) -> AsyncGenerator[tuple[AsyncIterator[Sequence[bytes]], Released], None]:
        async with self._server.reader() as connection:
            users = users_wanted(query)
            few = bool(users) and await run(connection, have_few(users, query.limit))
            compiled = compile_query(query, PostgresDialect(), few=few)
            in_order = follows_an_index(query)
            if (
                in_order
                and query.limit is None
                and fold(query.where, lambda leaf: isinstance(leaf, RuntimeCompares), any, any)
            ):
                # If few records match by the planner's estimate, the index on long runtimes, or a parallel scan, and a
                # sort are faster.
                cursor = await connection.execute(f"EXPLAIN (FORMAT JSON) {compiled.sql}", compiled.parameters)
                ((found,),) = await cursor.fetchall()
                in_order = found[0]["Plan"]["Plan Rows"] >= _FEW_TO_SORT
            tied = find_tied_stop(query) if in_order else Sql("NULL")
            parameters = ("off" if in_order else "on", *tied.parameters)
            row = await (await connection.execute(f"{_PREPARE_ORDER}, {tied.sql}", parameters)).fetchone()
            if row is not None and row[2] is not None:
                compiled = in_parts(query, row[2])
            async with _one_moment(connection) if query.released else nullcontext():
                released = await run(connection, read_released()) if query.released else Released()
                async with copy_out(connection, compiled.sql, compiled.parameters) as pages:
                    yield pages, released

    @override
    async def get(self, record_id: str) -> bytes | None:
        if not can_be_there(record_id):  # the server would refuse it, and with it all that share the statement
            return None
        found: _Found = await self._lookups.read(record_id)
        return await super().get(record_id) if found.is_released else found.document

    @override
    async def counts(self) -> RecordCounts:
        async with self._server.connection(PREPARE_WITHIN) as connection, _one_moment(connection):
            return await run(connection, read_counts(self._shown, self._dialect))

    @asynccontextmanager
    @override
    async def differences(self) -> AsyncGenerator[AsyncIterator[Difference], None]:
        async with (
            self._server.reader() as connection,
            connection.transaction(),
            AsyncServerCursor(connection, "differences") as cursor,
            aclosing(difference(row) async for row in cursor) as differences,
        ):
            cursor.itersize = _ROWS_AT_ONCE
            await cursor.execute(QUERIES["list_differences"])
            yield differences

    @override
    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PostgresMemory]:
        return memory(self._server, task, waiting, occasion)

    @override
    async def turns(self) -> Sequence[HeldTurn]:
        async with self._server.connection(_CHECK_WITHIN) as connection:
            return await turns.list_turns(connection)

    async def position(self) -> LogPosition:
        """Return the server's position in its write-ahead log."""
        async with self._server.connection(_CHECK_WITHIN) as connection:
            (row,) = await run(connection, ask("position"))
            return LogPosition(*row)

    @override
    async def check(self) -> None:
        """Commit a row, like every addition."""
        async with self._server.connection(_CHECK_WITHIN) as connection:
            await self._probe(connection)

    @override
    async def close(self) -> None:
        await self.rollups.close()
        await self._origins.wait()
        await self._batches.close()
        await self._lookups.close()
        await self._server.close()

    async def _sum_up(self, query: AggregateQuery, dialect: StoreDialect, *, from_cells: bool) -> Sums:
        try:
            async with self._server.reader() as connection, _one_moment(connection):
                await connection.execute(QUERIES["prepare_sums"])
                rolled = await run(connection, find_rolled_part(query)) if from_cells else None
                released = await run(connection, read_released())
                # With cells, few records are read, so that the question would take longer.
                has_totals = rolled is not None or await run(connection, have_totals())
                statement, parts = await asyncio.to_thread(_compile, query, dialect, rolled, has_totals=has_totals)
                folding = Folding(query, parts)
                # A server-side cursor would not need libpq 17, but PostgreSQL never uses parallel plans for cursors.
                size = _SUMS_AT_ONCE if capabilities.has_stream_chunked() else 1
                page = list[Row]()
                async with AsyncRawCursor(connection) as cursor:
                    stream = cursor.stream(statement.sql, statement.parameters, size=size)
                    # Closing it early cancels the statement.
                    async with aclosing(cast("AsyncGenerator[Row, None]", stream)) as rows:
                        async for row in rows:
                            page.append(row)
                            if len(page) == _SUMS_AT_ONCE:
                                await asyncio.to_thread(folding.add, page)
                                page = []
                await asyncio.to_thread(folding.add, page)
        except NumericValueOutOfRange as error:
            raise Overflow from error
        answer = await asyncio.to_thread(folding.result)
        return Sums(answer, released, None if rolled is None else rolled.scope)

    def _submit_bulk(self, bulk: Bulk) -> Awaitable[Any]:  # Any: see RecordStore
        return self._batches.submit(bulk)

    async def _write(self, work: Work[T], *, is_long: bool = False) -> T:
        async with self._server.connection(_BULK_WITHIN if is_long else ANSWER_WITHIN) as connection:
            return await run(connection, work)

    async def _read(self, work: Work[T]) -> T:
        async with self._server.connection() as connection:
            return await run(connection, work)

    async def _prepare(self, connection: Connection) -> None:
        await run(connection, refuse_unfinished_copy(self._server.where))
        if self._recognise is not None:
            await run(connection, await self._recognise())
        if not self._read_only:
            await run(connection, ask("follow_cluster"))
            await run(connection, atomic(lambda: set_counted_keys(self._shown or (), others_too=True)))
            if self._has_outbox:
                await run(connection, atomic(begin_outbox))

    async def _probe(self, connection: Connection) -> None:
        await run(connection, ask("probe"))

    async def _make(
        self, connection: Connection, batch: Sequence[Change | Bulk]
    ) -> Sequence[Outcome] | Sequence[Sequence[Outcome]]:
        bulk = batch[0] if isinstance(batch[0], Bulk) else None
        within = WRITE_WITHIN * -(-len(bulk or batch) // _WRITTEN_WITHIN)
        with translate_errors(self._server.where), limit_time(connection, within, self._server.silence.notice):
            if bulk is not None:
                return [await make_changes(connection, bulk)]
            return await make_changes(connection, [each for each in batch if not isinstance(each, Bulk)])

    async def _look_up(self, connection: Connection, ids: Sequence[str]) -> Sequence[_Found]:
        with translate_errors(self._server.where, reading=True), limit_time(connection, ANSWER_WITHIN):
            if len(ids) == 1:
                rows = await _GET_DOCUMENT.rows(connection, ids[0])
            else:
                rows = await _GET_DOCUMENTS.rows(connection, as_json(ids))
        found = {record_id: _Found(document, release is not None) for record_id, document, release in rows}
        return [found.get(each.encode(), _Found()) for each in ids]


def _compile(
    query: AggregateQuery, dialect: StoreDialect, rolled: Rolled | None, *, has_totals: bool
) -> tuple[Sql, Sequence[Part]]:
    """Return the statement, with PostgreSQL's placeholders, and its parts.

    It can have megabytes and thousands of parameters. Psycopg would look for its own placeholders on the event loop.
    """
    compiled = compile_aggregate(query, dialect, rolled, has_totals=has_totals)
    first, *pieces = compiled.statement.sql.split("%s")
    numbered: list[LiteralString] = [f"${literal(str(at))}{piece}" for at, piece in enumerate(pieces, start=1)]
    return Sql("".join([first, *numbered]), compiled.statement.parameters), compiled.parts


@asynccontextmanager
async def _one_moment(connection: Connection) -> AsyncGenerator[None, None]:
    """Begin a read-only transaction in which all reads see one snapshot."""
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield
