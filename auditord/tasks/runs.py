"""The clock of instances, and their runs inside an error boundary that turns any error into a report.

APScheduler is imported only here. Its jobs only request runs.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NoReturn

import anyio
import anyio.lowlevel
import msgspec
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from msgspec.structs import replace

from auditord.contexts.instances import task_log
from auditord.errors import StoreUnavailable
from auditord.health import Health, TaskHealth
from auditord.hooks import Hooks
from auditord.spool import Spool
from auditord.spool.encoding import printable
from auditord_hookspecs import AuditordError, CollectorKind, Daemon, InstanceConfig, PluginKind, RunReport
from auditord_hookspecs.wording import counted

_BETWEEN_LOOKS: Final = 60.0
"""Seconds between two looks at the host's clock."""

_SPANS: Final = tuple(timedelta(days=days) for days in (1 / 24, 1, 8, 32, 367, 8 * 366))
"""Spans to search back for a tick: from an hour, for frequent ticks, to eight years, for any 29 February."""


class Turn:
    """The runs of one instance, which never overlap.

    Attributes:
        running: true during a run.
    """

    def __init__(self) -> None:
        self.running = False
        self._asked = anyio.Event()
        self._lock = anyio.Lock()

    def tick(self) -> bool:
        """Request a run. Return False if the previous run has not ended; the tick is then skipped."""
        if not self.running:
            self._asked.set()
        return not self.running

    @asynccontextmanager
    async def take(self) -> AsyncGenerator[None, None]:
        """Wait for a request; the body of the context is the run."""
        await self._asked.wait()
        async with self.borrow():
            self._asked = anyio.Event()
            yield

    @asynccontextmanager
    async def borrow(self) -> AsyncGenerator[None, None]:
        """Run outside the loop: after the current run and before the next one."""
        async with self._lock:
            self.running = True
            try:
                yield
            finally:
                self.running = False


