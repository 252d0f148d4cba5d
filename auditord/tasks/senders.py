"""The loops of senders, which deliver the send-queue, and the forwarding of the store's outbox to the queue."""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Any, Final, NoReturn, Protocol

import anyio

from auditord.contexts.instances import task_log
from auditord.errors import StoreUnavailable
from auditord.health import Health, TaskHealth
from auditord.metrics import TaskMetrics
from auditord.spool import Queued, Spool, handing_over
from auditord.storage import Storage
from auditord.store.store import RecordStore
from auditord.tasks.runs import Backoff, describe, wait_after
from auditord_hookspecs import InstanceConfig, RecordsRejected, Sender, SenderContext, SenderKind
from auditord_hookspecs.wording import counted

SEND_TIMEOUT: Final = 300.0
"""The time limit of a send in seconds; exceeding it is a temporary fault."""

AT_ONCE: Final = 1_000
"""The maximum number of outbox entries that are queued at a time."""

_INTERVAL_SECONDS: Final = 1.0
"""The seconds between two reads of the outbox. It is polled, since another daemon may write to it."""

_log: Final = logging.getLogger(__name__)


class SendListener(Protocol):
    """Receives the results of sends; tests pass their own."""

    def note_sent(self, delivered: int, refused: int) -> None:
        """Note that a batch was delivered, except for entries that were refused for good."""
        ...

    def note_fault(self, error: str, failures: int) -> None:
        """Note a temporary failure of a batch or of opening the destination; ``failures`` counts them in a row."""
        ...


class SendReporter:
    """Reports the results of a sender to health, metrics and log."""

    def __init__(self, task: str, kind: str, health: Health, metrics: TaskMetrics, now: Callable[[], datetime]) -> None:
        self._labels = (task, kind)
        self._health = health
        self._metrics = metrics
        self._now = now
        self._log = task_log(task, kind)
        self._failing = False
        health.expect(TaskHealth(task, kind, "senders", running=True))

    def note_sent(self, delivered: int, refused: int) -> None:
        self._health.note_success("senders", self._labels[0], self._now(), running=True)
        self._metrics.sent_entries.labels(*self._labels).inc(delivered)
        self._metrics.refused_entries.labels(*self._labels).inc(refused)
        self._metrics.send_failures.labels(*self._labels).set(0)
        if refused:
            self._log.warning("%s permanently refused and quarantined", counted(refused, "entry was", "entries were"))
        if self._failing:
            self._log.info("delivers again")
        self._failing = False

    def note_fault(self, error: str, failures: int) -> None:
        self._failing = True
        self._health.note_failure("senders", self._labels[0], error, running=True)
        self._metrics.send_faults.labels(*self._labels).inc()
        self._metrics.send_failures.labels(*self._labels).set(failures)
        self._log.warning(
            "cannot deliver (failure %d in a row; nothing is lost, and delivery is retried): %s", failures, error
        )


