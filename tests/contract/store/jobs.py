"""Jobs of the contract suite: one that ended, and the same while it runs."""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from auditord_hookspecs import Component, Record

START: Final = datetime(2024, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)


def finished(record_id: str = "job-1", **changes: object) -> Record:
    """A job of an hour on eight cores."""
    record = Record(record_id, START, (Component("Cores", 8, ()),), START + HOUR, {"site_id": ("S",)})
    return msgspec.structs.replace(record, **changes)


def running(record_id: str = "job-1", **changes: object) -> Record:
    """The same before its end."""
    return finished(record_id, stop_time=None, **changes)
