"""One database on a PostgreSQL server: connections that come back after faults, and answers that stream."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import anyio
import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from auditord.database.postgres.address import Address
from auditord.database.postgres.engines import refuse_shared_sessions
from auditord.database.postgres.faults import as_unavailable, translated
from auditord.database.postgres.migrations import require_current
from auditord.database.postgres.silence import WRITE_WITHIN, Silence
from auditord.database.postgres.sockets import limited, require_open
from auditord.database.sql_files import Script
from auditord.errors import SchemaMismatch, StoreMismatch, StoreUnavailable, plain_errors

Connection: TypeAlias = AsyncConnection[TupleRow]
_Pool: TypeAlias = AsyncConnectionPool[Connection]

PATIENCE: Final = 5.0
"""Seconds that a statement may wait for a connection: a restart of the server passes unnoticed."""

IMPATIENCE: Final = 0.2
"""The same once the server is known to be away: new posts should be in the spool soon."""

ANSWER_WITHIN: Final = 30.0
"""Seconds that short work may take; then its connection is cut, since the server (or the network) hangs."""

PREPARE_WITHIN: Final = 600.0
"""Seconds for a statement that may have to read every record, once."""

READER_PATIENCE: Final = 30.0
"""Seconds that a long answer may wait until another one ends."""

_RECONNECT: Final = 4.0
"""Seconds for which the pool tries by itself; then the next one who asks makes it try again."""

_SETTINGS: Final = """
SELECT
    set_config('TimeZone', 'UTC', false),
    set_config('statement_timeout', %s, false),
    set_config('idle_in_transaction_session_timeout', '60s', false),
    set_config('jit', 'off', false),
    -- A transaction that is overtaken looks again, and must see what that one has done.
    set_config('default_transaction_isolation', 'read committed', false),
    -- A client that is gone is noticed in the middle of a long query.
    set_config('client_connection_check_interval', '5s', false),
    -- A client whose host or network is gone without a word is noticed in seconds, too, not in two hours.
    set_config('tcp_keepalives_idle', '10', false),
    set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '3', false),
    set_config('tcp_user_timeout', %s, false),
    set_config('default_transaction_read_only', %s, false),
    -- Acknowledged writes must survive a power cut; stricter settings, for standbys, stay.
    CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false) END
"""


class _Limits(NamedTuple):
    """Time limits of a session.

    Args:
        statement: for one statement; 0 for none.
        unacknowledged: for data sent by the server and not acknowledged by the client's host; 0 for the system's.
    """

    statement: str
    unacknowledged: str


_SHORT: Final = _Limits("25s", "20s")
_LONG: Final = _Limits("0", "0")  # a reader that is slow on purpose takes nothing for minutes, and is not gone
_OWN: Final = _Limits("0", "20s")

_PLACE: Final = """
SELECT
    pg_postmaster_start_time(), (SELECT oid FROM pg_database WHERE datname = current_database()),
    to_regnamespace('auditord')
