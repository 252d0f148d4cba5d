"""Metrics of the reports."""

from collections import Counter as Counts
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Gauge
from prometheus_client.registry import Collector

if TYPE_CHECKING:  # its models use memory: only daemons with this plugin import them
    from auditord_builtin.waldur.planning import PlannedMonth


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(name, text, ("task", *labels), registry=None)


LAST_SUCCESS: Final = _gauge(
    "auditord_waldur_last_success_timestamp_seconds",
    "The time at which Waldur last had all permitted amounts.",
)
AMOUNT: Final = _gauge(
    "auditord_waldur_amount", "The usage of all resources in a month, in the component's unit.",
    *("component", "months_ago"),
)  # fmt: skip
ACCOUNTS: Final = _gauge("auditord_waldur_unmatched_accounts", "Accounts with usage but without a resource in Waldur.")
USERS: Final = _gauge("auditord_waldur_unmatched_users", "Users with usage who are not users of the offering.")
HELD_BACK: Final = _gauge(
    "auditord_waldur_anomalies", "Resources that the last report held back in some month, by reason.", "reason"
)
PROBLEMS: Final = _gauge("auditord_waldur_problems", "Amounts of the last report that Waldur did not accept.")
CLOSED: Final = _gauge(
    "auditord_waldur_closed_months", "Past months of resources for which Waldur accepts no more amounts."
)
REQUESTS: Final = Counter(
    "auditord_waldur_requests", "Requests to Waldur by the status of the answer.", ("task", "status"), registry=None
)
INSTRUMENTS: Final[Sequence[Collector]] = (LAST_SUCCESS, AMOUNT, ACCOUNTS, USERS, HELD_BACK, PROBLEMS, CLOSED, REQUESTS)


def set_planned(task: str, present: date, components: Iterable[str], months: "Sequence[PlannedMonth]") -> None:
    """Set the gauges of the planned months. ``present`` is the first day of the current month."""
    from auditord_builtin.waldur.planning import ANOMALIES  # noqa: PLC0415

    ACCOUNTS.labels(task).set(len({account for month in months for account in month.accounts}))
    USERS.labels(task).set(len({user for month in months for user in month.users}))
    held_back = Counts(held.anomaly for month in months for held in month.held_back)
    for anomaly in ANOMALIES:
        HELD_BACK.labels(task, anomaly).set(held_back[anomaly])
    nothing = Decimal()
    for month in months:
        first = month.plan.month
        months_ago = (present.year - first.year) * 12 + present.month - first.month
        for component in components:
            amount = sum((resource.totals.get(component, nothing) for resource in month.plan.resources), nothing)
            AMOUNT.labels(task, component, months_ago).set(float(amount))
