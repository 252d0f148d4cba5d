"""The spool: what is on its way, how far each source has been read, and what could not be handled."""

from auditord.spool.lock import handing_over, own, owner
from auditord.spool.retry import retry
from auditord.spool.spool import Spool
from auditord.spool.values import (
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
