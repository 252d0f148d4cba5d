"""Metrics of reporting."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import Counter, Gauge
from prometheus_client.registry import Collector

JOBS: Final = Gauge(
    "auditord_apel_jobs",
    "Jobs of a month: in the store, in the last report, in the last report that was fully acknowledged.",
    ("task", "site", "month", "stage"),
    registry=None,
)
WAITING: Final = Gauge(
    "auditord_apel_waiting_messages", "Messages that wait to be sent.", ("task", "site"), registry=None
)
ACKNOWLEDGED: Final = Gauge(
    "auditord_apel_acknowledged_timestamp_seconds",
    "When the broker last accepted the last message of a month.",
    ("task", "site"),
    registry=None,
)
EXPIRY: Final = Gauge(
    "auditord_apel_certificate_expiry_timestamp_seconds",
    "When the certificate expires.",
    ("task",),
    registry=None,
)
PUBLISHED: Final = Counter(
    "auditord_apel_messages", "Messages accepted by the broker.", ("task", "site"), registry=None
)
FAILURES: Final = Counter(
    "auditord_apel_failures", "Months and days that could not be reported.", ("task", "site"), registry=None
)

INSTRUMENTS: Final[Iterable[Collector]] = (JOBS, WAITING, ACKNOWLEDGED, EXPIRY, PUBLISHED, FAILURES)
