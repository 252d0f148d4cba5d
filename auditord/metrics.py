"""The host's own metrics for ``/metrics``; those of runs are a hook module's (``run_metrics``).

Every daemon has a registry of its own, so that two of them in one process do not mix.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from auditord_hookspecs import LeftOut

_TASK: Final = ("task", "kind")


def gauge(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    """A family with its samples, each with the values of its labels."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


class TaskMetrics:
    """Counters of what happens beside the runs themselves, by instance."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: Sequence[str] = _TASK) -> Counter:
            return Counter(name, text, labels, registry=registry)

        self.skipped_ticks = counter(
            "auditord_skipped_ticks", "Ticks left out since the run before was still going, or another daemon has run."
        )
        self.oversized_records = counter(
            "auditord_oversized_records", "Records too long for AUDITOR's asynchronous client, stored all the same."
        )
        self.left_out_components = counter(
            "auditord_left_out_components",
            "Optional components that records lack since what the source says of them cannot be read or believed.",
            ("task", "component"),
        )
        self.left_out_labels = counter(
            "auditord_left_out_labels", "Optional labels that records lack for the same reason.", ("task", "label")
        )
        self.sent_entries = counter("auditord_sent_entries", "Entries of the send-queue that were delivered.")
        self.refused_entries = counter("auditord_refused_entries", "Entries that a destination refused for good.")
        self.send_faults = counter("auditord_send_faults", "Sends that failed for the moment and are repeated.")
        self.send_failures = Gauge(
            "auditord_send_failures_in_a_row", "Failed sends since the last good one.", _TASK, registry=registry
        )

    def left_out(self, task: str, left_out: Iterable[LeftOut]) -> None:
        """Count the components and labels that the records of an instance lack."""
        for each in left_out:
            counter = self.left_out_labels if each.label else self.left_out_components
            counter.labels(task, each.name).inc()


class CountedKey(msgspec.Struct, frozen=True):
    """One of AUDITOR's gauges that count records by the value of a meta key."""

    metric: str
    label: str
    key: str


OTHER: Final = "other"
"""The value under which those are counted that are not told apart."""

_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
"""In the value of a label: https://prometheus.io/docs/instrumenting/exposition_formats/#comments-help-text-and-type-information"""


class PlainFamily(Metric):
    """A family of many samples, which writes itself.

    ``generate_latest`` checks and escapes the name and each label of every sample again: ten microseconds, in which
    no other client gets an answer. Names here need no escaping, and samples have no times. Nothing is added any more
    once it has been collected.
    """

    @cached_property
    def text(self) -> str:
        """The samples in Prometheus' text format."""
        lines = [f"# HELP {self.name} {self.documentation}", f"# TYPE {self.name} {self.type}"]
        lines += [
            f"{name}{_label_text(tuple(labels.items()))} {self.shown(value)}"
            for name, labels, value, *_ in self.samples
        ]
        return "\n".join([*lines, ""])

    def shown(self, value: float) -> str:
        """Write a number."""
        return repr(float(value))


class PlainHistogram(PlainFamily, HistogramMetricFamily):
    """Histograms that are written often."""


class PlainGauge(PlainFamily, GaugeMetricFamily):
    """Whole numbers as AUDITOR writes them, ``4`` and not ``4.0`` or ``1e+06``: its users compare text."""

    def shown(self, value: float) -> str:
        """Write a number."""
        return f"{value:.0f}"


@lru_cache(10_000)
def _label_text(labels: tuple[tuple[str, str], ...]) -> str:
    shown = [f'{label}="{value.translate(_ESCAPED)}"' for label, value in sorted(labels)]
    return f"{{{','.join(shown)}}}" if shown else ""


@dataclass(frozen=True, slots=True)
class _Families(Collector):
    """Metrics that have been collected."""

    metrics: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self.metrics


def exposition(registry: CollectorRegistry) -> bytes:
    """The metrics of a registry in Prometheus' text format."""
    metrics = list(registry.collect())
    others = generate_latest(_Families([each for each in metrics if not isinstance(each, PlainFamily)]))
    return others + "".join([each.text for each in metrics if isinstance(each, PlainFamily)]).encode()


class DatabaseMetrics(Collector):
    """AUDITOR's gauges about the records, and ours, as of the last look: reading them asks no database."""

    def __init__(self, *, total: bool, keys: tuple[CountedKey, ...], most_values: int) -> None:
        self.keys: Final = keys
        self._with_total = total
        self._most_values = most_values
        self._families: Sequence[Metric] = ()

    def update(
        self,
        total: int,
        per_value: Mapping[str, Mapping[str, int]],
        differences: int,
        feed_lag: Mapping[str, float] | None = None,
    ) -> None:
        """Show new counts.

        Args:
            total: of all records.
            per_value: by meta key and value.
            differences: of records that came again with other content.
            feed_lag: by consumer of the record store's feed, the age in seconds of the oldest record it has not read.
        """
        shown: list[Metric] = [
            gauge(
                "auditord_feed_lag_seconds",
                "Age of the oldest record that a consumer of the store's feed has not read; 0 if it has read all.",
                ["consumer"],
                (((consumer,), seconds) for consumer, seconds in (feed_lag or {}).items()),
            ),
            GaugeMetricFamily(
                "auditord_differences_records",
                "Records that came again with other content; the stored ones stay.",
                value=differences,
            ),
        ]
        text = "Number of records in the database."
        if self._with_total:
            shown.append(PlainGauge("num_records_database", text, value=total))
        for key in self.keys:
            family = PlainGauge(key.metric, text, labels=(key.label,))
            for value, count in self._largest(per_value.get(key.key, {})).items():
                family.add_metric((value,), count)
            shown.append(family)
        self._families = shown

    def collect(self) -> Iterable[Metric]:
        """The families; none before the first counts."""
        return self._families

    def _largest(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """The values with the most records; the rest together, so that no scrape grows with what clients write."""
        if len(counts) <= self._most_values:
            return counts
        ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        shown = dict(ordered[: self._most_values])
        shown[OTHER] = shown.get(OTHER, 0) + sum(count for _, count in ordered[self._most_values :])
        return shown
