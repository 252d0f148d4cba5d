"""One SQLite file: grouped writes by one thread, and concurrent reads.

Work that arrives during a transaction is done together in the next one, and each caller gets its own outcome. So
callers share one sync of the disk, and none waits for a timer. A :class:`Batcher` gathers the work, both for the thread
that writes to an SQLite file (:class:`Writer`), where each piece of work has a savepoint, and for PostgreSQL's
connections (:mod:`auditord.store.postgres.batches`).
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar, TypeVarTuple, Unpack

from auditord.database.connections import (
    as_unavailable,
    open_for_reading,
    open_for_writing,
    set_up_writer,
    translate_errors,
)
from auditord.database.migrations import (
    find_schema_faults,
    load_migrations,
    migrate,
    refuse_foreign,
    require_current,
)
from auditord.database.readers import Readers, Snapshots
from auditord.errors import StoreDamaged, StoreUnavailable

J = TypeVar("J")
P = TypeVar("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Together: TypeAlias = Callable[[sqlite3.Connection, Sequence[P]], Sequence[T | Exception]]
"""Work on many parts at a time, which returns an outcome for each."""

LARGEST: Final = 1_000
"""The maximum number of jobs in a batch, which bounds the latency of the first."""


@dataclass(slots=True, eq=False)
class Waiting(Generic[J]):
    """A job that waits for its transaction, and the future of its outcome.

    Args:
        job: the work.
        ids: the ids of records that no other batch may change at the same time.
        future: gets the outcome; an exception is raised to the caller.
        outcome: the result or exception of the job.
    """

    job: J
    ids: Collection[str]
    future: "asyncio.Future[Any]"  # Any: outcomes of all types
    outcome: Any = None

    def settle(self) -> None:
        """Give the caller the outcome, unless it was cancelled (its work is done nevertheless)."""
        if self.future.done():
            return
        if isinstance(self.outcome, BaseException):
            self.future.set_exception(self.outcome)
        else:
            self.future.set_result(self.outcome)


def make_failed(error: Exception) -> "asyncio.Future[Any]":  # Any: outcomes of all types
    """Return the future of a job that is refused before it is queued."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


