"""Values about the daemons that use a record store."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

SILENT_AFTER: Final = timedelta(minutes=2)
"""Time without a word after which a daemon counts as gone; it notes itself every half a minute."""


class DaemonState(msgspec.Struct, frozen=True):
    """The state of a daemon, as it notes it in its database.

    Args:
        spool_id: by which the database knows its spool.
        host: the name of its host.
        process: its process id there.
        version: of auditord.
        state_dir: the folder of its spool.
        started_at: when the process began.
        queued: the number of entries in its queues.
        oldest: when the oldest of them was received.
        quarantined: the number of entries in its quarantine.
        ended: it ended in order.
    """

    spool_id: str
    host: str
    process: int
    version: str
    state_dir: str
    started_at: datetime
    queued: int
    oldest: datetime | None
    quarantined: int
    ended: bool


class KnownDaemon(msgspec.Struct, frozen=True):
    """The last noted state of a daemon, and the time since then by the database's clock."""

    state: DaemonState
    age: timedelta

    @property
    def is_running(self) -> bool:
        """True if it was heard of lately and has not ended."""
        return not self.state.ended and self.age < SILENT_AFTER
