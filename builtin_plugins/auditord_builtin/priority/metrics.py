"""Metrics of the plugin, under auditord's names and under AUDITOR's."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from prometheus_client import Counter, Gauge
from prometheus_client.registry import Collector

from auditord_hookspecs.aggregates import nearest_float

if TYPE_CHECKING:  # its models use memory: only daemons with this plugin import them
    from auditord_builtin.priority.config import Metric

_LABELS: Final = ("task", "group")

_USAGE: Final = Gauge(
    "auditord_priority_resource_usage", "Amount x score x seconds of a group.", _LABELS, registry=None
)
_APPLIED: Final = Gauge(
    "auditord_priority_applied", "The priority that was last set for a group.", _LABELS, registry=None
)
FAILURES: Final = Counter(
    "auditord_priority_command_failures", "Commands that failed to set a priority.", _LABELS, registry=None
)
_AUDITOR_USAGE: Final = Gauge("resource_usage", "Resource usage metrics", _LABELS, registry=None)
_AUDITOR_PRIORITY: Final = Gauge("priority", "Priority metrics", _LABELS, registry=None)


INSTRUMENTS: Final[Iterable[Collector]] = (_USAGE, _APPLIED, FAILURES, _AUDITOR_USAGE, _AUDITOR_PRIORITY)


def show_usage(task: str, metrics: "Iterable[Metric]", usage: Mapping[str, Fraction]) -> None:
    """Set the usage gauges, if configured. AUDITOR's gauge is truncated to a whole number."""
    if "ResourceUsage" in metrics:
        for group, value in usage.items():
            _USAGE.labels(task, group).set(nearest_float(value))
            _AUDITOR_USAGE.labels(task, group).set(nearest_float(Fraction(int(value))))


def show_applied(task: str, metrics: "Iterable[Metric]", priorities: Mapping[str, int]) -> None:
    """Set the gauges of the applied priorities, if configured."""
    if "Priority" in metrics:
        for group, priority in priorities.items():
            _APPLIED.labels(task, group).set(priority)
            _AUDITOR_PRIORITY.labels(task, group).set(priority)
