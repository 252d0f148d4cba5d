"""Group commit: what waits when a connection is free becomes one transaction, and each caller gets its own outcome.

Callers share one sync of the disk, and nobody waits for a timer. :mod:`auditord.database.writer` takes batches in a
thread, for SQLite; :mod:`auditord.store.postgres.batches` takes them over several connections.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

J = TypeVar("J")

LARGEST: Final = 1_000
"""Jobs of a batch; bounds how long the first one waits for the last one's turn."""


@dataclass(slots=True, eq=False)
class Waiting(Generic[J]):
    """A job that waits for its transaction, and the future of its outcome.

    Args:
        job: the work.
        ids: of records that no other batch may change meanwhile.
        future: gets the outcome; an exception is raised to the caller.
        outcome: what the job has come to.
    """

    job: J
    ids: Collection[str]
    future: "asyncio.Future[Any]"  # Any: outcomes of all types
    outcome: Any = None

    def settle(self) -> None:
        """Give the caller the outcome, unless it has left (its work is done all the same)."""
        if self.future.done():
            return
        if isinstance(self.outcome, BaseException):
            self.future.set_exception(self.outcome)
        else:
            self.future.set_result(self.outcome)


def failed(error: Exception) -> "asyncio.Future[Any]":  # Any: outcomes of all types
    """The future of a job that is refused before it is put in."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


class Batcher(Generic[J]):
    """Gathers jobs in the order in which they come.

    Jobs may be put in by the event loop's thread and taken by another, unless they have ids.

    Args:
        ids_of: the ids that a job changes; jobs of one id are taken one after the other, in order.
        is_alone: whether a job is a batch of its own.
    """

    def __init__(
        self, ids_of: Callable[[J], Collection[str]] | None = None, is_alone: Callable[[J], bool] | None = None
    ) -> None:
        self._ids_of = ids_of
        self._is_alone = is_alone
        self._waiting: deque[Waiting[J]] = deque()
        self._held: set[str] = set()  # ids of jobs that have been taken and not been settled

    def put(self, job: J) -> "asyncio.Future[Any]":  # Any: outcomes of all types
        """Add a job. Cancelling the future of its outcome takes nothing back."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(Waiting(job, () if self._ids_of is None else self._ids_of(job), future))
        return future

    def __bool__(self) -> bool:
        """Return whether any job can be taken."""
        if not self._held:
            return bool(self._waiting)
        return any(self._held.isdisjoint(waiting.ids) for waiting in self._waiting)

    def take(self) -> list[Waiting[J]]:
        """The jobs of the next batch, in order; those that must wait for one of the same id stay."""
        if self._ids_of is None:
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), LARGEST))]
        batch: list[Waiting[J]] = []
        passed: list[Waiting[J]] = []
        blocked = set(self._held)
        while self._waiting and len(batch) < LARGEST:
            waiting = self._waiting.popleft()
            alone = self._is_alone is not None and self._is_alone(waiting.job)
            if blocked.isdisjoint(waiting.ids) and not (alone and batch):
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
        """Give the callers their outcomes, and let go of the ids."""
        for waiting in batch:
            self._held.difference_update(waiting.ids)
            waiting.settle()
