"""Connections to one database on a PostgreSQL server that recover from faults, and streamed answers.

A server may accept writes but not answer, because of a full disk, a lock or a network that drops packets
(:class:`Silence`).
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, LiteralString, NamedTuple, TypeAlias
from weakref import WeakSet

import anyio
import psycopg
from psycopg import AsyncClientCursor, AsyncConnection
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import TupleRow
from psycopg.waiting import Wait
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from auditord.database.postgres.address import Address
from auditord.database.postgres.faults import as_unavailable, translate_errors
from auditord.database.postgres.migrations import refuse_shared_sessions, require_current
from auditord.database.readers import PAGE_BYTES, Page, following
from auditord.database.sql_files import Script
from auditord.errors import SchemaMismatch, StoreMismatch, StoreUnavailable, plain_errors

Connection: TypeAlias = AsyncConnection[TupleRow]
_Pool: TypeAlias = AsyncConnectionPool[Connection]

PATIENCE: Final = 5.0
"""Seconds that a statement waits for a connection, long enough for a restart of the server."""

IMPATIENCE: Final = 0.2
"""Seconds to wait once the server is known to be down, so that new posts go to the spool soon."""

ANSWER_WITHIN: Final = 30.0
"""Seconds after which the connection of short work is cut, since the server or the network hangs."""

PREPARE_WITHIN: Final = 600.0
"""Seconds for a statement that may have to read every record once."""

READER_PATIENCE: Final = 30.0
"""Seconds that a long answer waits for a connection."""

_RECONNECT: Final = 4.0
"""Seconds for which the pool tries to reconnect. After that, it tries again on the next request for a connection."""

_SETTINGS: Final = """
SELECT
    set_config('TimeZone', 'UTC', false),
    set_config('statement_timeout', %s, false),
    set_config('idle_in_transaction_session_timeout', '60s', false),
    set_config('jit', 'off', false),
    -- A transaction that loses a race reads again, and must see the changes of the winner.
    set_config('default_transaction_isolation', 'read committed', false),
    -- Notice during a long query that the client has disconnected.
    set_config('client_connection_check_interval', '5s', false),
    -- Notice within seconds, not two hours, that the host or network of the client has failed.
    set_config('tcp_keepalives_idle', '10', false),
    set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '3', false),
    set_config('tcp_user_timeout', %s, false),
    set_config('default_transaction_read_only', %s, false),
    -- Acknowledged writes must survive a power cut; keep stricter settings, for standbys.
    CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false) END
"""


class _Limits(NamedTuple):
    """Time limits of a session.

    Args:
        statement: the limit for one statement; 0 for none.
        unacknowledged: the limit for data that the client's host does not acknowledge; 0 for the system's default.
    """

    statement: str
    unacknowledged: str


_SHORT: Final = _Limits("25s", "20s")
_LONG: Final = _Limits("0", "0")  # a slow reader may read nothing for minutes
_OWN: Final = _Limits("0", "20s")

_PLACE: Final = """
SELECT
    pg_postmaster_start_time(), (SELECT oid FROM pg_database WHERE datname = current_database()),
    to_regnamespace('auditord')
