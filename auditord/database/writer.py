"""The one thread that writes, with greedy group commit.

Whatever waits when the thread is free becomes one transaction, each piece of work in a savepoint of its own: many
callers share one sync of the disk, and nobody waits for a timer. Outcomes are given after the commit.
"""

import asyncio
import queue
import sqlite3
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from auditord.database.faults import as_unavailable
from auditord.errors import StoreDamaged, StoreUnavailable

P = TypeVar("P")
T = TypeVar("T")

_LARGEST_GROUP: Final = 1_000  # works; bounds how long the first one waits for the last one's turn


Together: TypeAlias = Callable[[sqlite3.Connection, Sequence[P]], Sequence[T | Exception]]
"""Work on many parts at a time, with an outcome for each."""


@dataclass(slots=True, eq=False)
class _Job:
    """One part of a piece of work, and the future of its outcome."""

    work: Together[Any, Any]  # Any: the queue mixes parts and outcomes of all types
    part: Any
    future: "asyncio.Future[Any]"
    outcome: Any = None


class _TransactionLost(Exception):
    """The whole transaction is gone, with what others had done in it."""


class Writer:
    """Owns the connection that writes.

    Args:
        connection: used by the writer's thread alone, until :meth:`join` closes it.
        path: the file, for messages.
        snapshots: of those who read, at present.
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
        # The loop's thread appends and the writer's takes away, which needs no lock. The thread is woken once for all
        # jobs that gather until it looks: waking it for each would cost more than a small insert.
        self._jobs: deque[_Job | None] = deque()
        self._wake_ups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_woken = False
        self._closed = False
        self._damage: StoreDamaged | None = None
        # A daemon thread: a process that dies of an error is not kept alive by it; what was answered is on the disk.
        self._thread = threading.Thread(target=self._run, name=f"writer of {path.name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Queue work for the next transaction; the future is resolved after the commit.

        Cancelling the future takes nothing back: the work is done, and the outcome dropped.
        """
        return self._submit(lambda connection, _: [work(connection)], None)

    def gathering(self, work: Together[P, T]) -> "Callable[[P], asyncio.Future[T]]":
        """Queues one part of work at a time: all parts that wait one after the other are done together."""
        return partial(self._submit, work)

    def _submit(self, work: Together[P, T], part: P) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(StoreUnavailable(f"The database {self._path} is closed."))
        elif self._damage is not None:
            future.set_exception(StoreDamaged(str(self._damage)))
        else:
            self._queue(_Job(work, part, future))
        return future

    def give_up(self, damage: StoreDamaged) -> None:
        """Write nothing more, since the file is damaged: it could only get worse."""
        self._damage = self._damage or damage

    def stop(self) -> None:
        """Take no more work. Call it where :meth:`submit` is called, so that nothing slips in behind."""
        if not self._closed:
            self._closed = True
            self._queue(None)

    def join(self) -> None:
        """Block until what was queued is done, then close the connection; to be called when no reader is open any more.

        The last connection to be closed puts the log into the file, and one that only reads cannot.
        """
        self._thread.join()
        self._connection.close()

    def _queue(self, job: _Job | None) -> None:
        self._jobs.append(job)
        if not self._is_woken:
            self._is_woken = True
            self._wake_ups.put(None)

    def _run(self) -> None:
        open_ = True
        while open_:
            group, open_ = self._next_group()
            if group:
                self._commit(group)
                _settle(group)
                if self._snapshots:
                    self._relieve_log()

    def _next_group(self) -> tuple[list[_Job], bool]:
        if not self._jobs:
            self._wake_ups.get()
        self._is_woken = False  # before the last look, so that a job behind it wakes the thread again
        group: list[_Job] = []
        while self._jobs and len(group) < _LARGEST_GROUP:
            job = self._jobs.popleft()
            if job is None:
                return group, False
            group.append(job)
        return group, True

    def _commit(self, group: list[_Job]) -> None:
        try:
            self._roll_back()  # nothing, unless the disk failed the last attempt
            self._connection.execute("BEGIN IMMEDIATE")
            for _, jobs in groupby(group, key=attrgetter("work")):
                self._do(list(jobs))
            self._connection.execute("COMMIT")
        except (sqlite3.Error, _TransactionLost) as error:
            self._fail(group, error)

    def _do(self, jobs: list[_Job]) -> None:
        self._connection.execute("SAVEPOINT work")
        try:
            outcomes = jobs[0].work(self._connection, [job.part for job in jobs])
            for job, outcome in zip(jobs, outcomes, strict=True):
                job.outcome = outcome
        except BaseException as error:  # not swallowed: it is handed to those who wait
            fault = as_unavailable(error, self._path) or error
            for job in jobs:
                job.outcome = fault
            if isinstance(fault, StoreDamaged):
                self.give_up(fault)
            if not self._connection.in_transaction:  # SQLite rolls everything back when a disk is full
                raise _TransactionLost(str(error)) from error
            self._connection.execute("ROLLBACK TO work")
        self._connection.execute("RELEASE work")

    def _fail(self, group: list[_Job], error: Exception) -> None:
        with suppress(sqlite3.Error):  # tried again before the next transaction
            self._roll_back()
        fault = as_unavailable(error.__cause__ or error, self._path)
        if isinstance(fault, StoreDamaged):
            self.give_up(fault)
        lost = fault or StoreUnavailable(f"The database {self._path} could not commit: {error}.")
        for job in group:
            if not isinstance(job.outcome, BaseException):
                job.outcome = lost

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _settle(group: list[_Job]) -> None:
    # One wake-up per event loop and transaction: waking a loop costs more than a small insert.
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[_Job]] = defaultdict(list)
    for job in group:
        by_loop[job.future.get_loop()].append(job)
    for loop, jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle_here, jobs)
        except RuntimeError:  # the loop is closed: nobody waits any more
            continue


def _settle_here(jobs: list[_Job]) -> None:
    for job in jobs:
        future, outcome = job.future, job.outcome
        if future.done():  # the caller has left; its work is done all the same
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
