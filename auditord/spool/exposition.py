"""The spool's statistics for ``/metrics``, as of the last look: reading them asks no database."""

from collections.abc import Callable, Iterator
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from auditord.metrics import gauge
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
        labels, statistics = ("task", "kind"), self._statistics
        # A queue without a sender is one whose instance was taken out of the configuration.
        queues = [
            ((sender, self._senders.get(sender, "")), statistics.queues.get(sender, QueueStatistics()))
            for sender in sorted(self._senders.keys() | statistics.queues.keys())
        ]
        yield gauge(
            "auditord_queue_entries", "Entries on their way.", labels, ((key, queue.entries) for key, queue in queues)
        )
        yield gauge(
            "auditord_queue_oldest_age_seconds",
            "Age of the oldest entry.",
            labels,
            ((key, 0 if queue.oldest is None else self._age(queue.oldest)) for key, queue in queues),
        )
        yield gauge(
            "auditord_quarantine_entries",
            "What waits for a person's decision.",
            ("task", "stage"),
            (((task, stage), count) for (stage, task), count in statistics.quarantined.items()),
        )
        yield gauge(
            "auditord_checkpoint_age_seconds",
            "Since a checkpoint was kept.",
            ("task",),
            (((task,), self._age(saved_at)) for task, saved_at in statistics.checkpoints.items()),
        )
        yield CounterMetricFamily(
            "auditord_refused_bodies", "Bodies answered 400 and kept.", value=self._statistics.refused_bodies
        )
        yield CounterMetricFamily(
            "auditord_dropped_bodies",
            "Kept bodies that had to make room for newer ones.",
            value=self._statistics.dropped_bodies,
        )

    def _age(self, moment: datetime) -> float:
        return max((self._now() - moment).total_seconds(), 0)