"""
"""The result changes after a restart of the server, or if the database or the schema has been replaced."""

_log: Final = logging.getLogger(__name__)

Prepare: TypeAlias = Callable[[Connection], Awaitable[None]]


class Server:
    """Connections to one database, in two pools: for short statements, and for long answers to slow readers.

    While the server is down, every call raises :class:`StoreUnavailable`. Connections are made again once the server is
    back. Whenever a connection finds a schema that is not exactly this version's, it sets :attr:`refused`.

    Attributes:
        refused: the reason why the database must not be used; None unless a connection has found one.
        refusal: is set once there is a reason.

    Args:
        address: the address of the database.
        scripts: the migrations that make its schema.
        prepare: called with the first connection, and with the first one after the server was down or restarted, since
            it may then be another database. It may refuse the database with SchemaMismatch or StoreMismatch.
        probe: writes something and commits it, like changes do.
        read_only: whether writes are prevented.
        patience: seconds that a reader waits for a connection.
    """

    def __init__(
        self,
        address: Address,
        scripts: Sequence[Script],
        prepare: Prepare,
        probe: Prepare,
        *,
        read_only: bool,
        patience: float = READER_PATIENCE,
    ) -> None:
        self.where: Final = address.where
        self.refused: SchemaMismatch | StoreMismatch | None = None
        self.refusal: Final = asyncio.Event()
        self._scripts = scripts
        self._prepare = prepare
        self._prepared: TupleRow | None = None  # the result of _PLACE
        self._preparing = asyncio.Lock()
        self._read_only = read_only
        self._patience = patience
        self._away = False
        self._fault: Exception | None = None
        self._probe = probe
        self.silence: Final = Silence(self.where, self._probe_once)
        self._address = address
        self._short = self._pool(address, _SHORT)
        self._long = self._pool(address, _LONG)

    async def open(self) -> None:
        """Open the pools, and wait for the first connection.

        Raises:
            SchemaMismatch: the schema is not this version's.
            StoreMismatch: ``prepare`` raised it.
            StoreUnavailable: the server does not answer. The pools keep trying.
        """
        # The pool would log each failed attempt; this class logs an outage once.
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        await self._short.open()
        await self._long.open()
        with plain_errors():
            async with anyio.create_task_group() as group:
                group.start_soon(self._raise_refusal)
                async with self.connection():
                    group.cancel_scope.cancel()

    async def _raise_refusal(self) -> None:
        """Raise the reason as soon as the database is refused, since the pool would keep trying."""
        await self.refusal.wait()
        if self.refused is not None:
            raise self.refused

    async def close(self) -> None:
        """Close every connection. Those in use are closed when they are given back."""
        await self.silence.close()
        await self._short.close()
        await self._long.close()

    def connection(self, within: float | None = ANSWER_WITHIN) -> AbstractAsyncContextManager[Connection]:
        """Take a connection for short work, in autocommit mode. It is cut after ``within`` seconds."""
        self.silence.refuse()
        return self._any_connection(within)

    async def _probe_once(self) -> None:
        async with self._any_connection(WRITE_WITHIN) as connection:
            await self._probe(connection)

    @asynccontextmanager
    async def _any_connection(self, within: float | None) -> AsyncGenerator[Connection, None]:
        with translate_errors(self.where):
            connection = await self._take(self._short, PATIENCE)
            with limit_time(connection, within):
                try:
                    yield connection
                finally:
                    await _give_back(self._short, connection)

    @asynccontextmanager
    async def reader(self) -> AsyncGenerator[Connection, None]:
        """Take a connection for a long answer, without a time limit."""
        with translate_errors(self.where, reading=True):
            connection = await self._take(self._long, self._patience)
            try:
                yield connection
            finally:
                with limit_time(connection, ANSWER_WITHIN):
                    await _give_back(self._long, connection)

    @asynccontextmanager
    async def own_connection(self) -> AsyncGenerator[Connection, None]:
        """Open a connection outside the pools, without a time limit."""
        with translate_errors(self.where):
            connection = await AsyncConnection.connect(autocommit=True, **self._address.parameters())
            try:
                await self._greet(connection, _OWN)
                yield connection
            finally:
                with anyio.CancelScope(shield=True):  # closing releases its locks, even after a cancellation
                    await connection.close()

    def _pool(self, address: Address, limits: _Limits) -> _Pool:
        async def configure(connection: Connection) -> None:
            try:
                await self._greet(connection, limits)
            except BaseException:
                await connection.close()  # the pool would forget the connection without closing it
                raise

        return AsyncConnectionPool(
            kwargs={"autocommit": True},
            connection_class=_noting(self._note_attempt, address),
            min_size=0,
            max_size=address.connections,
            open=False,
            configure=configure,
            check=require_open,
            max_idle=300,
            reconnect_timeout=_RECONNECT,
        )

    async def _greet(self, connection: Connection, limits: _Limits) -> None:
        with limit_time(connection, ANSWER_WITHIN):
            await connection.execute(_SETTINGS, (*limits, "on" if self._read_only else "off"))
            with self._noting_refusal():
                await require_current(connection, self._scripts, self.where)
            place = await (await connection.execute(_PLACE)).fetchone()
        async with self._preparing:
            if self._prepared != place:
                with limit_time(connection, PREPARE_WITHIN), self._noting_refusal():
                    await refuse_shared_sessions(connection, self._address)
                    await self._prepare(connection)
                self._prepared = place

    @contextmanager
    def _noting_refusal(self) -> Generator[None, None, None]:
        try:
            yield
        except (SchemaMismatch, StoreMismatch) as error:
            self.refused = error
            self._fault = error
            self.refusal.set()
            raise

    async def _take(self, pool: _Pool, patience: float) -> Connection:
        try:
            connection = await pool.getconn(IMPATIENCE if self._away else patience)
        except PoolTimeout as error:
            if self._fault is None:
                raise StoreUnavailable(
                    f"All connections to the database {self.where} are busy: raise store.pool_size, or check what the "
                    "server is doing."
                ) from error
            if not self._away:
                self._away, self._prepared = True, None
                _log.warning("the database %s is unavailable: %s", self.where, self._fault)
            raise as_unavailable(self._fault, self.where) from error
        if self._away:
            self._away = False
            _log.warning("the database %s is available again", self.where)
        return connection

    def _note_attempt(self, fault: Exception | None) -> None:
        self._fault = fault


def _noting(note: Callable[[Exception | None], None], address: Address) -> type[Connection]:
    """Return a class of connections to the address that reports every attempt, since the pool hides errors."""

    class NotingConnection(AsyncConnection[Any]):  # Any: rows are tuples, unless a cursor says otherwise
        @classmethod
        async def connect(cls, *arguments: Any, **options: Any) -> Any:  # Any: passed on unchanged
            try:
                connection = await super().connect(*arguments, **{**options, **address.parameters()})
            except psycopg.Error as error:
                note(error)
                raise
            note(None)
            return connection

    return NotingConnection


async def _give_back(pool: _Pool, connection: Connection) -> None:
    # The pool would lack the connection for ever, so it is given back even after a cancellation.
    with anyio.CancelScope(shield=True):
        await pool.putconn(connection)


_COPY: Final = "COPY ({}) TO STDOUT (FORMAT csv, QUOTE E'\\x01', DELIMITER E'\\x02')"
"""JSON has no raw control characters, so with these as quote and delimiter, nothing is quoted or escaped."""


class _Left(Exception):
    """Cancels a COPY when its reader has left."""


@asynccontextmanager
async def copy_out(
    connection: Connection, sql: LiteralString, parameters: Sequence[object]
) -> AsyncGenerator[AsyncIterator[list[bytes]], None]:
    """Stream the answer to a query with one JSON column in pages, as of the moment when the context is entered.

    Rows are read from the connection on demand, so memory is bounded and a slow reader slows the server.
    Leaving the context early cancels the query.
    """

    def read() -> Awaitable[Page[bytes]]:
        return connection.wait(_page(connection.pgconn))

    cursor = AsyncClientCursor(connection)  # COPY takes no parameters, so they are quoted into its text
    try:
        async with cursor.copy(_COPY.format(sql), parameters):
            async with aclosing(following(await read(), read)) as pages:
                yield pages
            # Only an exception makes psycopg cancel the COPY. Unread rows would make the connection unusable.
            raise _Left  # noqa: TRY301 it must pass through the COPY
    except _Left:
        pass


def _page(connection: PGconn) -> PQGen[Page[bytes]]:
    """Read a page of rows from libpq, waiting only if it has none. This halves psycopg's cost per row.

    Raises:
        psycopg.Error: the server stopped before the end.
    """
    rows: list[memoryview] = []
    size = 0
    while size < PAGE_BYTES:
        length, row = connection.get_copy_data(1)
        if length > 0:
            rows.append(row)
            size += length
        elif length == 0:
            yield from _readable(connection)
        else:
            # All results must be read, else the connection could not be used again.
            failures: list[PGresult] = []
            while True:
                while connection.is_busy():
                    yield from _readable(connection)
                result = connection.get_result()
                if result is None:
                    break
                if result.status != ExecStatus.COMMAND_OK:
                    failures.append(result)
            if failures:
                raise error_from_result(failures[0])
            return Page(_strip_line_feeds(rows), is_last=True)
    return Page(_strip_line_feeds(rows), is_last=False)


class PreparedSelect:
    """A statement with one parameter, ``$1``, that each connection prepares once.

    For a single row, a cursor would take twice as much CPU time.
    """

    def __init__(self, name: str, statement: str) -> None:
        self._name = f"auditord_{name}".encode()  # psycopg's own begin with _pg3_
        self._statement = statement.encode()
        self._prepared: WeakSet[Connection] = WeakSet()

    async def rows(self, connection: Connection, parameter: str) -> list[list[bytes | None]]:
        """Return the rows, each value as text in UTF-8.

        Raises:
            psycopg.Error: the statement failed.
        """
        return await connection.wait(self._read(connection, parameter))

    def _read(self, connection: Connection, parameter: str) -> PQGen[list[list[bytes | None]]]:
        server = connection.pgconn
        if connection not in self._prepared:
            server.send_prepare(self._name, self._statement)
            _require(ExecStatus.COMMAND_OK, (yield from execute(server)))
            self._prepared.add(connection)  # also if its execution fails
        server.send_query_prepared(self._name, [parameter.encode()])
        result = _require(ExecStatus.TUPLES_OK, (yield from execute(server)))
        return [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]


def _require(status: ExecStatus, results: Sequence[PGresult]) -> PGresult:
    if results[-1].status != status:
        raise error_from_result(results[-1])
    return results[-1]


def _strip_line_feeds(rows: list[memoryview]) -> list[bytes]:
    return [bytes(row[:-1]) for row in rows]


def _readable(connection: PGconn) -> PQGen[None]:
    while not (yield Wait.R):
        pass
    connection.consume_input()


WRITE_WITHIN: Final = 5.0
"""Seconds for a write that a client waits for. AUDITOR's clients give up after 30 seconds."""