class Batcher(Generic[J]):
    """A queue of jobs that are taken in batches.

    One thread may put jobs in and another take them, unless they have ids.

    Args:
        ids_of: returns the ids that a job changes. Jobs with a common id are done one after the other, in order.
        is_alone: returns whether a job is a batch of its own.
    """

    def __init__(
        self, ids_of: Callable[[J], Collection[str]] | None = None, is_alone: Callable[[J], bool] | None = None
    ) -> None:
        self._ids_of = ids_of
        self._is_alone = is_alone
        self._waiting: deque[Waiting[J]] = deque()
        self._held: set[str] = set()  # ids of jobs that have been taken but not settled

    def put(self, job: J) -> "asyncio.Future[Any]":  # Any: outcomes of all types
        """Add a job, and return the future of its outcome. Cancelling the future does not cancel the job."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(job, () if self._ids_of is None else self._ids_of(job), future))
        return future

    def __bool__(self) -> bool:
        """Return whether any job can be taken."""
        return self.can_take()

    def can_take(self, *, only_alone: bool = False) -> bool:
        """Return whether :meth:`take` would return a job."""
        if not (self._held or only_alone):
            return bool(self._waiting)
        return any(
            self._held.isdisjoint(waiting.ids) and (self._goes_alone(waiting) or not only_alone)
            for waiting in self._waiting
        )

    def _goes_alone(self, waiting: Waiting[J]) -> bool:
        return self._is_alone is not None and self._is_alone(waiting.job)

    def take(self, *, only_alone: bool = False) -> list[Waiting[J]]:
        """Take the jobs of the next batch, in order, except those that must wait for another one with the same id.

        Args:
            only_alone: whether to take only a job that is a batch of its own.
        """
        if self._ids_of is None:
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), LARGEST))]
        batch: list[Waiting[J]] = []
        passed: list[Waiting[J]] = []
        blocked = set(self._held)
        while self._waiting and len(batch) < LARGEST:
            waiting = self._waiting.popleft()
            alone = self._goes_alone(waiting)
            if blocked.isdisjoint(waiting.ids) and not (alone and batch) and (alone or not only_alone):
                batch.append(waiting)
                if alone:
                    break
            else:
                passed.append(waiting)
                blocked.update(waiting.ids)
        if passed:
            self._waiting.extendleft(reversed(passed))
        for waiting in batch:
            self._held.update(waiting.ids)
        return batch

    def settle(self, batch: Iterable[Waiting[J]]) -> None:
        """Give the callers their outcomes, and release the ids."""
        for waiting in batch:
            self._held.difference_update(waiting.ids)
            waiting.settle()


_Part: TypeAlias = tuple[Together[Any, Any], Any]  # Any: the queue mixes work on parts of all types
_Group: TypeAlias = Sequence[Waiting[_Part]]


class _TransactionLost(Exception):
    """SQLite has rolled back the whole transaction, including the work of other jobs."""


class Writer:
    """Owns the connection that writes, and the thread that uses it.

    Args:
        connection: used only by the writer's thread, until :meth:`join` closes it.
        path: the file, for messages.
        snapshots: the open snapshots of readers.
        relieve_log: called in the thread after each transaction while there are snapshots.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        snapshots: Collection[object],
        relieve_log: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._path = path
        self._snapshots = snapshots
        self._relieve_log = relieve_log
        # The loop's thread puts jobs in and the writer's thread takes them, which needs no lock. The thread is woken
        # once for all jobs that gather until it looks. Waking it for each job would cost more than a small insert.
        self._batcher = Batcher[_Part]()
        self._wake_ups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_woken = False
        self._closed = False
        self._damage: StoreDamaged | None = None
        # A daemon thread does not keep a failing process alive. Acknowledged work is already on disk.
        self._thread = threading.Thread(target=self._run, name=f"writer of {path.name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[sqlite3.Connection, Unpack[Ts]], T], *args: *Ts) -> "asyncio.Future[T]":
        """Queue work for the next transaction. The future is resolved after the commit.

        Cancelling the future does not cancel the work.
        """
        return self._submit(lambda connection, _: [work(connection, *args)], None)

    def gathering(self, work: Together[P, T]) -> "Callable[[P], asyncio.Future[T]]":
        """Return a function that queues one part of the work. Consecutive parts in the queue are done together."""
        return partial(self._submit, work)

    def _submit(self, work: Together[P, T], part: P) -> "asyncio.Future[T]":
        if self._closed:
            return make_failed(StoreUnavailable(f"The database {self._path} is closed."))
        if self._damage is not None:
            return make_failed(StoreDamaged(str(self._damage)))
        future = self._batcher.put((work, part))
        self._wake()
        return future

    def give_up(self, damage: StoreDamaged) -> None:
        """Refuse all further writes, which could make a damaged file worse."""
        self._damage = self._damage or damage

    def stop(self) -> None:
        """Refuse further work. Call this in the thread that calls :meth:`submit`, so that no work is queued later."""
        self._closed = True
        self._wake()

    def join(self) -> None:
        """Block until all queued work is done, then close the connection. Call this after all readers are closed.

        The last connection that is closed moves the log into the file, which a reader cannot do.
        """
        self._thread.join()
        self._connection.close()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._wake_ups.put(None)

    def _run(self) -> None:
        while True:
            if not self._batcher and not self._closed:
                self._wake_ups.get()
            self._is_woken = False  # before the queue is read, so that a later job wakes the thread again
            if group := self._batcher.take():
                self._commit(group)
                # One wake-up per event loop: waking a loop costs more than a small insert.
                by_loop: defaultdict[asyncio.AbstractEventLoop, list[Waiting[_Part]]] = defaultdict(list)
                for waiting in group:
                    by_loop[waiting.future.get_loop()].append(waiting)
                for loop, jobs in by_loop.items():
                    with suppress(RuntimeError):  # the loop is closed, so no caller is waiting
                        loop.call_soon_threadsafe(self._batcher.settle, jobs)
                if self._snapshots:
                    self._relieve_log()
            elif self._closed and not self._batcher:
                return

    def _commit(self, group: _Group) -> None:
        try:
            self._roll_back()  # only if the disk failed during the last attempt
            self._connection.execute("BEGIN IMMEDIATE")
            for _, jobs in groupby(group, key=_work_of):
                self._do(list(jobs))
            self._connection.execute("COMMIT")
        except (sqlite3.Error, _TransactionLost) as error:
            with suppress(sqlite3.Error):  # tried again before the next transaction
                self._roll_back()
            fault = as_unavailable(error.__cause__ or error, self._path)
            if isinstance(fault, StoreDamaged):
                self.give_up(fault)
            lost = fault or StoreUnavailable(f"The database {self._path} could not commit: {error}.")
            for job in group:
                if not isinstance(job.outcome, BaseException):
                    job.outcome = lost

    def _do(self, jobs: _Group) -> None:
        self._connection.execute("SAVEPOINT work")
        try:
            outcomes = _work_of(jobs[0])(self._connection, [waiting.job[1] for waiting in jobs])
            for job, outcome in zip(jobs, outcomes, strict=True):
                job.outcome = outcome
        except BaseException as error:  # not swallowed: callers get it
            fault = as_unavailable(error, self._path) or error
            for job in jobs:
                job.outcome = fault
            if isinstance(fault, StoreDamaged):
                self.give_up(fault)
            if not self._connection.in_transaction:  # SQLite rolls everything back if the disk is full
                raise _TransactionLost(str(error)) from error
            self._connection.execute("ROLLBACK TO work")
        self._connection.execute("RELEASE work")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _work_of(waiting: Waiting[_Part]) -> Together[Any, Any]:  # Any: see _Part
    return waiting.job[0]


MOST_LOG: Final = 1 << 30
"""Bytes of log above which slow readers are abandoned."""

CHECKED_BYTES: Final = 32 << 20
"""Files up to this size are checked whenever they are opened for writing, which takes a tenth of a second."""

_PAGES_AT_ONCE: Final = 4_000  # 16 MiB, some milliseconds

READERS_PATIENCE: Final = 300.0
"""Seconds for which a reader is not abandoned, however large the log grows."""


class Database:
    """A file with its threads. Make one with :meth:`open` or :meth:`open_read_only`, and :meth:`close` it.

    Every method raises :class:`StoreUnavailable` if the file cannot be used at the moment. The text names the file and
    the remedy.
    """

    def __init__(self, path: Path, writer: Callable[[Snapshots], Writer] | None) -> None:
        """Use :meth:`open`."""
        self.path: Final = path
        snapshots = Snapshots(path, time.monotonic, most_log=MOST_LOG, patience=READERS_PATIENCE)
        self._writer = None if writer is None else writer(snapshots)
        self._readers = Readers(path, snapshots, None if self._writer is None else self._writer.give_up)
        self.read: Final = self._readers.read
        """Do short work that only reads."""
        self.rows: Final = self._readers.rows
        """Return the rows of a short query."""
        self.stream: Final = self._readers.stream
        """Stream the answer to a query page by page."""

    @classmethod
    def open(cls, path: Path, migrations: str) -> "Database":
        """Open the file for reading and writing, creating or migrating it if necessary.

        Args:
            path: the file; its folder must exist.
            migrations: the package that holds the ``NNNN_slug.sql`` files.

        Raises:
            SchemaMismatch: the file is another program's, or newer than this version.
            StoreDamaged: the file is damaged. Only files up to :data:`CHECKED_BYTES` are checked.
            StoreUnavailable: it cannot be opened or written.
        """
        known = load_migrations(migrations)
        connection = open_for_writing(path)
        try:
            with translate_errors(path):
                refuse_foreign(connection, known, path)
                if path.stat().st_size <= CHECKED_BYTES:
                    refuse_damaged(connection, path)
                set_up_writer(connection)
                migrate(connection, known, path)
                connection.execute(_UNDO_IN_MEMORY)
        except BaseException:
            connection.close()
            raise
        return cls(path, lambda snapshots: Writer(connection, path, snapshots.open, snapshots.relieve_log))

    @classmethod
    def open_read_only(cls, path: Path, migrations: str) -> "Database":
        """Open a file for reading, beside a daemon that may be writing it.

        Raises:
            SchemaMismatch: the file is another program's, newer, or older and not migrated yet.
            StoreUnavailable: it does not exist or cannot be opened.
        """
        connection = open_for_reading(path)
        try:
            require_current(connection, load_migrations(migrations), path)
        finally:
            connection.close()
        return cls(path, None)

    def submit(self, work: Callable[[sqlite3.Connection, Unpack[Ts]], T], *args: *Ts) -> "asyncio.Future[T]":
        """Queue work for the writer's thread without waiting for it; see :meth:`write`."""
        return self._refuse(work) if self._writer is None else self._writer.submit(work, *args)

    def gathering(self, work: Together[P, T]) -> "Callable[[P], asyncio.Future[T]]":
        """Return a function that queues one part of the work; see :meth:`Writer.gathering`."""
        return self._refuse if self._writer is None else self._writer.gathering(work)

    async def write(self, work: Callable[[sqlite3.Connection, Unpack[Ts]], T], *args: *Ts) -> T:
        """Do work in the writer's thread, given the connection and the arguments; return its result after the commit.

        All waiting work shares one transaction. If a piece of work raises, only this one is undone, and its exception
        is raised here. Work must not begin or end transactions, and must not catch SQLite's errors, except those about
        its own values. Cancelling the caller does not cancel the work.
        """
        return await self.submit(work, *args)

    async def give_room_back(self) -> None:
        """Return some of the file's free pages to the file system. Call this repeatedly."""
        if await self.read(free_pages):
            await self.write(lambda connection: give_room_back(connection, _PAGES_AT_ONCE))

    async def close(self) -> None:
        """Finish queued writes, end all readers, and close the file."""
        if self._writer is not None:
            self._writer.stop()
        self._readers.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._release)

    def _refuse(self, _part: object) -> NoReturn:
        raise StoreUnavailable(f"The database {self.path} is open for reading only.")

    def _release(self) -> None:
        self._readers.close()
        if self._writer is not None:
            self._writer.join()  # the last connection that is closed empties the log