class SendLoop:
    """The loop of one sender. Entries stay queued until they are settled, so a crash may repeat but never lose one.

    A fault pauses the sender, longer each time, and halves the next batch. So an entry that makes its batch fail ends
    up alone in a batch, and does not hold up the others.

    Args:
        random: returns a number from 0 to 1.
    """

    def __init__(
        self,
        task: str,
        kind: SenderKind[Any],  # Any: each kind has its own configuration model
        config: Any,  # Any: the kind's own model
        context: SenderContext,
        *,
        spool: Spool,
        listener: SendListener,
        now: Callable[[], datetime],
        random: Callable[[], float],
    ) -> None:
        self._task = task
        self._kind = kind
        self._config = config
        self._context = context
        self._spool = spool
        self._listener = listener
        self._now = now
        self._random = random
        self._backoff = Backoff(random)
        self._limit = kind.batch_size
        self._sending: Sequence[Queued] = ()
        self._queued = anyio.Event()
        self._draining = anyio.Event()
        self._stirred = anyio.Event()
        self._exchanged = False
        self._hurry = True
        spool.on_queued(task, self.wake)

    def wake(self) -> None:
        """Read the queue now."""
        self._queued.set()

    def drain(self) -> None:
        """Send all entries without further pauses, then end."""
        self._hurry = True
        self._draining.set()
        self._stirred.set()
        self.wake()

    def exchange(self, config: InstanceConfig) -> None:
        """Reopen the destination with another configuration, after the batch in flight."""
        self._config = config
        self._exchanged = True
        self._stirred.set()
        self.wake()

    async def run(self) -> None:
        """Send until drained. Entries that were postponed before a restart are tried at once."""
        finished = False
        while not finished:
            try:
                self._exchanged, self._stirred = False, self._draining if self._draining.is_set() else anyio.Event()
                async with self._kind.open(self._config, self._context) as sender:
                    finished = await self._send_all(sender)
            except (Exception, SystemExit) as error:  # noqa: BLE001 the error boundary of a sender
                await self._hold_back(error)

    async def _send_all(self, sender: Sender) -> bool:
        """Send until drained; return False if the destination must be reopened with another configuration."""
        while True:
            self._queued = anyio.Event()
            if self._exchanged:
                self._hurry = True
                return False
            if self._hurry:
                await self._spool.hurry(self._task)
                self._hurry = False
            draining = self._draining.is_set()  # before the queue is read, which may get its last entry meanwhile
            self._sending = await self._spool.claim(self._task, self._limit)
            if batch := self._sending:
                refused: dict[int, str] = {}
                try:
                    with anyio.fail_after(SEND_TIMEOUT):
                        await sender.send([queued.entry for queued in batch])
                except RecordsRejected as rejected:
                    refused = {batch[position].entry_id: reason for position, reason in rejected.reasons.items()}
                delivered = [queued.entry_id for queued in batch if queued.entry_id not in refused]
                await self._spool.settle(self._task, delivered, refused)
                self._backoff.failures = 0
                self._limit = min(self._limit * 2, self._kind.batch_size)
                self._listener.note_sent(len(delivered), len(refused))
            elif draining:
                return True
            else:
                due = await self._spool.next_due(self._task)
                limit = None if due is None else max((due - self._now()).total_seconds(), 0)
                with anyio.move_on_after(limit):
                    await self._queued.wait()

    async def _hold_back(self, error: Exception | SystemExit) -> None:
        wait, draining = self._backoff.next(), self._draining.is_set()
        self._limit = max(self._limit // 2, 1)
        self._listener.note_fault(describe(self._task, self._kind.name, error), self._backoff.failures)
        try:
            now = self._now()
            await self._spool.postpone(
                {one.entry_id: now + wait_after(one.attempts + 1, self._random) for one in self._sending}
            )
        except StoreUnavailable as unavailable:
            self._listener.note_fault(str(unavailable), self._backoff.failures)
        self._sending = ()
        if draining:  # at the time of the fault; drain() may have been called since
            await anyio.sleep(wait.total_seconds())
            return
        with anyio.move_on_after(wait.total_seconds()):
            await self._stirred.wait()
            self._backoff.failures = 0  # little grace is left, or a new configuration may help
            self._hurry = True


@dataclass
class Grace:
    """The time until which senders drain the queue.

    Args:
        ends: by the event loop's clock; at the latest ``shutdown.grace`` after everything else has ended.
    """

    ends: float = inf


@asynccontextmanager
async def sending(storage: Storage, loops: Sequence[SendLoop], patience: timedelta) -> AsyncGenerator[Grace, None]:
    """Send the queue within the context. On exit, drain it for at most the patience; the rest stays queued."""
    grace, destinations = Grace(), storage.destinations("api")
    async with anyio.create_task_group() as group:
        for loop in loops:
            group.start_soon(loop.run)
        async with anyio.create_task_group() as forwarding:
            forwarding.start_soon(storage.pair_when_back)
            if destinations:
                forwarding.start_soon(forward, storage.store, storage.spool, destinations)
            yield grace
            forwarding.cancel_scope.cancel()
        group.cancel_scope.deadline = min(grace.ends, anyio.current_time() + patience.total_seconds())
        if destinations:
            await forward_all(storage.store, storage.spool, destinations)
        for loop in loops:
            loop.drain()


async def forward(store: RecordStore, spool: Spool, destinations: Sequence[str]) -> NoReturn:
    """Regularly queue clients' changes for the senders that forward them."""
    while True:
        await forward_all(store, spool, destinations)
        await anyio.sleep(_INTERVAL_SECONDS)


async def forward_all(store: RecordStore, spool: Spool, destinations: Sequence[str]) -> None:
    """Queue the current entries of the outbox. If a database is unavailable, the rest stays there.

    The store's feed and the spool's queue are in two databases. The spool notes the numbers of entries in the
    transaction that queues them, so a crash between the two transactions neither loses nor duplicates entries.
    """
    try:
        while (outbox := await store.outbox(AT_ONCE)).has_more:
            entries = [(each.number, each.entry) for each in outbox.entries]
            async with handing_over(spool.state_dir):
                await spool.take_over(entries, destinations)
                await store.forget_outbox(outbox.position)
            await spool.forget_taken([number for number, _ in entries])
    except StoreUnavailable as error:
        _log.warning("changes by clients wait in the outbox: %s", error)
