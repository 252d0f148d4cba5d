"""The nightly audit of every collector that can list its source, and its metrics."""

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from auditord.actions import Actions
from auditord.audit.values import AuditReport, AuditRequest
from auditord.config.watching import AuditSection
from auditord.spool import Spool
from auditord.tasks.clock import Turn
from auditord_hookspecs import AuditordError, Batch, Window
from auditord_hookspecs.wire import format_time, parse_time
from auditord_hookspecs.wording import counted

_log: Final = logging.getLogger(__name__)

TASK: Final = "nightly audit"
"""The clock's name of the nightly audit."""

MISSING: Final = ("missing", "unclosed")


class NightlyResult(msgspec.Struct, frozen=True):
    """The result of a collector's nightly audit, kept over restarts; the counts are by day."""

    finished: str
    missing: dict[str, int]


class AuditMetrics(Collector):
    """The last nightly results."""

    def __init__(self) -> None:
        self.results: dict[str, NightlyResult] = {}

    def collect(self) -> Iterator[Metric]:
        """The families."""
        missing = GaugeMetricFamily(
            "auditord_source_missing_records",
            "Records that the source knows and the store lacks, or lacks the end of, as of the last nightly audit.",
            labels=("task", "day"),
        )
        finished = GaugeMetricFamily(
            "auditord_audit_last_success_timestamp_seconds", "When a nightly audit was last finished.", labels=["task"]
        )
        for task, result in self.results.items():
            finished.add_metric((task,), parse_time(result.finished).timestamp())
            for day, count in result.missing.items():
                missing.add_metric((task, day), count)
        yield missing
        yield finished


class NightlyAudits:
    """Audits the last whole days of collectors, one after the other."""

    def __init__(
        self,
        section: AuditSection,
        tasks: Sequence[str],
        actions: Actions,
        spool: Spool,
    ) -> None:
        self._section = section
        self._tasks = tasks
        self._actions = actions
        self._spool = spool
        self.metrics: Final = AuditMetrics()
        self.turn: Final = Turn()

    def left_out(self) -> None:
        """Note that the audit before is still going on."""
        _log.warning("last night's audit is still going on, so this one is left out")

    async def restore(self) -> None:
        """Show the results of before a restart."""
        for task in self._tasks:
            kept: Any = await self._spool.checkpoint(_kept(task))  # Any: JSON
            if kept is not None:
                self.metrics.results[task] = msgspec.convert(kept, NightlyResult)

    async def run(self, now: Callable[[], datetime]) -> NoReturn:
        """Audit whenever the clock asks."""
        while True:
            async with self.turn.taken():
                for task in self._tasks:
                    await self._audit(task, now)

    async def _audit(self, task: str, now: Callable[[], datetime]) -> None:
        end = now().replace(hour=0, minute=0, second=0, microsecond=0)
        window = Window(end - timedelta(days=self._section.days), end)
        try:
            report = await self._actions.audit(AuditRequest(task, window), None)
        except AuditordError as error:
            _log.error("the audit of %s failed: %s", task, error)
            return
        if report.error is not None:
            _log.error("the audit of %s is not whole: %s", task, report.error)
            return
        result = NightlyResult(format_time(now()), _missing_by_day(report, window))
        self.metrics.results[task] = result
        await self._spool.enqueue(_kept(task), Batch(checkpoint=msgspec.to_builtins(result)), ())
        if count := sum(result.missing.values()):
            _log.warning(
                "%s: %s missing: auditord audit %s --repair", task, counted(count, "record is", "records are"), task
            )


def _kept(task: str) -> str:
    """The name of the result among the checkpoints; no instance can have it."""
    return f"audit:{task}"


def _missing_by_day(report: AuditReport, window: Window) -> dict[str, int]:
    """The number of missing records of each day, also of those without any; under no day, jobs of an unknown one."""
    found = {
        (window.start + timedelta(days=number)).astimezone(UTC).date().isoformat(): 0
        for number in range((window.stop - window.start).days)
    }
    for each in report.days:
        if count := sum(each.counts.get(state, 0) for state in MISSING):
            found[each.day] = found.get(each.day, 0) + count
    return found
