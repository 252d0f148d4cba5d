"""The spool's statistics for ``/metrics``, as of the last look: reading them asks no database."""

from collections.abc import Callable, Iterator
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from auditord.spool.values import QueueStatistics, SpoolStatistics


class SpoolMetrics(Collector):
    """Queues, quarantine and checkpoints.

    Args:
        senders: kind by instance: an empty queue is shown as 0, not left out.
        now: the present instant; ages grow between two looks.
    """

    def __init__(self, senders: dict[str, str], now: Callable[[], datetime]) -> None:
        self._senders = senders
        self._now = now
        self._statistics = SpoolStatistics()

    @property
    def statistics(self) -> SpoolStatistics:
        """The last look."""
        return self._statistics

    def update(self, statistics: SpoolStatistics) -> None:
        """Show a new look."""
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """The families."""
        yield from self._queues()
        yield self._quarantine()
        age = GaugeMetricFamily("auditord_checkpoint_age_seconds", "Since a checkpoint was kept.", labels=("task",))
        for task, saved_at in self._statistics.checkpoints.items():
            age.add_metric((task,), self._age(saved_at))
        yield age
        yield CounterMetricFamily(
            "auditord_refused_bodies", "Bodies answered 400 and kept.", value=self._statistics.refused_bodies
        )
        yield CounterMetricFamily(
            "auditord_dropped_bodies",
            "Kept bodies that had to make room for newer ones.",
            value=self._statistics.dropped_bodies,
        )

    def _queues(self) -> Iterator[Metric]:
        labels = ("task", "kind")
        depth = GaugeMetricFamily("auditord_queue_entries", "Entries on their way.", labels=labels)
        age = GaugeMetricFamily("auditord_queue_oldest_age_seconds", "Age of the oldest entry.", labels=labels)
        for sender in sorted(self._senders.keys() | self._statistics.queues.keys()):
            queue = self._statistics.queues.get(sender, QueueStatistics())
            # A queue without a sender is one whose instance was taken out of the configuration.
            values = (sender, self._senders.get(sender, ""))
            depth.add_metric(values, queue.entries)
            age.add_metric(values, 0 if queue.oldest is None else self._age(queue.oldest))
        yield depth
        yield age

    def _quarantine(self) -> Metric:
        family = GaugeMetricFamily(
            "auditord_quarantine_entries", "What waits for a person's decision.", labels=("task", "stage")
        )
        for (stage, task), count in self._statistics.quarantined.items():
            family.add_metric((task, stage), count)
        return family

    def _age(self, moment: datetime) -> float:
        return max((self._now() - moment).total_seconds(), 0)
