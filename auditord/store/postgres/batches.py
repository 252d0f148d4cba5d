"""Gather concurrent changes into transactions, and reads into statements, on a few connections.

See :class:`auditord.database.database.Batcher`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from auditord.database.database import Batcher, Waiting, make_failed
from auditord.database.postgres import Connection
from auditord.errors import StoreUnavailable
from auditord.store.rows import Bulk

J = TypeVar("J")

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]

_LINGER: Final = 0.005
"""Seconds for which an idle connection is kept, since clients that get their answers often send the next change at
once, and getting a connection costs as much as some changes. The time is no longer than a transaction, so the
connection is as unlikely to break as during one."""


@dataclass(slots=True, eq=False)
class _Lingering:
    """A connection that waits for more work.

    Args:
        more: is told whether to look for work, or to give the connection back.
        is_busy: whether a caller uses it.
        was_used: whether one has used it since the alarm was set.
    """

    connection: Connection
    more: "asyncio.Future[bool]"
    is_busy: bool = False
    was_used: bool = False

    def tire(self) -> None:
        """Give the connection back, unless it was used since the alarm was set: then set another one."""
        if self.is_busy or self.was_used:
            self.was_used = False
            self.more.get_loop().call_later(_LINGER, self.tire)
        else:
            self.wake(False)  # noqa: FBT003 there is no more

    def wake(self, more: bool) -> None:  # noqa: FBT001 a future's result
        if not self.more.done():
            self.more.set_result(more)


class Batches(Generic[J]):
    """Makes changes, or reads, through a few concurrent connections.

    While one batch of changes is being committed, further changes gather for the next. Two concurrent batches would be
    smaller, and each costs the disk as much. A bulk is a transaction of its own, concurrent with others. Changes of one
    record are made one after the other, in the order in which they were submitted.

    Args:
        connect: opens a connection.
        make: makes gathered changes or a single bulk in one transaction, and returns an outcome for each.
        at_once: the maximum number of concurrent transactions.
        ids_of: returns the ids of the records that a change is about.
    """

    def __init__(
        self,
        connect: Connect,
        make: Callable[[Connection, Sequence[J]], Awaitable[Sequence[Any]]],  # Any: outcomes of all types
        at_once: int,
        ids_of: Callable[[J], Collection[str]],
    ) -> None:
        self._connect = connect
        self._make = make
        self._at_once = at_once
        self._batcher: Batcher[J] = Batcher(ids_of, lambda change: isinstance(change, Bulk))
        self._workers: set[asyncio.Task[None]] = set()
        self._lingering: list[_Lingering] = []
        self._has_gathered = False
        """True while a transaction makes gathered changes."""
        self._closed = False

    def submit(self, change: J) -> "asyncio.Future[Any]":  # Any: of a bulk, its outcomes
        """Submit a change, and return a future of its outcome, set after the commit. Cancelling it undoes nothing."""
        if self._closed:
            return make_failed(StoreUnavailable("The record store is closed."))
        outcome = self._batcher.put(change)
        if isinstance(change, Bulk) or not self._has_gathered:
            self._employ()
        return outcome

    async def read(self, job: J) -> Any:  # Any: see submit
        """Do a job that changes nothing, and return its outcome. If it is cancelled, so is the statement.

        If a connection waits for work, the caller's task uses it: to wake another one, and to be woken by it, would
        take as long as reading a record.
        """
        if self._closed or not self._lingering or self._lingering[-1].more.done():  # done: it is about to be given back
            return await self.submit(job)
        lingering, goes_on = self._lingering.pop(), False
        lingering.is_busy = lingering.was_used = True
        try:
            (outcome,) = await self._make(lingering.connection, [job])
            goes_on = not self._closed
        finally:
            lingering.is_busy = False
            if goes_on and not self._can_take():
                self._lingering.append(lingering)
            else:
                lingering.wake(goes_on)
        return outcome

    async def close(self) -> None:
        """Finish all submitted changes, and refuse further ones."""
        self._closed = True
        while self._workers:
            await asyncio.wait(self._workers)

    def _employ(self) -> None:
        if self._lingering:
            self._lingering.pop().wake(True)  # noqa: FBT003 if its alarm is due right now, another takes its place
        elif len(self._workers) < self._at_once:
            worker = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._dismiss)

    def _dismiss(self, worker: "asyncio.Task[None]") -> None:
        self._workers.discard(worker)
        if self._can_take():
            self._employ()

    async def _work(self) -> None:
        connected = False
        try:
            async with self._connect() as connection:
                connected = True
                while (batch := self._take()) or await self._linger(connection):
                    if batch and not await self._change(connection, batch):
                        break
        except BaseException as error:
            if not connected:  # fail the waiting changes instead of letting them wait for the next attempt
                self._fail(self._batcher.take(only_alone=self._has_gathered), error)
            if not isinstance(error, StoreUnavailable):  # callers get it; other errors are bugs
                raise

    def _take(self) -> Sequence[Waiting[J]]:
        batch = self._batcher.take(only_alone=self._has_gathered)
        if batch:
            self._has_gathered |= not isinstance(batch[0].job, Bulk)
            if self._can_take():  # use another connection, so that bulks and changes do not wait for each other
                self._employ()
        return batch

    def _can_take(self) -> bool:
        return self._batcher.can_take(only_alone=self._has_gathered)

    async def _linger(self, connection: Connection) -> bool:
        """Wait a short time for more changes. Return whether to look for some."""
        if self._closed:
            return False
        loop = asyncio.get_running_loop()
        lingering = _Lingering(connection, loop.create_future())
        self._lingering.append(lingering)
        alarm = loop.call_later(_LINGER, lingering.tire)
        try:
            return await lingering.more
        finally:
            alarm.cancel()
            with suppress(ValueError):  # _employ has already removed it
                self._lingering.remove(lingering)

    async def _change(self, connection: Connection, batch: Sequence[Waiting[J]]) -> bool:
        """Make changes and settle them. Return False if the connection should no longer be used."""
        try:
            outcomes = await self._make(connection, [each.job for each in batch])
        except asyncio.CancelledError:
            self._fail(batch, StoreUnavailable("The record store was closed while it was answering."))
            raise
        except BaseException as error:  # noqa: BLE001 not swallowed: callers get it
            self._fail(batch, error)
            return False
        finally:
            if not isinstance(batch[0].job, Bulk):
                self._has_gathered = False
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.outcome = outcome
        self._batcher.settle(batch)
        return True

    def _fail(self, batch: Sequence[Waiting[J]], error: BaseException) -> None:
        for waiting in batch:
            waiting.outcome = error
        self._batcher.settle(batch)
