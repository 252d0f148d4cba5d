"""Runs of instances, each inside its error boundary: whatever goes wrong is a report and touches no other instance."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NoReturn

import anyio

from auditord.contexts.instances import task_log
from auditord.tasks.backoff import Backoff
from auditord.tasks.clock import Turn
from auditord_hookspecs import AuditordError, RunReport

_LONG_ENOUGH: Final = timedelta(minutes=5)


@dataclass
class Tally:
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
    execute: Callable[[Tally], Awaitable[None]]
    timeout: timedelta | None


@dataclass(frozen=True, slots=True)
class Listener:
    """The receiver of the starts of runs, by the instance's name, and of their reports."""

    started: Callable[[str], None]
    finished: Callable[[RunReport], Awaitable[None]]


async def run_once(runnable: Runnable, now: Callable[[], datetime]) -> RunReport:
    """Run an instance; a report comes back whatever happens, except when the caller is cancelled."""
    started, begun, tally = now(), anyio.current_time(), Tally()
    error = await _guarded(runnable, tally)
    return RunReport(
        task=runnable.task,
        kind=runnable.kind,
        started=started,
        duration=timedelta(seconds=anyio.current_time() - begun),
        error=error,
        records=tally.records,
        quarantined=tally.quarantined,
        skipped=dict(tally.skipped),
    )


async def _guarded(runnable: Runnable, tally: Tally) -> str | None:
    limit = None if runnable.timeout is None else runnable.timeout.total_seconds()
    try:
        with anyio.move_on_after(limit) as scope:
            await runnable.execute(tally)
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