class Clock:
    """Ticks by interval or cron line; ``random`` returns a number from 0 to 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        # One late run makes up for all ticks missed while the host slept. Any: APScheduler has no types.
        defaults = {"coalesce": True, "misfire_grace_time": None, "max_instances": 1}
        # Its own executor makes tasks, and logs a traceback for each that is cancelled at the end.
        executors: Any = {"default": DebugExecutor()}
        self._scheduler: Any = AsyncIOScheduler(executors=executors, timezone=UTC, job_defaults=defaults)
        self._times: dict[str, timedelta | str] = {}

    def add(
        self,
        task: str,
        turn: Turn,
        when: timedelta | str,
        jitter: timedelta,
        on_skipped: Callable[[], None],
        *,
        last_success: datetime | None = None,
    ) -> None:
        """Request runs of an instance by interval or by a five-field cron line in UTC.

        If it is due (:func:`is_due`), the first run is requested at once. Otherwise an interval continues from the last
        success, so that a daemon that is often restarted runs the instance neither more nor less often.

        Args:
            task: the instance.
            turn: receives the requests.
            when: the time between two ticks, or a line from :mod:`auditord_hookspecs.schedule`, which names weekdays
                because cron and APScheduler number them differently.
            jitter: each tick is delayed by a random part of this.
            on_skipped: called if the previous run has not ended at a tick.
            last_success: the time of the last successful run; None requests a run at once.
        """
        now = datetime.now(UTC)

        def request() -> None:
            if self._scheduler.running and not turn.tick():
                on_skipped()

        def tick() -> None:
            asyncio.get_running_loop().call_later(jitter.total_seconds() * self._random(), request)

        self._times[task] = when
        first = first_tick(when, last_success, now)
        self._scheduler.add_job(tick, trigger=_trigger(when, first), id=task)
        if first is None:
            self._scheduler.add_job(tick, id=f"{task} at start")  # no trigger: once, when the clock starts

    def remove(self, task: str) -> None:
        """Stop requesting runs of an instance."""
        self._times.pop(task, None)
        for job in (task, f"{task} at start"):
            if self._scheduler.get_job(job) is not None:
                self._scheduler.remove_job(job)

    def next_run(self, task: str) -> datetime | None:
        """Return the next tick without its jitter; None if the clock does not run or the instance is unknown."""
        job: object = self._scheduler.get_job(task)
        # A job has no such attribute before the scheduler is started.
        moment: datetime | None = getattr(job, "next_run_time", None)
        return moment

    async def follow_host(self) -> NoReturn:
        """Schedule ticks anew if the host's clock is set back, since the next ones would come as much later."""
        while True:
            await anyio.sleep(_BETWEEN_LOOKS)
            for task, when in self._times.items():
                trigger, planned = _trigger(when), self.next_run(task)
                if planned is not None and planned > trigger.get_next_fire_time(None, datetime.now(UTC)):
                    self._scheduler.reschedule_job(task, trigger=trigger)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Run the clock within the context."""
        self._scheduler.start()
        try:
            yield
        finally:
            self._scheduler.shutdown(wait=False)
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()  # the scheduler stops itself in a callback of the loop


def latest_tick(line: str, now: datetime) -> datetime | None:
    """Return the latest tick of a cron line up to now; None if there was none for eight years."""
    trigger = _trigger(line)
    for span in _SPANS:
        tick: datetime | None = trigger.get_next_fire_time(None, now - span)
        if tick is None or tick > now:
            continue
        following: datetime | None = tick
        while following is not None and following <= now:
            tick = following
            following = trigger.get_next_fire_time(tick, tick)
        return tick
    return None


def first_tick(when: timedelta | str, last_success: datetime | None, now: datetime) -> datetime | None:
    """Return the first tick after the last success; None if a run is due at once, as without a success."""
    if last_success is None or is_due(when, last_success, now):
        return None
    if isinstance(when, timedelta):
        return last_success + when
    tick: datetime | None = _trigger(when).get_next_fire_time(None, now)
    return tick


def is_due(when: timedelta | str, last_success: datetime, now: datetime) -> bool:
    """Return whether an interval has passed, or a tick of a cron line was missed, since the last success.

    A success in the future was noted while the host's clock was ahead: the instance is due.
    """
    if last_success > now:
        return True
    if isinstance(when, timedelta):
        return last_success + when <= now
    tick = latest_tick(when, now)
    return tick is not None and last_success < tick


def _trigger(when: timedelta | str, first: datetime | None = None) -> Any:  # Any: a trigger
    if isinstance(when, timedelta):
        every: Any = IntervalTrigger  # Any: pyright reads whole seconds into its default, fractions work
        return every(seconds=when.total_seconds(), start_date=first, timezone=UTC)
    cron: Any = CronTrigger  # Any: no types
    return cron.from_crontab(when, timezone=UTC)


_LONG_ENOUGH: Final = timedelta(minutes=5)

FIRST: Final = timedelta(seconds=1)
LONGEST: Final = timedelta(minutes=1)


@dataclass
class RunCounts:
    """The counts of a run so far."""

    records: int = 0
    quarantined: int = 0
    skipped: Counter[str] = field(default_factory=Counter[str])
    waits: bool = False
    remarks: list[str] = field(default_factory=list[str])


class Runnable(msgspec.Struct, frozen=True):
    """A collector or plugin, ready to run.

    Args:
        timeout: the time limit of a run; None for a continuous one.
    """

    task: str
    kind: str
    execute: Callable[[RunCounts], Awaitable[None]]
    timeout: timedelta | None


class Listener(msgspec.Struct, frozen=True):
    """Receives the starts of runs, by instance name, and the reports of finished runs."""

    started: Callable[[str], None]
    finished: Callable[[RunReport], Awaitable[None]]


async def run_once(runnable: Runnable, now: Callable[[], datetime]) -> RunReport:
    """Run an instance and return its report, also after a failure. Only a cancellation of the caller raises."""
    started, clock_start, counts = now(), anyio.current_time(), RunCounts()
    limit = None if runnable.timeout is None else runnable.timeout.total_seconds()
    error: str | None = None
    try:
        with anyio.move_on_after(limit) as scope:
            await runnable.execute(counts)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 the error boundary of an instance
        error = describe(runnable.task, runnable.kind, failure)
    else:
        if scope.cancelled_caught:
            error = f"was cancelled after {limit:g} s: raise its timeout, or find out why its source is slow"
    return RunReport(
        task=runnable.task,
        kind=runnable.kind,
        started=started,
        duration=timedelta(seconds=anyio.current_time() - clock_start),
        error=error,
        records=counts.records,
        quarantined=counts.quarantined,
        skipped={reason: count for reason, count in counts.skipped.items() if count},
        waits=counts.waits,
        remarks=counts.remarks,
    )


def describe(task: str, kind: str, error: Exception | SystemExit) -> str:
    """Return an error as one line for the operator, and log unexpected errors with their traceback.

    Errors of the operating system (a file, a connection, a time limit) are expected, since they are not bugs. A file's
    name in an error can contain bytes that are not UTF-8.
    """
    causes: tuple[Exception, ...] = getattr(error, "exceptions", ())
    if len(causes) == 1:  # a task group wraps the error of its only task
        return describe(task, kind, causes[0])
    if isinstance(error, AuditordError):
        return printable(error)
    log = task_log(task, kind)
    if isinstance(error, OSError):
        log.debug("the error in full", exc_info=error)
    else:
        log.error(
            "unexpected error, please report it to the authors of the kind %s (auditord hooks)", kind, exc_info=error
        )
    return printable(f"{type(error).__name__}: {error}")


async def run_reported(runnable: Runnable, listener: Listener, now: Callable[[], datetime]) -> RunReport:
    """Run an instance once, and report its start and end to the listener."""
    listener.started(runnable.task)
    report = await run_once(runnable, now)
    await listener.finished(report)
    return report


def wait_after(failures: int, random: Callable[[], float]) -> timedelta:
    """Return the pause after a number of failures in a row.

    It doubles from :data:`FIRST` to :data:`LONGEST`, minus a random part of up to half, so that instances that failed
    together do not retry together.
    """
    full = min(FIRST * (1 << min(failures - 1, 16)), LONGEST)
    return full * (1 - random() / 2)


class Backoff:
    """Counts failures in a row and returns the pauses after them; ``random`` returns a number from 0 to 1.

    A success sets ``failures`` to 0.

    stamina is not used, because it retries one call and sleeps itself. These pauses never end a loop, can be
    interrupted (to drain a sender), and survive restarts in the queue (``due_at`` of an entry).
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self.failures = 0

    def next(self) -> timedelta:
        """Count a failure, and return the pause after it."""
        self.failures += 1
        return wait_after(self.failures, self._random)


