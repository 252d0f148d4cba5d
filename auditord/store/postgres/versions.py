"""Keeping records as they are before somebody changes them on purpose."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from auditord.database.postgres import Connection
from auditord.store.postgres.rows import as_json
from auditord.store.postgres.sources import QUERIES


class Kept(msgspec.Struct, frozen=True, gc=False):
    """What is done to a record.

    Args:
        record_id: whose record it is.
        action: the name of an :class:`auditord.store.amendments.Action`.
        reason: why, in words.
        changed_at: when.
        changed_by: the number of who does it.
    """

    record_id: str
    action: str
    reason: str
    changed_at: datetime
    changed_by: int


async def keep_versions(connection: Connection, kept: Sequence[Kept]) -> None:
    """Keep what the records are now."""
    await connection.execute(QUERIES["keep_versions"], (as_json(kept),))
