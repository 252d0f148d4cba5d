"""Reports of runs and sends, passed on to health, metrics, the log, the spool and the hooks."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from auditord.contexts.instances import task_log
from auditord.errors import StoreUnavailable
from auditord.health import Health, TaskHealth
from auditord.metrics import TaskMetrics
from auditord.spool import Spool
from auditord.tasks.runs import Listener
from auditord_hookspecs import CollectorKind, InstanceConfig, PluginKind, RunReport


class RunReporter:
    """Passes on the starts and ends of runs.

    Args:
        announce: the event of the hooks.
        write: says how a run ended where nothing else does, :func:`log_run` for instance.
    """

    def __init__(
        self,
        health: Health,
        spool: Spool,
        announce: Callable[[RunReport], Awaitable[None]],
        now: Callable[[], datetime],
        write: Callable[[str, RunReport], None],
    ) -> None:
        self._health = health
        self._spool = spool
        self._announce = announce
        self._now = now
        self._write = write

    async def watch(
        self, section: str, instances: Mapping[str, tuple[CollectorKind[Any] | PluginKind[Any], InstanceConfig]]
    ) -> Listener:
        """Begin to watch the instances of a section, from where their last runs before the restart left them."""
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
        return Listener(partial(self._started, section), partial(self._finished, section))

    def _started(self, section: str, task: str) -> None:
        self._health.started(section, task, self._now())

    async def _finished(self, section: str, report: RunReport) -> None:
        if report.error is None:
            self._health.succeeded(section, report.task, report.started + report.duration, running=False)
        else:
            self._health.failed(section, report.task, report.error, running=False)
        self._write(section, report)
        try:
            await self._spool.record_run(report)
        except StoreUnavailable as error:  # the run itself is over and its batches are safe, or it has failed itself
            task_log(report.task, report.kind).error("%s", error)
        await self._announce(report)


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
    parts = [f"{report.records} records"]
    if report.quarantined:
        parts.append(f"{report.quarantined} quarantined")
    parts += [f"{count} skipped: {reason}" for reason, count in sorted(report.skipped.items())]
    return f"{', '.join(parts)} in {report.duration.total_seconds():.1f} s"


class SendReporter:
    """Passes on how one sender fares, to health, metrics and the log."""

    def __init__(self, task: str, kind: str, health: Health, metrics: TaskMetrics, now: Callable[[], datetime]) -> None:
        self._labels = (task, kind)
        self._health = health
        self._metrics = metrics
        self._now = now
        self._log = task_log(task, kind)
        self._failing = False
        health.expect(TaskHealth(task, kind, "senders", running=True))

    def sent(self, delivered: int, refused: int) -> None:
        """Count a batch that arrived."""
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
        """Count a batch that failed for the moment."""
        self._failing = True
        self._health.failed("senders", self._labels[0], error, running=True)
        self._metrics.send_faults.labels(*self._labels).inc()
        self._metrics.send_failures.labels(*self._labels).set(failures)
        self._log.warning(
            "cannot deliver (failure %d in a row; nothing is lost, it is tried again): %s", failures, error
        )
