"""Runs of instances, each inside its error boundary: whatever goes wrong is a report, and touches no other one."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NoReturn

import anyio

from auditord.contexts.instances import task_log
from auditord.errors import StoreUnavailable
from auditord.health import Health, TaskHealth
from auditord.hooks import Hooks
from auditord.spool import Spool
from auditord.tasks.clock import Turn
from auditord_hookspecs import AuditordError, CollectorKind, Daemon, InstanceConfig, PluginKind, RunReport
from auditord_hookspecs.wording import counted

_LONG_ENOUGH: Final = timedelta(minutes=5)

FIRST: Final = timedelta(seconds=1)
LONGEST: Final = timedelta(minutes=1)


@dataclass
class RunCounts:
    """The results of a run so far."""

    records: int = 0
    quarantined: int = 0
    skipped: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True, slots=True)
class Runnable:
    """An instance of a collector or a plugin, ready to run.

    Args:
        execute: does the work once and counts it.
        timeout: after this long a run is cancelled; None for one that never ends.
    """

    task: str
    kind: str
    execute: Callable[[RunCounts], Awaitable[None]]
    timeout: timedelta | None


@dataclass(frozen=True, slots=True)
class Listener:
    """The receiver of the starts of runs, by the instance's name, and of their reports."""

    started: Callable[[str], None]
    finished: Callable[[RunReport], Awaitable[None]]


async def run_once(runnable: Runnable, now: Callable[[], datetime]) -> RunReport:
    """Run an instance; a report comes back whatever happens, except when the caller is cancelled."""
    started, begun, counts = now(), anyio.current_time(), RunCounts()
    error = await _guarded(runnable, counts)
    return RunReport(
        task=runnable.task,
        kind=runnable.kind,
        started=started,
        duration=timedelta(seconds=anyio.current_time() - begun),
        error=error,
        records=counts.records,
        quarantined=counts.quarantined,
        skipped={reason: count for reason, count in counts.skipped.items() if count},
    )


async def _guarded(runnable: Runnable, counts: RunCounts) -> str | None:
    limit = None if runnable.timeout is None else runnable.timeout.total_seconds()
    try:
        with anyio.move_on_after(limit) as scope:
            await runnable.execute(counts)
    except (Exception, SystemExit) as error:  # noqa: BLE001 the boundary: a failure must never touch another instance
        return describe(runnable.task, runnable.kind, error)
    if scope.cancelled_caught:
        return f"was cancelled after {limit:g} s: raise its timeout, or find out why its source is slow"
    return None


def describe(task: str, kind: str, error: Exception | SystemExit) -> str:
    """One line for the operator; an error that no module foresaw is logged with its traceback.

    What the operating system says (a file, a connection, a time limit) is nobody's mistake in a program.
    """
    causes: tuple[Exception, ...] = getattr(error, "exceptions", ())
    if len(causes) == 1:  # a task group wraps whatever its one task raised
        return describe(task, kind, causes[0])
    if isinstance(error, AuditordError):
        return str(error)
    log = task_log(task, kind)
    if isinstance(error, OSError):
        log.debug("the error in full", exc_info=error)
    else:
        log.error(
            "unexpected error, please report it to those who make the kind %s (auditord hooks)", kind, exc_info=error
        )
    return f"{type(error).__name__}: {error}"


async def run_reported(runnable: Runnable, listener: Listener, now: Callable[[], datetime]) -> RunReport:
    """Run an instance once, with its start and end reported."""
    listener.started(runnable.task)
    report = await run_once(runnable, now)
    await listener.finished(report)
    return report


def wait_after(failures: int, random: Callable[[], float]) -> timedelta:
    """The pause after so many failures in a row.

    Doubles from :data:`FIRST` to :data:`LONGEST`; a random half of it is left out, so that those who failed together
    do not come back together.
    """
    full = min(FIRST * (1 << min(failures - 1, 16)), LONGEST)
    return full * (1 - random() / 2)


class Backoff:
    """A count of failures in a row, and the pauses after them; ``random`` gives a number from 0 to 1.

    stamina retries one call and sleeps by itself; these pauses never end a loop, can be interrupted (a sender that is
    to drain), and are kept in the queue across restarts (``due_at`` of an entry).
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self.failures = 0

    def next(self) -> timedelta:
        """Count a failure, and return the pause after it."""
        self.failures += 1
        return wait_after(self.failures, self._random)

    def reset(self) -> None:
        """Begin to count anew."""
        self.failures = 0


async def run_by_the_clock(runnable: Runnable, turn: Turn, listener: Listener, now: Callable[[], datetime]) -> NoReturn:
    """Run an instance whenever its turn comes; the clock's interval stays, however often it fails."""
    while True:
        async with turn.taken():
            await run_reported(runnable, listener, now)


async def run_continuously(
    runnable: Runnable, backoff: Backoff, listener: Listener, now: Callable[[], datetime]
) -> NoReturn:
    """Run an instance that never ends by itself; if it does, that is a failure, and it is started again."""
    while True:
        listener.started(runnable.task)
        report = await run_once(runnable, now)
        if report.error is None:
            report = replace(report, error="ended by itself, which a continuous collector never should")
        await listener.finished(report)
        if report.duration > _LONG_ENOUGH:
            backoff.reset()
        await anyio.sleep(backoff.next().total_seconds())


class RunReporter:
    """Notes the starts and ends of runs in health, log and spool, and tells hook modules of the ends."""

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
        """Begin to watch the instances of a section, from where their last runs before the restart left them.

        Args:
            section: of the configuration.
            instances: of the section, by name.
            write: says how a run ended where nothing else does, :func:`log_run` for instance.
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
        return Listener(partial(self._started, section), partial(self._finished, section, write))

    def _started(self, section: str, task: str) -> None:
        self._health.started(section, task, self._now())

    async def _finished(self, section: str, write: Callable[[str, RunReport], None], report: RunReport) -> None:
        if report.error is None:
            self._health.succeeded(section, report.task, report.started + report.duration, running=False)
        else:
            self._health.failed(section, report.task, report.error, running=False)
        write(section, report)
        try:
            await self._spool.record_run(report)
        except StoreUnavailable as error:  # the run itself is over and its batches are safe, or it has failed itself
            task_log(report.task, report.kind).error("%s", error)
        await self._hooks.call_event("auditord_run_finished", daemon=self._daemon, report=report)


def log_run(section: str, report: RunReport) -> None:
    """Write a line about a run; a collector that found nothing is worth none but in debugging."""
    log = task_log(report.task, report.kind)
    if report.error is not None:
        log.error("run failed: %s (%s)", report.error, summary(report))
    elif section == "collectors" and not (report.records or report.quarantined):
        log.debug("%s", summary(report))
    else:
        log.info("%s", summary(report))


def summary(report: RunReport) -> str:
    """The results of a run, in one line."""
    parts = [counted(report.records, "record")]
    if report.quarantined:
        parts.append(f"{report.quarantined} quarantined")
    parts += [f"{count} skipped: {reason}" for reason, count in sorted(report.skipped.items())]
    return f"{', '.join(parts)} in {report.duration.total_seconds():.1f} s"
