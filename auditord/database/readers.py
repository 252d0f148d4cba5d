"""Reading from SQLite: threads and connections for short queries, and long answers read page by page."""

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from ctypes import CDLL
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Generic, LiteralString, NamedTuple, TypeAlias, TypeVar, TypeVarTuple, Unpack

from auditord.database.connections import as_unavailable, open_for_reading
from auditord.errors import StoreDamaged, StoreUnavailable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PAGE_BYTES: Final = 128 * 1024
"""The size after which a page of texts ends. With the size of the largest text it bounds the memory of an answer."""


class Page(NamedTuple, Generic[T]):
    """A page of rows.

    Args:
        rows: the rows in order; may be empty.
        is_last: whether no rows follow. It is known without reading ahead.
    """

    rows: list[T]
    is_last: bool


async def following(page: Page[T], read: Callable[[], Awaitable[Page[T]]]) -> AsyncGenerator[list[T], None]:
    """Yield the rows of a page and of the following pages, which are read on demand; no list is empty."""
    while True:
        if page.rows:
            yield page.rows
        if page.is_last:
            return
        page = await read()


_Call: TypeAlias = tuple[Callable[[], Any], "asyncio.Future[Any]"]  # Any: calls of all types wait together


class Threads:
    """A pool of threads for an event loop. Threads start on demand; the last idle one is used first.

    Each thread has a queue. The threads of :class:`concurrent.futures.ThreadPoolExecutor` share one; in Python 3.11, a
    thread that wakes up there also wakes the next idle one, which costs as much as a short query.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most: Final = most
        self._name: Final = name
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle: list[SimpleQueue[_Call | None]] = []
        self._waiting: deque[_Call] = deque()
        self._closed = False

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a function in a thread, in the order of the calls.

        Cancelling the future prevents a call that has not started.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._idle:
                self._idle.pop().put((work, future))
            elif len(self._threads) < self._most:
                calls: SimpleQueue[_Call | None] = SimpleQueue()
                calls.put((work, future))  # not an argument, because the thread would keep that alive
                # A daemon thread, so that it does not keep a failing process alive.
                thread = threading.Thread(target=self._work, args=(calls,), name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
            else:
                self._waiting.append((work, future))
        return future

    def close(self) -> None:
        """Finish all calls and end the threads; blocks."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for calls in idle:
            calls.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, calls: SimpleQueue[_Call | None]) -> None:
        call = calls.get()
        while call is not None:
            call = self._do(*call, calls)
            call = call or calls.get()  # releases the finished call before it waits

    def _do(
        self, work: Callable[[], T], future: "asyncio.Future[T | None]", calls: SimpleQueue[_Call | None]
    ) -> _Call | None:
        """Run a function unless its future is cancelled; return a waiting call, or None if this thread is now idle."""
        outcome, fault, following = None, None, None
        if not future.cancelled():
            try:
                outcome = work()
            except BaseException as error:  # noqa: BLE001 passed on to the future
                fault = error
        with self._lock:  # first, so that this thread is idle when the waiter makes its next call
            if self._waiting:
                following = self._waiting.popleft()
            elif self._closed:
                calls.put(None)
            else:
                self._idle.append(calls)
        with suppress(RuntimeError):  # the loop is closed
            future.get_loop().call_soon_threadsafe(_settle, future, outcome, fault)
        del future, outcome, fault  # the traceback of a fault refers to this frame, a cycle
        return following