async def run_by_the_clock(runnable: Runnable, turn: Turn, listener: Listener, now: Callable[[], datetime]) -> NoReturn:
    """Run an instance at every request. Failures do not change the interval of the clock."""
    while True:
        async with turn.take():
            await run_reported(runnable, listener, now)


async def run_continuously(
    runnable: Runnable, backoff: Backoff, listener: Listener, now: Callable[[], datetime]
) -> NoReturn:
    """Run a continuous instance. If it ends, that counts as a failure, and it is restarted."""
    while True:
        listener.started(runnable.task)
        report = await run_once(runnable, now)
        if report.error is None:
            report = replace(report, error="ended, although a continuous collector never should")
        await listener.finished(report)
        if report.duration > _LONG_ENOUGH:
            backoff.failures = 0
        await anyio.sleep(backoff.next().total_seconds())


class RunReporter:
    """Records starts and ends of runs in health, log and spool, and notifies hook modules of the ends."""

    def __init__(self, health: Health, spool: Spool, hooks: Hooks, daemon: Daemon, now: Callable[[], datetime]) -> None:
        self._health = health
        self._spool = spool
        self._hooks = hooks
        self._daemon = daemon
        self._now = now

    async def watch(
        self,
        section: str,
        instances: Mapping[str, tuple[CollectorKind[Any] | PluginKind[Any], InstanceConfig]],
        write: Callable[[str, RunReport], None],
    ) -> Listener:
        """Return a listener for the instances of a section, whose health continues from before the restart.

        ``write`` is called at the end of a run, such as :func:`log_run`.
        """
        last = await self._spool.last_runs()
        for name, (kind, _) in instances.items():
            fresh = TaskHealth(name, kind.name, section)
            if runs := last.get(name):
                fresh = replace(
                    fresh,
                    last_started=runs[0].started,
                    last_success=runs[0].last_success,
                    last_error=runs[0].error,
                    failures=runs[0].failures,
                )
            self._health.expect(fresh)

        def start(task: str) -> None:
            self._health.note_start(section, task, self._now())

        return Listener(start, partial(self._finish, section, write))

    async def _finish(self, section: str, write: Callable[[str, RunReport], None], report: RunReport) -> None:
        if report.waits:
            self._health.note_wait(section, report.task)
        elif report.error is None:
            ended = report.started + report.duration
            self._health.note_success(section, report.task, ended, running=False, remarks=report.remarks)
        else:
            self._health.note_failure(section, report.task, report.error, running=False)
        write(section, report)
        try:
            await self._spool.record_run(report)
        except StoreUnavailable as error:  # not a failure of the run, which has ended
            task_log(report.task, report.kind).error("%s", error)
        await self._hooks.call_event("auditord_run_finished", daemon=self._daemon, report=report)


def log_run(section: str, report: RunReport) -> None:
    """Log a line about a run; at debug level if a collector found nothing."""
    counts, log = summary(report), task_log(report.task, report.kind)
    if report.error is not None:
        log.error("run failed: %s (%s)", report.error, counts)
    elif section == "collectors" and not (report.records or report.quarantined):
        log.debug("%s", counts)
    else:
        log.info("%s", counts)


def summary(report: RunReport) -> str:
    parts = [counted(report.records, "record")]
    if report.quarantined:
        parts.append(f"{report.quarantined} quarantined")
    parts += [f"{count} skipped: {reason}" for reason, count in sorted(report.skipped.items())]
    return f"{', '.join(parts)} in {report.duration.total_seconds():.1f} s"