_BETWEEN_PROBES: Final = 1.0


class Silence:
    """Refuses work from a write that took too long until a probe succeeds, so that callers need not wait.

    Args:
        where: the database, for messages.
        probe: writes something, and raises StoreUnavailable if that takes too long.
    """

    def __init__(self, where: str, probe: Callable[[], Awaitable[object]]) -> None:
        self._where = where
        self._probe = probe
        self._probing: asyncio.Task[None] | None = None

    def notice(self, seconds: float) -> None:
        """Begin the silence, after a write that took more than ``seconds``."""
        if self._probing is None:
            _log.warning("the database %s does not answer a write within %.0f s: probing it", self._where, seconds)
            self._probing = asyncio.get_running_loop().create_task(self._until_it_answers())

    def refuse(self) -> None:
        """Raise StoreUnavailable if the server is silent."""
        if self._probing is not None:
            raise StoreUnavailable(
                f"The database {self._where} does not answer writes: look at the server's disk, its locks "
                "(pg_stat_activity), and the network; it is probed every second."
            )

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            with suppress(asyncio.CancelledError):
                await self._probing

    async def _until_it_answers(self) -> None:
        answers = False
        while not answers:
            await asyncio.sleep(_BETWEEN_PROBES)
            with suppress(StoreUnavailable):
                await self._probe()
                answers = True
        self._probing = None
        _log.warning("the database %s answers again", self._where)


