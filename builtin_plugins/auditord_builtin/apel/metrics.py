"""How much of what the store has is reported, and whether anything is in the way."""

from collections import Counter as Tally
from collections.abc import Iterable
from typing import Final

from prometheus_client import Counter, Gauge
from prometheus_client.registry import Collector

from auditord_builtin.apel.books import Books, SiteBook
from auditord_hookspecs import PluginContext

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


def show_books(task: str, books: Books) -> None:
    """Set the gauges to what is written down."""
    for site, book in books.sites.items():
        for (month, stage), jobs in stages(book).items():
            JOBS.labels(task, site, month, stage).set(jobs)
        outboxes = [month.outbox for month in book.months.values()]
        WAITING.labels(task, site).set(sum(len(outbox.messages) for outbox in outboxes if outbox is not None))
        if moments := [month.acknowledged for month in book.months.values() if month.acknowledged is not None]:
            ACKNOWLEDGED.labels(task, site).set(max(moments).timestamp())


def count_message(context: PluginContext, site: str) -> None:
    """Count a message that went out, if it did."""
    if not context.dry_run:
        PUBLISHED.labels(context.instance, site).inc()


def count_failure(context: PluginContext, site: str) -> None:
    """Count something that could not be reported."""
    if not context.dry_run:
        FAILURES.labels(context.instance, site).inc()


def stages(book: SiteBook) -> Tally[tuple[str, str]]:
    """How many jobs of each month are in the store, reportable, and acknowledged."""
    jobs: Tally[tuple[str, str]] = Tally()
    for text, month in book.months.items():
        jobs[text, "stored"] += month.stored
        jobs[text, "reported"] += month.reportable
        jobs[text, "acknowledged"] += month.jobs
    for text, day in book.days.items():
        jobs[text[:7], "stored"] += day.stored
        jobs[text[:7], "reported"] += day.reportable
        jobs[text[:7], "acknowledged"] += day.jobs
    return jobs
