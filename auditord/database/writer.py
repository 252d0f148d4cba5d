"""The one thread that writes, with greedy group commit.

Whatever waits when the thread is free becomes one transaction, each piece of work in a savepoint of its own: many
callers share one sync of the disk, and nobody waits for a timer. What a caller is told is told after the commit.
"""

import asyncio
import queue
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from auditord.database.faults import as_unavailable
from auditord.errors import StoreDamaged, StoreUnavailable

T = TypeVar("T")

_LARGEST_GROUP: Final = 1_000  # works; bounds how long the first one waits for the last one's turn


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    """One piece of work, and where its outcome goes."""

    work: Callable[[sqlite3.Connection], T]
    future: "asyncio.Future[T]"
    result: T | None = None
    error: BaseException | None = None

    def settle(self) -> None:
        """Tell the caller, unless it has left (its work is done all the same)."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # None only where T is None


class _TransactionLost(Exception):
    """The whole transaction is gone, with what others had done in it."""


_AnyJob = _Job[Any]  # Any: the queue mixes results of all types


class Writer:
    """Owns the connection that writes.

    Args:
        connection: used by the writer's thread alone, until :meth:`join` closes it.
        path: the file, for messages.
        after_commit: called in the thread after each transaction.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, after_commit: Callable[[], None]) -> None:
        self._connection = connection
        self._path = path
        self._after_commit = after_commit
        self._jobs: queue.SimpleQueue[_AnyJob | None] = queue.SimpleQueue()
        self._closed = False
        self._damage: StoreDamaged | None = None
        # A daemon thread: a process that dies of an error is not kept alive by it; what was answered is on the disk.
        self._thread = threading.Thread(target=self._run, name=f"writer of {path.name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Queue work for the next transaction; the future is resolved after the commit.

        Cancelling the future takes nothing back: the work is done, nobody is told.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(StoreUnavailable(f"The database {self._path} is closed."))
        elif self._damage is not None:
            future.set_exception(StoreDamaged(str(self._damage)))
        else:
            self._jobs.put(_Job(work, future))
        return future

    def give_up(self, damage: StoreDamaged) -> None:
        """Write nothing more, since the file is damaged: it could only get worse."""
        self._damage = self._damage or damage

    def stop(self) -> None:
        """Take no more work. Call it where :meth:`submit` is called, so that nothing slips in behind."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)

    def join(self) -> None:
        """Block until what was queued is done, then close the connection; to be called when no reader is open any more.

        The last connection to be closed puts the log into the file, and one that only reads cannot.
        """
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        open_ = True
        while open_:
            group, open_ = self._next_group()
            if group:
                self._commit(group)
                _settle(group)
                self._after_commit()

    def _next_group(self) -> tuple[list[_AnyJob], bool]:
        group: list[_AnyJob] = []
        job = self._jobs.get()
        try:
            while job is not None and len(group) < _LARGEST_GROUP:
                group.append(job)
                job = self._jobs.get_nowait()
        except queue.Empty:
            return group, True
        if job is not None:  # the group is full
            group.append(job)
        return group, job is not None

    def _commit(self, group: list[_AnyJob]) -> None:
        try:
            self._roll_back()  # nothing, unless the disk failed the last attempt
            self._connection.execute("BEGIN IMMEDIATE")
            for job in group:
                self._do(job)
            self._connection.execute("COMMIT")
        except (sqlite3.Error, _TransactionLost) as error:
            self._fail(group, error)

    def _do(self, job: _AnyJob) -> None:
        self._connection.execute("SAVEPOINT work")
        try:
            job.result = job.work(self._connection)
        except BaseException as error:  # not swallowed: it is handed to the one who waits
            job.error = as_unavailable(error, self._path) or error
            if isinstance(job.error, StoreDamaged):
                self.give_up(job.error)
            if not self._connection.in_transaction:  # SQLite rolls everything back when a disk is full
                raise _TransactionLost(str(error)) from error
            self._connection.execute("ROLLBACK TO work")
        self._connection.execute("RELEASE work")

    def _fail(self, group: list[_AnyJob], error: Exception) -> None:
        with suppress(sqlite3.Error):  # tried again before the next transaction
            self._roll_back()
        fault = as_unavailable(error.__cause__ or error, self._path)
        if isinstance(fault, StoreDamaged):
            self.give_up(fault)
        for job in group:
            if job.error is None:
                job.error = fault or StoreUnavailable(f"The database {self._path} could not commit: {error}.")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _settle(group: list[_AnyJob]) -> None:
    # One wake-up per event loop and transaction: waking a loop costs more than a small insert.
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[_AnyJob]] = defaultdict(list)
    for job in group:
        by_loop[job.future.get_loop()].append(job)
    for loop, jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle_here, jobs)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _settle_here(jobs: list[_AnyJob]) -> None:
    for job in jobs:
        job.settle()