"""
"""Others for a server that was started again, and for a database or a schema that was put in the place of another."""

_log: Final = logging.getLogger(__name__)

Prepare: TypeAlias = Callable[[Connection], Awaitable[None]]


class Server:
    """Connections to one database, in two pools: for short statements, and for long answers to slow readers.

    While the server is away every call raises :class:`StoreUnavailable`, and connections are made again once the
    server is back. A schema that is not exactly this version's sets :attr:`refused`, whenever a connection finds it.

    Attributes:
        refused: why the database must not be used, once a connection has found that.

    Args:
        address: where it is.
        scripts: the migrations that make its schema.
        prepare: called with the first connection, and with the first one after the server was away or started again,
            when it may be another database; may refuse it with SchemaMismatch or StoreMismatch.
        probe: writes something and commits it, as changes do.
        read_only: nothing may be written.
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
        self._prepared: TupleRow | None = None  # which server and database
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
        """Begin to connect; returns once a connection is there.

        Raises:
            SchemaMismatch: the schema is not this version's.
            StoreMismatch: ``prepare`` says so.
            StoreUnavailable: the server does not answer; it is tried again.
        """
        # What it says about each attempt is said once, here.
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
        await self._short.open()
        await self._long.open()
        with plain_errors():
            async with anyio.create_task_group() as group:
                group.start_soon(self._raise_refusal)
                async with self.connection():
                    group.cancel_scope.cancel()

    async def _raise_refusal(self) -> None:
        """Raise the reason as soon as the database is refused: the pool would keep trying."""
        await self.refusal.wait()
        if self.refused is not None:
            raise self.refused

    async def close(self) -> None:
        """Close every connection; those in use when they are given back."""
        await self.silence.close()
        await self._short.close()
        await self._long.close()

    def connection(self, within: float | None = ANSWER_WITHIN) -> AbstractAsyncContextManager[Connection]:
        """A connection for short work, in autocommit mode; it is cut after ``within`` seconds."""
        self.silence.refuse()
        return self._any_connection(within)

    async def _probe_once(self) -> None:
        async with self._any_connection(WRITE_WITHIN) as connection:
            await self._probe(connection)

    @asynccontextmanager
    async def _any_connection(self, within: float | None) -> AsyncGenerator[Connection, None]:
        with translated(self.where):
            connection = await self._take(self._short, PATIENCE)
            with limited(connection, within):
                try:
                    yield connection
                finally:
                    await _give_back(self._short, connection)

    @asynccontextmanager
    async def reader(self) -> AsyncGenerator[Connection, None]:
        """A connection for a long answer; its work may take as long as its reader likes."""
        with translated(self.where, reading=True):
            connection = await self._take(self._long, self._patience)
            try:
                yield connection
            finally:
                with limited(connection, ANSWER_WITHIN):
                    await _give_back(self._long, connection)

    @asynccontextmanager
    async def own_connection(self) -> AsyncGenerator[Connection, None]:
        """A connection outside the pools, without a time limit; it takes no place in a pool."""
        with translated(self.where):
            connection = await AsyncConnection.connect(autocommit=True, **self._address.parameters())
            try:
                await self._greet(connection, _OWN)
                yield connection
            finally:
                with anyio.CancelScope(shield=True):  # its locks end with it, for those who are cancelled, too
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
        with limited(connection, ANSWER_WITHIN):
            await connection.execute(_SETTINGS, (*limits, "on" if self._read_only else "off"))
            with self._noting_refusal():
                await require_current(connection, self._scripts, self.where)
            place = await (await connection.execute(_PLACE)).fetchone()
        async with self._preparing:
            if self._prepared != place:
                with limited(connection, PREPARE_WITHIN), self._noting_refusal():
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
            raise self._unavailable() from error
        if self._away:
            self._away = False
            _log.warning("the database %s is back", self.where)
        return connection

    def _unavailable(self) -> StoreUnavailable:
        if self._fault is None:
            return StoreUnavailable(
                f"All connections to the database {self.where} are busy: raise store.pool_size, or look at what the "
                "server does."
            )
        if not self._away:
            self._away, self._prepared = True, None
            _log.warning("the database %s is away: %s", self.where, self._fault)
        return as_unavailable(self._fault, self.where)

    def _note_attempt(self, fault: Exception | None) -> None:
        self._fault = fault


def _noting(note: Callable[[Exception | None], None], address: Address) -> type[Connection]:
    """A class of connections to the address that notifies of every attempt; the pool keeps reasons to itself."""

    class NotingConnection(AsyncConnection[Any]):  # Any: rows are tuples, unless a cursor says otherwise
        @classmethod
        async def connect(cls, *arguments: Any, **options: Any) -> Any:  # Any: handed on unchanged
            try:
                connection = await super().connect(*arguments, **{**options, **address.parameters()})
            except psycopg.Error as error:
                note(error)
                raise
            note(None)
            return connection

    return NotingConnection


async def _give_back(pool: _Pool, connection: Connection) -> None:
    # One that is not given back is missing for ever, so this is done even for those who are cancelled.
    with anyio.CancelScope(shield=True):
        await pool.putconn(connection)
