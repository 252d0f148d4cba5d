"""What Prometheus sees of the reports."""

from typing import Final

from prometheus_client import Counter, Gauge

MAILS: Final = Counter(
    "auditord_utilisation_mails",
    "Mails with reports, by what came of them: sent, refused (the recipient, for good) or failed (tried again).",
    ("task", "outcome"),
    registry=None,
)
REPORTED: Final = Gauge(
    "auditord_utilisation_reported_until_timestamp_seconds",
    "What stopped before this has been reported.",
    ("task",),
    registry=None,
)
