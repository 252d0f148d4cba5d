"""Concurrent changes, gathered without waiting: whatever is there when a connection is free becomes one transaction."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, TypeAlias

from auditord.database.postgres import Connection
from auditord.errors import StoreUnavailable
from auditord.store.planning import Bulk, Change, Outcome, ids_of

_LARGEST: Final = 1_000
"""Changes in a transaction; bounds how long the first one waits for the last one's turn."""

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]
Together: TypeAlias = Sequence[Change] | Bulk
Make: TypeAlias = Callable[[Connection, Together], Awaitable[Sequence[Outcome]]]


@dataclass(slots=True, eq=False)
class _Waiting:
    """One change, and where its outcome goes; of a bulk, the outcomes."""

    change: Change | Bulk
    ids: Sequence[str]
    outcome: "asyncio.Future[Any]"  # Any: a verdict, a boolean, or verdicts

    def settle(self, outcome: Outcome | Sequence[Outcome] | BaseException) -> None:
        """Notify the caller, unless it has left (its change is made all the same)."""
        if self.outcome.done():
            return
        if isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


_LINGER: Final = 0.005
"""Seconds for which a connection is kept for changes that may follow: clients wait for their answers, then send the
next. To get it again costs as much as some changes. It is no longer than a transaction, so that a connection is as
unlikely to break meanwhile as in the middle of changes."""


class Batches:
    """Makes changes through a few connections at a time.

    While one transaction is being committed, further changes gather for the next. Changes of one record are made one
    after the other, in the order in which they came.

    Args:
        connect: gives a connection.
        make: makes changes in one transaction, with an outcome for each.
        at_once: how many transactions there may be at a time.
    """

    def __init__(self, connect: Connect, make: Make, at_once: int) -> None:
        self._connect = connect
        self._make = make
        self._at_once = at_once
        self._waiting: deque[_Waiting] = deque()
        self._held: set[str] = set()  # ids whose changes are being made
        self._workers: set[asyncio.Task[None]] = set()
        self._lingering: list[asyncio.Future[bool]] = []
        self._closed = False

    def submit(self, change: Change | Bulk) -> "asyncio.Future[Any]":  # Any: of a bulk, its outcomes
        """The outcome of a change, once it is durable. Cancelling it takes nothing back."""
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._closed:
            outcome.set_exception(StoreUnavailable("The record store is closed."))
            return outcome
        self._waiting.append(_Waiting(change, ids_of(change), outcome))
        self._employ()
        return outcome

    async def close(self) -> None:
        """Finish what has been submitted, take no more."""
        self._closed = True
        while self._workers:
            await asyncio.wait(self._workers)

    def _employ(self) -> None:
        if self._lingering:
            _wake(self._lingering.pop(), True)  # noqa: FBT003 if its time is over just now, another takes its place
        elif len(self._workers) < self._at_once:
            worker = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._dismiss)

    def _dismiss(self, worker: "asyncio.Task[None]") -> None:
        self._workers.discard(worker)
        if any(self._held.isdisjoint(waiting.ids) for waiting in self._waiting):
            self._employ()

    async def _work(self) -> None:
        connected = False
        try:
            async with self._connect() as connection:
                connected = True
                while (batch := self._take()) or await self._linger():
                    if batch and not await self._change(connection, batch):
                        break
        except BaseException as error:
            if not connected:  # those who waited for this connection have waited long enough
                self._settle(self._take(), error)
            if not isinstance(error, StoreUnavailable):  # nobody may wait for ever, and nothing be hushed up
                raise

    async def _linger(self) -> bool:
        """Wait whether there will be more to do soon."""
        if self._closed:
            return False
        loop = asyncio.get_running_loop()
        more: asyncio.Future[bool] = loop.create_future()
        self._lingering.append(more)
        alarm = loop.call_later(_LINGER, _wake, more, False)  # noqa: FBT003 it takes no names
        try:
            return await more
        finally:
            alarm.cancel()
            with suppress(ValueError):  # it has been taken from there to be woken
                self._lingering.remove(more)

    def _take(self) -> list[_Waiting]:
        """The changes for one transaction now, in order; those that must wait for one of the same record stay."""
        batch: list[_Waiting] = []
        passed: list[_Waiting] = []
        blocked = set(self._held)
        alone = False
        while self._waiting and len(batch) < _LARGEST and not alone:
            waiting = self._waiting.popleft()
            alone = isinstance(waiting.change, Bulk)
            if blocked.isdisjoint(waiting.ids) and not (alone and batch):
                batch.append(waiting)
            else:
                passed.append(waiting)
                blocked.update(waiting.ids)
                alone = False
        self._waiting.extendleft(reversed(passed))
        for waiting in batch:
            self._held.update(waiting.ids)
        return batch

    async def _change(self, connection: Connection, batch: Sequence[_Waiting]) -> bool:
        """Make changes and settle them; False if the connection should not be used any more."""
        try:
            outcomes = await self._make_together(connection, batch)
        except asyncio.CancelledError:
            self._settle(batch, StoreUnavailable("The record store was closed while a change was being made."))
            raise
        except BaseException as error:  # noqa: BLE001 not swallowed: it is handed to those who wait
            self._settle(batch, error)
            return False
        self._settle(batch, outcomes)
        return True

    async def _make_together(
        self, connection: Connection, batch: Sequence[_Waiting]
    ) -> Sequence[Outcome | Sequence[Outcome]]:
        first = batch[0].change
        if isinstance(first, Bulk):
            return [await self._make(connection, first)]
        return await self._make(connection, [each.change for each in batch if not isinstance(each.change, Bulk)])

    def _settle(
        self, batch: Sequence[_Waiting], outcomes: Sequence[Outcome | Sequence[Outcome]] | BaseException
    ) -> None:
        each = repeat(outcomes) if isinstance(outcomes, BaseException) else outcomes
        for waiting, outcome in zip(batch, each, strict=False):
            self._held.difference_update(waiting.ids)
            waiting.settle(outcome)


def _wake(worker: "asyncio.Future[bool]", more: bool) -> None:  # noqa: FBT001 call_later takes no names
    if not worker.done():
        worker.set_result(more)
