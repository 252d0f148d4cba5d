"""Threads and connections for reading: short queries, and long answers read page by page."""

import sqlite3
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, LiteralString, TypeAlias, TypeVar

from auditord.database.connections import open_for_reading
from auditord.database.faults import as_unavailable, translated
from auditord.database.pages import Page, following
from auditord.database.threads import Threads
from auditord.errors import StoreDamaged, StoreUnavailable

T = TypeVar("T")
Query: TypeAlias = tuple[LiteralString, Sequence[object] | Mapping[str, object]]
"""The text of a query, and what its placeholders stand for."""
MakeQuery: TypeAlias = Callable[[sqlite3.Connection], Query]
"""Makes a query from what it briefly reads, as of the moment that the answer is of."""

_MOST_IDLE: Final = 8  # connections; more are opened when needed and closed after use


def take_page(cursor: sqlite3.Cursor, most: int) -> Page[Any]:  # Any: columns of all types
    """The next rows of a cursor, at most so many."""
    rows = cursor.fetchmany(most)
    return Page(rows, len(rows) < most)


class ConnectionPool:
    """Reading connections; the last one used is the first one used again, its cache is warm."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> sqlite3.Connection:
        """An idle connection or a new one; it belongs to the caller until it is given back."""
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"The database {self.path} is closed.")
            if self._idle:
                return self._idle.pop()
        return open_for_reading(self.path)

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Keep a connection for the next one who asks, or close it."""
        with self._lock:
            if not self._closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do work on a connection of the pool, in the present thread; what it reads is one consistent state."""
        connection = self.take()
        try:
            with translated(self.path):
                connection.execute("BEGIN")
                return work(connection)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self.give_back(connection)

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class Snapshot(Generic[T]):
    """The answer to one query, as of the moment when it began, read page by page.

    An open cursor keeps the answer consistent: a record that is closed meanwhile is neither lost nor doubled. Its price
    is that the log grows until the cursor is closed, see :class:`Snapshots`.

    :meth:`page` runs in reader threads, one call at a time; :meth:`abandon` may be called from any thread.
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
        self._reading = False
        self._abandoned: StoreUnavailable | None = None

    def page(self) -> Page[T]:
        """The next rows.

        Raises:
            StoreUnavailable: the database is away, or this answer was abandoned.
        """
        self._start_reading()
        try:
            return self._take(self._opened())
        except sqlite3.Error as error:
            if (fault := as_unavailable(error, self._pool.path)) is not None:
                raise fault from error
            raise
        finally:
            self._stop_reading()

    def abandon(self, reason: StoreUnavailable) -> None:
        """Free the connection; later pages raise the reason. A query that is running is interrupted."""
        with self._state:
            self._abandoned = self._abandoned or reason
            if not self._reading:
                self._release()
            elif self._cursor is not None:
                self._cursor.connection.interrupt()

    def _start_reading(self) -> None:
        with self._state:
            if self._abandoned is not None:
                raise self._abandoned
            self._reading = True

    def _stop_reading(self) -> None:
        with self._state:
            self._reading = False
            if self._abandoned is not None:
                self._release()
                raise self._abandoned

    def _opened(self) -> sqlite3.Cursor:
        if self._cursor is None:
            cursor = self._pool.take().cursor()
            with self._state:
                self._cursor = cursor
                if self._abandoned is not None:  # meanwhile
                    raise self._abandoned
            cursor.execute("BEGIN")
            cursor.execute(*self._make(cursor.connection))
            cursor.connection.execute("COMMIT")  # the query goes on with what it sees, and lets go of it at its end
        return self._cursor

    def _release(self) -> None:
        if self._cursor is not None:
            connection = self._cursor.connection
            self._cursor.close()
            self._cursor = None
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._pool.give_back(connection)


AnySnapshot = Snapshot[Any]  # Any: answers of all types are looked after together


class Snapshots:
    """All open answers of one database, so that a slow reader cannot make the log grow for ever.

    The log is emptied only when nobody reads an old state. Once it is larger than ``most_log`` bytes, answers that are
    older than ``patience`` seconds are abandoned: their readers see an error, never a short answer.
    """

    def __init__(self, path: Path, clock: Callable[[], float], *, most_log: int, patience: float) -> None:
        self._path = path
        self._log = path.with_name(path.name + "-wal")
        self._clock = clock
        self._most_log = most_log
        self._patience = patience
        self.open: set[AnySnapshot] = set()

    def begin(self, pool: ConnectionPool, make: MakeQuery, take: Callable[[sqlite3.Cursor], Page[T]]) -> Snapshot[T]:
        """A new answer; :meth:`end` it."""
        snapshot = Snapshot(pool, make, take, self._clock())
        self.open.add(snapshot)
        return snapshot

    def end(self, snapshot: AnySnapshot) -> None:
        """Forget an answer and free what it holds."""
        self.open.discard(snapshot)
        snapshot.abandon(StoreUnavailable(f"The answer from {self._path} has been left."))

    def end_all(self) -> None:
        """Abandon every answer: the database is being closed."""
        for snapshot in list(self.open):
            snapshot.abandon(StoreUnavailable(f"The database {self._path} is closed."))

    def relieve_log(self) -> None:
        """Abandon old answers if the log is too large; called after each commit, in the writer's thread."""
        if not self.open or self._log_size() <= self._most_log:
            return
        reason = StoreUnavailable(
            f"The answer was read too slowly: it kept the log of {self._path} from being emptied, which has more than "
            f"{self._most_log} bytes. Ask again for less, or read faster."
        )
        for snapshot in list(self.open):
            if self._clock() - snapshot.began > self._patience:
                snapshot.abandon(reason)

    def _log_size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:  # no log yet, or a folder without permission: nothing to act on, least of all by dying
            return 0


class Readers:
    """The threads that read: some for short queries, others for pages of long answers, so that neither waits long.

    Pages are read in the order in which they are asked for; an answer that is not asked for its next page uses no
    thread, so a slow client costs others nothing.

    Args:
        path: the file.
        snapshots: the answers that are open.
        damaged: called when the file is found to be damaged.
    """

    def __init__(self, path: Path, snapshots: Snapshots, damaged: Callable[[StoreDamaged], None] | None) -> None:
        self._path = path
        self._snapshots = snapshots
        self._damaged = damaged
        self._pool = ConnectionPool(path)
        self._queries = Threads(4, f"query of {path.name}")
        self._pages = Threads(8, f"pages of {path.name}")
        self._closed = False

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do work that only reads, and briefly, on one consistent state; what is committed before is seen."""
        return await self._in_thread(self._queries, lambda: self._pool.run(work))

    @asynccontextmanager
    async def stream(
        self, make: MakeQuery, take: Callable[[sqlite3.Cursor], Page[T]]
    ) -> AsyncGenerator[AsyncIterator[list[T]], None]:
        """The answer to a query, page by page, as of the moment when the context is entered.

        A page is read when it is asked for, so memory is bounded by the page and a slow reader slows only itself. (One
        that is slow for long while the log outgrows its limit gets an error instead of its next page, see
        :class:`Snapshots`.)

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

    def stop(self) -> None:
        """Let nobody read any more, and end the answers that are open."""
        self._closed = True
        self._snapshots.end_all()

    def close(self) -> None:
        """Finish what is running and close every idle connection; blocks."""
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