_UNDO_IN_MEMORY: Final = "PRAGMA temp_store = MEMORY"
"""A savepoint keeps a copy of each page that is changed after it. Since ids are random, a record changes two or three.
In temporary files, these copies took two fifths of the time of a bulk. Migrations do not use this setting, since they
may sort a whole table."""


def free_pages(connection: sqlite3.Connection) -> int:
    """Return the number of free pages that can be returned to the file system."""
    (incremental,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(free) if incremental else 0


def give_room_back(connection: sqlite3.Connection, most: int) -> None:
    """Return a limited number of free pages to the file system."""
    for _ in range(min(free_pages(connection), most)):
        connection.execute("PRAGMA incremental_vacuum(1)")  # the sqlite3 module executes only one step


def refuse_damaged(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreDamaged with the first finding of SQLite's quick check, if it has any."""
    (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        text = " ".join(finding.split())
        raise StoreDamaged(
            f"The database {path} is not available: it is damaged; see `auditord database check` ({text})."
        )


def find_damage(path: Path) -> list[str]:
    """Return up to 20 faults that SQLite's full check finds in a file, which another process may be writing.

    Raises:
        StoreUnavailable: the file cannot be opened.
        SchemaMismatch: it is not an SQLite database.
    """
    try:
        with closing(open_for_reading(path)) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    except (StoreDamaged, sqlite3.DatabaseError) as error:  # StoreDamaged if not even its schema can be read
        return [str(error.__cause__ or error)]
    return [] if found == ["ok"] else found


def find_changes(path: Path, migrations: str) -> Sequence[str]:
    """Return what another program has changed in the schema of a file; see :func:`find_schema_faults`."""
    with closing(open_for_reading(path)) as connection, translate_errors(path):
        known = load_migrations(migrations)
        refuse_foreign(connection, known, path)
        return find_schema_faults(connection, known)