@contextmanager
def limit_time(
    connection: AsyncConnection[TupleRow], seconds: float | None, noticed: Callable[[float], None] | None = None
) -> Generator[None, None, None]:
    """Cut the connection if the block takes longer than ``seconds``, so that callers see it as lost.

    A statement timeout does not help if the server or the network no longer answers.

    Args:
        connection: the connection that the block uses.
        seconds: the limit; None for none.
        noticed: called with the limit before the connection is cut.
    """
    if seconds is None:
        yield
        return
    alarm = asyncio.get_running_loop().call_later(seconds, _hang_up, connection, seconds, noticed)
    try:
        yield
    finally:
        alarm.cancel()


async def require_open(connection: AsyncConnection[TupleRow]) -> None:
    """Check that the server has not closed an idle connection. The server is only asked if data has arrived.

    Raises:
        psycopg.OperationalError: the server has closed it.
    """
    with _socket(connection) as probe:
        probe.setblocking(False)  # noqa: FBT003 the standard library's
        try:
            probe.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return  # the usual case
        except OSError:
            pass
    await connection.execute("")  # reads the data: the end of the connection, or only a notice


def _hang_up(connection: AsyncConnection[TupleRow], seconds: float, noticed: Callable[[float], None] | None) -> None:
    if noticed is not None:
        noticed(seconds)
    if not connection.closed:
        # The driver must close the connection, else the event loop would keep a file descriptor that may be reused.
        with _socket(connection) as other_end:
            other_end.shutdown(socket.SHUT_RDWR)


def _socket(connection: AsyncConnection[TupleRow]) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))
