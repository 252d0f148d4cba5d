"""The clock and the turns of instances. APScheduler, imported here alone, only asks for runs; its jobs do none."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
import anyio.lowlevel
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

_SPANS: Final = tuple(timedelta(days=days) for days in (1 / 24, 1, 8, 32, 367, 8 * 366))
"""Spans to look back for a tick: first where a frequent one is, at last where any 29 February is."""


class Turn:
    """Requests for runs of one instance, in one slot: runs never overlap, and requests never pile up.

    Attributes:
        running: true during a run.
    """

    def __init__(self) -> None:
        self.running = False
        self._asked = anyio.Event()
        self._lock = anyio.Lock()

    def tick(self) -> bool:
        """Ask on behalf of the clock; False if a run is still going, so that this tick is left out."""
        if not self.running:
            self._asked.set()
        return not self.running

    def trigger(self) -> None:
        """Ask on demand: during a run it waits for its turn, further requests join it."""
        self._asked.set()

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None, None]:
        """Wait for a request; the run is what happens inside."""
        await self._asked.wait()
        async with self.borrowed():
            self._asked = anyio.Event()
            yield

    @asynccontextmanager
    async def borrowed(self) -> AsyncGenerator[None, None]:
        """Run on demand, outside the loop: after a run that is going on, and before the next one."""
        async with self._lock:
            self.running = True
            try:
                yield
            finally:
                self.running = False


class Clock:
    """Ticks by interval or cron line; ``random`` gives a number from 0 to 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        # A tick that comes late (a host that slept) still counts, once.
        # Any: it ships no types, and nothing of it leaves this module.
        defaults = {"coalesce": True, "misfire_grace_time": None, "max_instances": 1}
        self._scheduler: Any = AsyncIOScheduler(timezone=UTC, job_defaults=defaults)

    def add(
        self,
        task: str,
        turn: Turn,
        when: timedelta | str,
        jitter: timedelta,
        on_skipped: Callable[[], None],
        *,
        at_start: bool = True,
    ) -> None:
        """Ask for runs of an instance: at once, then by interval or by a five-field cron line in UTC.

        Args:
            task: the instance.
            turn: gets the requests.
            when: the time between two ticks, or a line from :mod:`auditord_hookspecs.schedule` (which names days, since
                cron and APScheduler number them differently).
            jitter: each tick comes later by a random part of this.
            on_skipped: called when a tick finds the run before it still going.
            at_start: whether it asks at once as well.
        """

        async def tick() -> None:  # async, or APScheduler would run it in a thread, beside the loop
            await anyio.sleep(jitter.total_seconds() * self._random())
            if not turn.tick():
                on_skipped()

        self._scheduler.add_job(tick, trigger=_trigger(when), id=task)
        if at_start:
            self._scheduler.add_job(tick, id=f"{task} at start")  # without a trigger: once, as soon as the clock runs

    def remove(self, task: str) -> None:
        """Ask for no more runs of an instance."""
        for job in (task, f"{task} at start"):
            if self._scheduler.get_job(job) is not None:
                self._scheduler.remove_job(job)

    def next_run(self, task: str) -> datetime | None:
        """The next tick, without its jitter; None while the clock stands, or for an unknown instance."""
        job: object = self._scheduler.get_job(task)
        # A job has no such attribute before the scheduler has been started.
        moment: datetime | None = getattr(job, "next_run_time", None)
        return moment

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Let the clock run."""
        self._scheduler.start()
        try:
            yield
        finally:
            self._scheduler.shutdown(wait=False)
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()  # the scheduler stops itself in a callback of the loop


def latest_tick(line: str, now: datetime) -> datetime | None:
    """The latest instant of a cron line that is not after the present one; None if there was none for eight years."""
    trigger = _trigger(line)
    for span in _SPANS:
        tick: datetime | None = trigger.get_next_fire_time(None, now - span)
        if tick is not None and tick <= now:
            return _last(trigger, tick, now)
    return None


def _last(trigger: Any, tick: datetime, now: datetime) -> datetime:  # Any: no types
    following: datetime | None = tick
    while following is not None and following <= now:
        tick = following
        following = trigger.get_next_fire_time(tick, tick)
    return tick


def _trigger(when: timedelta | str) -> Any:  # Any: a trigger
    if isinstance(when, timedelta):
        every: Any = IntervalTrigger  # Any: pyright reads whole seconds into its default, fractions work
        return every(seconds=when.total_seconds(), timezone=UTC)
    cron: Any = CronTrigger  # Any: no types
    return cron.from_crontab(when, timezone=UTC)
