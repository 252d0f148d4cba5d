"""The host's own metrics for ``/metrics``; those of runs are a hook module's (``run_metrics``).

Every daemon has a registry of its own, so that two of them in one process do not mix.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_TASK: Final = ("task", "kind")


class TaskMetrics:
    """Counters of what happens beside the runs themselves, by instance."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, _TASK, registry=registry)

        self.skipped_ticks = counter(
            "auditord_skipped_ticks", "Ticks left out since the run before was still going, or another daemon has run."
        )
        self.oversized_records = counter(
            "auditord_oversized_records", "Records too long for AUDITOR's asynchronous client, stored all the same."
        )
        self.sent_entries = counter("auditord_sent_entries", "Entries of the send-queue that were delivered.")
        self.refused_entries = counter("auditord_refused_entries", "Entries that a destination refused for good.")
        self.send_faults = counter("auditord_send_faults", "Sends that failed for the moment and are repeated.")
        self.send_failures = Gauge(
            "auditord_send_failures_in_a_row", "Failed sends since the last good one.", _TASK, registry=registry
        )


@dataclass(frozen=True, slots=True)
class CountedKey:
    """One of AUDITOR's gauges that count records by the value of a meta key."""

    metric: str
    label: str
    key: str


OTHER: Final = "other"
"""The value under which those are counted that are not told apart."""

_COUNT_OF_RECORDS: Final = re.compile(rb"^(num_records_database\w*(?:\{.*\})?) (\S+)$", re.MULTILINE)


def exposition(registry: CollectorRegistry) -> bytes:
    """The metrics of a registry in Prometheus' text format.

    AUDITOR's gauges are written as AUDITOR writes them, ``4`` and not ``4.0`` or ``1e+06``: its users compare text.
    """
    return _COUNT_OF_RECORDS.sub(lambda sample: b"%s %d" % (sample[1], float(sample[2])), generate_latest(registry))


class DatabaseMetrics(Collector):
    """AUDITOR's gauges about the records, and ours, as of the last look: reading them asks no database."""

    def __init__(self, *, total: bool, keys: tuple[CountedKey, ...], most_values: int) -> None:
        self.keys: Final = keys
        self._with_total = total
        self._most_values = most_values
        self._total: int | None = None
        self._differences = 0
        self._per_value: Mapping[str, Mapping[str, int]] = {}

    def update(self, total: int, per_value: Mapping[str, Mapping[str, int]], differences: int) -> None:
        """Show new counts: in all, by meta key and value, and of records that came again with other content."""
        self._total, self._per_value, self._differences = total, per_value, differences

    def collect(self) -> Iterator[Metric]:
        """The families; none before the first counts."""
        if self._total is None:
            return
        yield GaugeMetricFamily(
            "auditord_differences_records",
            "Records that came again with other content; the stored ones stay.",
            value=self._differences,
        )
        text = "Number of records in the database."
        if self._with_total:
            yield GaugeMetricFamily("num_records_database", text, value=self._total)
        for key in self.keys:
            family = GaugeMetricFamily(key.metric, text, labels=(key.label,))
            for value, count in self._largest(self._per_value.get(key.key, {})).items():
                family.add_metric((value,), count)
            yield family

    def _largest(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """The values with the most records; the rest together, so that no scrape grows with what clients write."""
        if len(counts) <= self._most_values:
            return counts
        ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        shown = dict(ordered[: self._most_values])
        shown[OTHER] = shown.get(OTHER, 0) + sum(count for _, count in ordered[self._most_values :])
        return shown
