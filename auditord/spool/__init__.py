"""The spool: what is on its way, how far each source has been read, and what could not be handled."""

from auditord.spool.lock import own, owner
from auditord.spool.retry import retry
from auditord.spool.spool import Spool
from auditord.spool.values import Enqueued, Figures, Generation, LastRun, QuarantineEntry, Queued, QueueFigures, Stage

__all__ = [
    "Enqueued",
    "Figures",
    "Generation",
    "LastRun",
    "QuarantineEntry",
    "QueueFigures",
    "Queued",
    "Spool",
    "Stage",
    "own",
    "owner",
    "retry",
]
