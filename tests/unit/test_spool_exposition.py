"""The spool's statistics as /metrics shows them."""

from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry, generate_latest

from auditord.spool import QueueStatistics, SpoolStatistics
from auditord.tasks.gauges import SpoolMetrics

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

SHOWN = """\
# HELP auditord_queue_entries Entries in the send-queue.
# TYPE auditord_queue_entries gauge
auditord_queue_entries{kind="local",task="home"} 0.0
auditord_queue_entries{kind="",task="left"} 1.0
auditord_queue_entries{kind="remote",task="there"} 3.0
# HELP auditord_queue_oldest_age_seconds Age of the oldest entry in the send-queue.
# TYPE auditord_queue_oldest_age_seconds gauge
auditord_queue_oldest_age_seconds{kind="local",task="home"} 0.0
auditord_queue_oldest_age_seconds{kind="",task="left"} 0.0
auditord_queue_oldest_age_seconds{kind="remote",task="there"} 90.0
# HELP auditord_quarantine_entries Entries in quarantine, which wait for an operator's decision.
# TYPE auditord_quarantine_entries gauge
auditord_quarantine_entries{stage="job",task="slurm"} 2.0
# HELP auditord_checkpoint_age_seconds Time since the checkpoint was last saved.
# TYPE auditord_checkpoint_age_seconds gauge
auditord_checkpoint_age_seconds{task="slurm"} 60.0
# HELP auditord_refused_bodies_total Request bodies that were refused with status 400 and kept in quarantine.
# TYPE auditord_refused_bodies_total counter
auditord_refused_bodies_total 7.0
# HELP auditord_dropped_bodies_total Request bodies that were deleted from quarantine to make room for newer ones.
# TYPE auditord_dropped_bodies_total counter
auditord_dropped_bodies_total 5.0
"""


def test_queues_quarantine_checkpoints_and_bodies() -> None:
    shown = SpoolMetrics({"there": "remote", "home": "local"}, lambda: NOON)
    statistics = SpoolStatistics(
        queues={
            "there": QueueStatistics(entries=3, oldest=NOON - timedelta(seconds=90), attempts=1),
            "left": QueueStatistics(entries=1, oldest=NOON + timedelta(seconds=5)),  # a clock that was set back
        },
        quarantined={("job", "slurm"): 2},
        checkpoints={"slurm": NOON - timedelta(minutes=1)},
        refused_bodies=7,
        dropped_bodies=5,
    )
    shown.statistics = statistics
    assert shown.statistics is statistics
    registry = CollectorRegistry()
    registry.register(shown)
    assert generate_latest(registry).decode() == SHOWN
