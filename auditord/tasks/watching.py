"""Passing on how runs and sends went: to health, metrics, the log, the spool and the hooks."""

from collections.abc import Callable
from datetime import datetime

from auditord.contexts.instances import HostDaemon, task_log
from auditord.errors import StoreUnavailable
from auditord.health import Health, TaskHealth
from auditord.hooks import Hooks
from auditord.metrics import TaskMetrics
from auditord.spool import LastRun, Spool
from auditord.tasks.running import Listener, Runnable
from auditord_hookspecs import RunReport


class RunWatch:
    """Hears of the runs of one section's instances.

    Args:
        section: ``collectors`` or ``plugins``.
        health: told first.
        spool: keeps the last run for commands.
        hooks: hear the event.
        daemon: what hooks are given.
        now: the present instant.
        tell: says how a run ended where nobody else does, :func:`log_run` for instance.
    """

    def __init__(
        self,
        section: str,
        *,
        health: Health,
        spool: Spool,
        hooks: Hooks,
        daemon: HostDaemon,
        now: Callable[[], datetime],
        tell: Callable[[RunReport], None],
    ) -> None:
        self._section = section
        self._health = health
        self._spool = spool
        self._hooks = hooks
        self._daemon = daemon
        self._now = now
        self._tell = tell

    def expect(self, task: str, kind: str, last: LastRun | None) -> None:
        """Begin to watch an instance, from where its last run before the restart left it."""
        fresh = TaskHealth(task, kind, self._section)
        known = fresh if last is None else _restored(fresh, last)
        self._health.expect(known)

    def listener(self) -> Listener:
        """For the loops that run instances."""
        return Listener(self._started, self._finished)

    def _started(self, runnable: Runnable) -> None:
        self._health.started(self._section, runnable.task, self._now())

    async def _finished(self, report: RunReport) -> None:
        if report.error is None:
            ended = report.started + report.duration
            self._health.succeeded(self._section, report.task, ended, running=False)
        else:
            self._health.failed(self._section, report.task, report.error, running=False)
        self._tell(report)
        await self._keep(report)
        await self._hooks.call_event("auditord_run_finished", daemon=self._daemon, report=report)

    async def _keep(self, report: RunReport) -> None:
        try:
            await self._spool.record_run(report)
        except StoreUnavailable as error:  # the run itself is over and its batches are safe, or it has failed itself
            task_log(report.task, report.kind).error("%s", error)


def _restored(fresh: TaskHealth, last: LastRun) -> TaskHealth:
    return TaskHealth(
        fresh.task,
        fresh.kind,
        fresh.section,
        last_started=last.started,
        last_success=last.last_success,
        last_error=last.error,
        failures=last.failures,
    )


def log_run(report: RunReport) -> None:
    """Write a line about a run."""
    log = task_log(report.task, report.kind)
    if report.error is None:
        log.info("%s", summary(report))
    else:
        log.error("run failed: %s (%s)", report.error, summary(report))


def summary(report: RunReport) -> str:
    """What a run made, in one line."""
    parts = [f"{report.records} records"]
    if report.quarantined:
        parts.append(f"{report.quarantined} quarantined")
    parts += [f"{count} skipped: {reason}" for reason, count in sorted(report.skipped.items())]
    return f"{', '.join(parts)} in {report.duration.total_seconds():.1f} s"


class SendWatch:
    """Hears how one sender fares.

    Args:
        task: the instance's name.
        kind: its kind's name.
        health: told first.
        metrics: count it.
        now: the present instant.
    """

    def __init__(self, task: str, kind: str, health: Health, metrics: TaskMetrics, now: Callable[[], datetime]) -> None:
        self._labels = (task, kind)
        self._health = health
        self._metrics = metrics
        self._now = now
        self._log = task_log(task, kind)
        self._failing = False
        health.expect(TaskHealth(task, kind, "senders", running=True))

    def sent(self, delivered: int, refused: int) -> None:
        """A batch arrived."""
        self._health.succeeded("senders", self._labels[0], self._now(), running=True)
        self._metrics.sent_entries.labels(*self._labels).inc(delivered)
        self._metrics.refused_entries.labels(*self._labels).inc(refused)
        self._metrics.send_failures.labels(*self._labels).set(0)
        if refused:
            self._log.warning("%d entries were refused for good and are in quarantine", refused)
        if self._failing:
            self._log.info("delivers again")
        self._failing = False

    def faulted(self, error: str, failures: int) -> None:
        """A batch failed for the moment."""
        self._failing = True
        self._health.failed("senders", self._labels[0], error, running=True)
        self._metrics.send_faults.labels(*self._labels).inc()
        self._metrics.send_failures.labels(*self._labels).set(failures)
        self._log.warning(
            "cannot deliver (failure %d in a row; nothing is lost, it is tried again): %s", failures, error
        )
