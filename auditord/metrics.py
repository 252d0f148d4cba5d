"""Building blocks of ``/metrics``: counters by instance, AUDITOR's gauges of record counts, and fast text formatting.

All other metrics are defined next to what they measure (``tasks.gauges``, ``web.dispatch``, the lake, backups), those
about runs in ``auditord_builtin.run_metrics``. :class:`~auditord.runtime.Runtime` creates a registry for each daemon,
so two daemons in one process do not mix their metrics.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from auditord_hookspecs import LeftOut

_TASK: Final = ("task", "kind")


def gauge(
    name: str, documentation: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    """Return a gauge with its samples, which are pairs of label values and value."""
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


class TaskMetrics:
    """Metrics by instance that run reports lack: skipped ticks, oversized and incomplete records, and deliveries."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str, labels: Sequence[str] = _TASK) -> Counter:
            return Counter(name, documentation, labels, registry=registry)

        self.skipped_ticks = counter(
            "auditord_skipped_ticks",
            "Scheduled runs that were skipped: the previous run had not ended, another daemon had run the plugin, or "
            "the plugin waits until collectors have run after a restore.",
        )
        self.oversized_records = counter(
            "auditord_oversized_records", "Records that are stored, but too large for AUDITOR's asynchronous client."
        )
        self.left_out_components = counter(
            "auditord_left_out_components",
            "Optional components left out of records, since the source's value was unreadable or implausible.",
            ("task", "component"),
        )
        self.left_out_labels = counter(
            "auditord_left_out_labels",
            "Optional labels left out of records, since the source's value was unreadable or implausible.",
            ("task", "label"),
        )
        self.rounded_components = counter(
            "auditord_rounded_components",
            "Components that lost a fraction of a core or GPU, since amounts are whole numbers: a total would keep it.",
            ("task", "component"),
        )
        self.sent_entries = counter("auditord_sent_entries", "Entries of the send-queue that were delivered.")
        self.refused_entries = counter(
            "auditord_refused_entries", "Entries of the send-queue that a destination refused for good."
        )
        self.send_faults = counter("auditord_send_faults", "Sends that failed temporarily and are retried.")
        self.send_failures = Gauge(
            "auditord_send_failures_in_a_row", "Failed sends since the last successful one.", _TASK, registry=registry
        )

    def count_left_out(self, task: str, left_out: Iterable[LeftOut]) -> None:
        """Count the components and labels that were left out of an instance's records, and rounded components."""
        for each in left_out:
            counter = self.left_out_labels if each.label else self.left_out_components
            counter = self.rounded_components if each.rounded else counter
            counter.labels(task, each.name).inc()


class CountedKey(msgspec.Struct, frozen=True):
    """One of AUDITOR's gauges that count records by the value of a meta key."""

    metric: str
    label: str
    key: str


OTHER: Final = "other"
"""The label value that counts the records of all values without a sample of their own."""

_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
"""Escapes in label values: https://prometheus.io/docs/instrumenting/exposition_formats/#comments-help-text-and-type-information"""


class PlainFamily(Metric):
    """A metric family with many samples, which formats itself.

    ``generate_latest`` checks and escapes the name and each label of every sample again. That blocks the event loop for
    ten microseconds per sample. Names of these families need no escaping, and their samples have no timestamps. The
    text is cached, so add no samples once the family has been collected.
    """

    @cached_property
    def text(self) -> str:
        """The samples in Prometheus' text format."""
        lines = [f"# HELP {self.name} {self.documentation}", f"# TYPE {self.name} {self.type}"]
        lines += [
            f"{name}{label_text(tuple(labels.items()))} {self.format_value(value)}"
            for name, labels, value, *_ in self.samples
        ]
        return "\n".join([*lines, ""])

    def format_value(self, value: float) -> str:
        """Return the text of a sample's value."""
        return repr(float(value))


class PlainGauge(PlainFamily, GaugeMetricFamily):
    """A gauge of integers, printed as AUDITOR prints them: ``4``, not ``4.0`` or ``1e+06``.

    Scripts of AUDITOR's users compare the output as text.
    """

    def format_value(self, value: float) -> str:
        """Return the text of a sample's value."""
        return f"{value:.0f}"


@lru_cache(10_000)
def label_text(labels: tuple[tuple[str, str], ...]) -> str:
    """Return labels in Prometheus' text format, sorted by name; nothing without labels."""
    pairs = [f'{label}="{value.translate(_ESCAPED)}"' for label, value in sorted(labels)]
    return f"{{{','.join(pairs)}}}" if pairs else ""


@dataclass(frozen=True, slots=True)
class _Families(Collector):
    """A registry's collector of already collected metrics."""

    metrics: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def exposition(registry: CollectorRegistry) -> bytes:
    """Return the metrics of a registry in Prometheus' text format."""
    metrics = list(registry.collect())
    head = generate_latest(_Families([each for each in metrics if not isinstance(each, PlainFamily)]))
    return head + "".join([each.text for each in metrics if isinstance(each, PlainFamily)]).encode()


class DatabaseMetrics(Collector):
    """AUDITOR's gauges of record counts, and our own about records, as of the last update. A scrape reads no database.

    Args:
        total: whether to show the number of all records.
        keys: the gauges that count records by meta key.
        max_values: the maximum number of values that a gauge shows; it counts all others as :data:`OTHER`.
    """

    def __init__(self, *, total: bool, keys: tuple[CountedKey, ...], max_values: int) -> None:
        self.keys: Final = keys
        self._with_total = total
        self._max_values = max_values
        self._families: Sequence[Metric] = ()

    def update(
        self,
        total: int,
        per_value: Mapping[str, Mapping[str, int]],
        differences: int,
        feed_lag: Mapping[str, float] | None = None,
    ) -> None:
        """Replace the values of the gauges.

        Args:
            total: the number of all records.
            per_value: the numbers of records by meta key and value.
            differences: the number of records that were received again with other content.
            feed_lag: the age in seconds of the oldest unread record, by consumer of the record store's feed.
        """
        families: list[Metric] = [
            gauge(
                "auditord_feed_lag_seconds",
                "Age of the oldest record that a consumer of the store's feed has not read; 0 if it has read all.",
                ["consumer"],
                (((consumer,), seconds) for consumer, seconds in (feed_lag or {}).items()),
            ),
            GaugeMetricFamily(
                "auditord_differences_records",
                "Records that were received again with other content; the stored ones are unchanged.",
                value=differences,
            ),
        ]
        documentation = "Number of records in the database."
        if self._with_total:
            families.append(PlainGauge("num_records_database", documentation, value=total))
        for key in self.keys:
            family = PlainGauge(key.metric, documentation, labels=(key.label,))
            counts = dict(per_value.get(key.key, {}))
            # Clients can write any number of values; the limit keeps scrapes small.
            smallest_last = sorted(counts, key=lambda value: (-counts[value], value))
            if others := sum(counts.pop(value) for value in smallest_last[self._max_values :]):
                counts[OTHER] = counts.get(OTHER, 0) + others
            for value, count in counts.items():
                family.add_metric((value,), count)
            families.append(family)
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the gauges; none before the first update."""
        return self._families
