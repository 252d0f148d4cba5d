"""Metrics about runs of collectors and plugins."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from auditord_hookspecs import Daemon, RunReport, hookimpl

if TYPE_CHECKING:  # only the daemon has prometheus_client loaded
    from prometheus_client import Counter
    from prometheus_client.registry import Collector

_TASK: Final = ("task", "kind")
_SECONDS: Final = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3_600)


class RunMetrics:
    """The instruments of one daemon."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Histogram  # noqa: PLC0415 only the daemon needs it

        def counter(name: str, text: str, *labels: str) -> "Counter":
            return Counter(name, text, (*_TASK, *labels), registry=None)

        self.duration = Histogram(
            "auditord_run_duration_seconds", "How long runs took.", _TASK, buckets=_SECONDS, registry=None
        )
        self.failures = counter("auditord_run_failures", "Runs that failed.")
        self.records = counter("auditord_collected_records", "Records that runs put into the spool.")
        self.quarantined = counter("auditord_quarantined_jobs", "Jobs that runs could not convert.")
        self.skipped = counter("auditord_skipped_jobs", "Jobs that make no record, by reason.", "reason")

    def count(self, report: RunReport) -> None:
        """Count one run. Counters also start at zero for new instances, so that rates see the first failure."""
        labels = (report.task, report.kind)
        self.duration.labels(*labels).observe(report.duration.total_seconds())
        self.failures.labels(*labels).inc(report.error is not None)
        self.records.labels(*labels).inc(report.records)
        self.quarantined.labels(*labels).inc(report.quarantined)
        for reason, count in report.skipped.items():
            self.skipped.labels(*labels, reason).inc(count)


_metrics: Final[WeakKeyDictionary[Daemon, RunMetrics]] = WeakKeyDictionary()


@hookimpl
def auditord_metrics(daemon: Daemon) -> Iterable["Collector"]:
    metrics = _metrics[daemon] = RunMetrics()
    return (metrics.duration, metrics.failures, metrics.records, metrics.quarantined, metrics.skipped)


@hookimpl
async def auditord_run_finished(daemon: Daemon, report: RunReport) -> None:
    if daemon in _metrics:
        _metrics[daemon].count(report)