def _settle(future: "asyncio.Future[T | None]", outcome: T | None, fault: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if fault is None:
        future.set_result(outcome)
    else:
        future.set_exception(fault)


Query: TypeAlias = tuple[LiteralString, Sequence[object] | Mapping[str, object]]
"""The text of a query and its parameters."""
MakeQuery: TypeAlias = Callable[[sqlite3.Connection], Query]
"""Makes a query, after short reads in the same snapshot if needed."""

_MOST_IDLE: Final = 8  # connections; more are opened when needed and closed after use


_LONG: Final = 20_000
"""Characters of a query after which its connection is not used again: connections keep a hundred compiled queries, and
one of a megabyte takes 40 MB."""


def take_page(cursor: sqlite3.Cursor, most: int) -> Page[Any]:  # Any: columns of all types
    rows = cursor.fetchmany(most)
    return Page(rows, len(rows) < most)


class ConnectionPool:
    """Connections for reading. The last one used is reused first, because its cache is warm."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> sqlite3.Connection:
        """Return an idle connection or a new one. The caller must give it back."""
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"The database {self.path} is closed.")
            if self._idle:
                return self._idle.pop()
        return open_for_reading(self.path)

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Keep a connection for reuse, or close it."""
        with self._lock:
            if not self._closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def run(self, work: Callable[[sqlite3.Connection, Unpack[Ts]], T], *args: *Ts) -> T:
        """Run a function on a connection of the pool, in this thread, within one snapshot."""
        connection = self.take()
        try:
            connection.execute("BEGIN")
            return work(connection, *args)
        except sqlite3.Error as error:
            if (fault := as_unavailable(error, self.path)) is not None:
                raise fault from error
            raise
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self.give_back(connection)

    def close(self) -> None:
        """Close idle connections; those in use are closed when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class Snapshot(Generic[T]):
    """The answer to one query as of its start, read page by page.

    An open cursor keeps the answer consistent: a record that is closed meanwhile is neither lost nor doubled. In
    return, the write-ahead log grows until the cursor is closed; see :class:`Snapshots`.

    :meth:`page` runs in reader threads, one call at a time. :meth:`abandon` may be called from any thread.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        make: MakeQuery,
        take: Callable[[sqlite3.Cursor], Page[T]],
        began: float,
    ) -> None:
        self.began = began
        self._pool = pool
        self._make = make
        self._take = take
        self._cursor: sqlite3.Cursor | None = None
        self._state = threading.Lock()
        self.is_long = False
        self._reading = False
        self._abandoned: StoreUnavailable | None = None

    def page(self) -> Page[T]:
        """Read the next page.

        Raises:
            StoreUnavailable: the database is unavailable, or this answer was abandoned.
        """
        with self._state:
            if self._abandoned is not None:
                raise self._abandoned
            self._reading = True
        try:
            return self._take(self._open())
        except sqlite3.Error as error:
            if (fault := as_unavailable(error, self._pool.path)) is not None:
                raise fault from error
            raise
        finally:
            self._stop_reading()

    def abandon(self, reason: StoreUnavailable) -> None:
        """Free the connection. A running query is interrupted; later pages raise the reason."""
        with self._state:
            self._abandoned = self._abandoned or reason
            if not self._reading:
                self._release()
            elif self._cursor is not None:
                self._cursor.connection.interrupt()

    def _stop_reading(self) -> None:
        with self._state:
            self._reading = False
            if self._abandoned is not None:
                self._release()
                raise self._abandoned

    def _open(self) -> sqlite3.Cursor:
        if self._cursor is None:
            cursor = self._pool.take().cursor()
            with self._state:
                self._cursor = cursor
                if self._abandoned is not None:
                    raise self._abandoned
            cursor.execute("BEGIN")
            query, parameters = self._make(cursor.connection)
            self.is_long = len(query) > _LONG
            cursor.execute(query, parameters)
            cursor.connection.execute("COMMIT")  # the query keeps its snapshot until it ends
        return self._cursor

    def _release(self) -> None:
        if self._cursor is not None:
            connection = self._cursor.connection
            self._cursor.close()
            self._cursor = None
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if self.is_long:
                connection.close()
            else:
                self._pool.give_back(connection)


AnySnapshot = Snapshot[Any]  # Any: answers of all types


