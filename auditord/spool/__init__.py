"""The spool: queued changes, the checkpoints of collectors, and the quarantine."""

from auditord.spool.encoding import (
    Enqueued,
    Generation,
    LastRun,
    QuarantineEntry,
    QuarantineReason,
    Queued,
    QueueStatistics,
    SpoolStatistics,
    Stage,
)
from auditord.spool.lock import handing_over, own, owner
from auditord.spool.retrying import retry
from auditord.spool.spool import Spool

__all__ = [
    "Enqueued",
    "Generation",
    "LastRun",
    "QuarantineEntry",
    "QuarantineReason",
    "QueueStatistics",
    "Queued",
    "Spool",
    "SpoolStatistics",
    "Stage",
    "handing_over",
    "own",
    "owner",
    "retry",
]
