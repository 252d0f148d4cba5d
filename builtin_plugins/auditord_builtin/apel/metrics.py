"""Metrics of reporting."""

import collections
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Gauge
from prometheus_client.registry import Collector

if TYPE_CHECKING:  # its models need memory, and only daemons with this plugin need them
    from auditord_builtin.apel.state import DayState, MonthState, ReportedState, SiteState

JOBS: Final = Gauge(
    "auditord_apel_jobs",
    "Jobs of a month: in the store, in the last report that was made, in the last one that was acknowledged in full.",
    ("task", "site", "month", "stage"),
    registry=None,
)
WAITING: Final = Gauge(
    "auditord_apel_waiting_messages", "Messages that are still to be sent.", ("task", "site"), registry=None
)
ACKNOWLEDGED: Final = Gauge(
    "auditord_apel_acknowledged_timestamp_seconds",
    "When the broker last took the last message of a month.",
    ("task", "site"),
    registry=None,
)
EXPIRY: Final = Gauge(
    "auditord_apel_certificate_expiry_timestamp_seconds", "When the certificate ends.", ("task",), registry=None
)
PUBLISHED: Final = Counter("auditord_apel_messages", "Messages that the broker took.", ("task", "site"), registry=None)
FAILURES: Final = Counter(
    "auditord_apel_failures", "Months and days that could not be reported.", ("task", "site"), registry=None
)

INSTRUMENTS: Final[Iterable[Collector]] = (JOBS, WAITING, ACKNOWLEDGED, EXPIRY, PUBLISHED, FAILURES)


def show_state(task: str, state: "ReportedState") -> None:
    """Set the gauges."""
    for site, reported in state.sites.items():
        for (month, stage), jobs in stages(reported).items():
            JOBS.labels(task, site, month, stage).set(jobs)
        outboxes = [month.outbox for month in reported.months.values()]
        WAITING.labels(task, site).set(sum(len(outbox.messages) for outbox in outboxes if outbox is not None))
        if moments := [month.acknowledged for month in reported.months.values() if month.acknowledged is not None]:
            ACKNOWLEDGED.labels(task, site).set(max(moments).timestamp())


def stages(state: "SiteState") -> collections.Counter[tuple[str, str]]:
    """Return how many jobs of each month are stored, reported and acknowledged."""
    jobs: collections.Counter[tuple[str, str]] = collections.Counter()
    known: tuple[tuple[str, MonthState | DayState], ...] = (*state.months.items(), *state.days.items())
    for text, each in known:
        jobs[text[:7], "stored"] += each.stored
        jobs[text[:7], "reported"] += each.reportable
        jobs[text[:7], "acknowledged"] += each.jobs
    return jobs