class Snapshots:
    """All open answers of one database, so that a slow reader cannot make the write-ahead log grow without limit.

    The log can be reset only when no answer needs an old snapshot. Once it is larger than ``most_log`` bytes, answers
    older than ``patience`` seconds are abandoned. Their readers get an error, never a truncated answer.
    """

    def __init__(self, path: Path, clock: Callable[[], float], *, most_log: int, patience: float) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._clock = clock
        self._most_log = most_log
        self._patience = patience
        self.open: set[AnySnapshot] = set()

    def begin(self, pool: ConnectionPool, make: MakeQuery, take: Callable[[sqlite3.Cursor], Page[T]]) -> Snapshot[T]:
        """Open an answer; :meth:`end` must be called for it."""
        snapshot = Snapshot(pool, make, take, self._clock())
        self.open.add(snapshot)
        return snapshot

    def end(self, snapshot: AnySnapshot) -> None:
        """Close an answer and free its connection."""
        self.open.discard(snapshot)
        snapshot.abandon(StoreUnavailable(f"The answer from {self._path} was abandoned by its reader."))

    def end_all(self) -> None:
        """Abandon every answer, because the database is being closed."""
        for snapshot in list(self.open):
            snapshot.abandon(StoreUnavailable(f"The database {self._path} is closed."))

    def relieve_log(self) -> None:
        """Abandon old answers if the log is too large. The writer's thread calls this after each commit."""
        if not self.open:
            return
        try:
            size = self._log.stat().st_size
        except OSError:  # no log yet, or no permission
            return
        if size <= self._most_log:
            return
        reason = StoreUnavailable(
            f"The answer was read too slowly: the log of {self._path} could not be emptied meanwhile, and has more "
            f"than {self._most_log} bytes. Request less, or read faster."
        )
        for snapshot in list(self.open):
            if self._clock() - snapshot.began > self._patience:
                snapshot.abandon(reason)


def _give_back_memory() -> None:
    """Return freed memory to the system. The C library keeps up to 64 MB for each thread that compiled long queries."""
    if (trim := getattr(CDLL(None), "malloc_trim", None)) is not None:  # only glibc has it
        trim(0)


def _fetch(
    connection: sqlite3.Connection, make: Callable[[Any], T], query: str, parameters: Sequence[object]
) -> list[T]:
    return [make(row) for row in connection.execute(query, parameters)]


class Readers:
    """The threads that read: some for short queries, others for pages of long answers, so that neither is delayed.

    Pages are read in the order of their requests. An answer uses a thread only while a page is read, so a slow client
    costs others nothing.

    Args:
        damaged: called if the file is found to be damaged.
    """

    def __init__(self, path: Path, snapshots: Snapshots, damaged: Callable[[StoreDamaged], None] | None) -> None:
        self._path = path
        self._snapshots = snapshots
        self._damaged = damaged
        self._pool = ConnectionPool(path)
        self._queries = Threads(4, f"query of {path.name}")
        self._pages = Threads(8, f"pages of {path.name}")
        self._closed = False

    async def read(self, work: Callable[[sqlite3.Connection, Unpack[Ts]], T], *args: *Ts) -> T:
        """Run a short function that only reads, within one snapshot that includes all earlier commits."""
        return await self._in_thread(self._queries, lambda: self._pool.run(work, *args))

    async def rows(self, make: Callable[[Any], T], query: str, *parameters: object) -> list[T]:  # Any: a row
        """Return the rows of a short query, converted by ``make`` in the reading thread."""
        return await self.read(_fetch, make, query, parameters)

    @asynccontextmanager
    async def stream(
        self, make: MakeQuery, take: Callable[[sqlite3.Cursor], Page[T]]
    ) -> AsyncGenerator[AsyncIterator[list[T]], None]:
        """Yield the answer to a query page by page, as of the moment when the context is entered.

        Pages are read on demand, so a page bounds the memory and a slow reader slows only itself. (If it is slow while
        the log exceeds its limit, it gets an error instead of the next page; see :class:`Snapshots`.)

        Args:
            make: makes the query, in a reader's thread.
            take: reads the next page from the cursor, in a reader's thread.
        """
        snapshot = self._snapshots.begin(self._pool, make, take)
        read = partial(self._in_thread, self._pages, snapshot.page)
        try:
            async with aclosing(following(await read(), read)) as pages:
                yield pages
        finally:
            self._snapshots.end(snapshot)
            if snapshot.is_long and not self._closed:
                self._pages.run(_give_back_memory)

    def stop(self) -> None:
        """Refuse further reads and end open answers."""
        self._closed = True
        self._snapshots.end_all()

    def close(self) -> None:
        """Finish running calls and close every idle connection; blocks."""
        self._queries.close()
        self._pages.close()
        self._pool.close()

    async def _in_thread(self, threads: Threads, call: Callable[[], T]) -> T:
        if self._closed:
            raise StoreUnavailable(f"The database {self._path} is closed.")
        try:
            return await threads.run(call)
        except StoreDamaged as damage:
            if self._damaged is not None:
                self._damaged(damage)
            raise
