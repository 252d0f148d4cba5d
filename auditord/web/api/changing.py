"""What goes over the wire when single records are changed: wishes, what became of them, and former versions."""

from typing import Annotated, Final

import msgspec

from auditord.actions import Outcome
from auditord.store import Action
from auditord.store.amendments import LONGEST_REASON
from auditord.web.api.shapes import Instant, StoredRecord
from auditord_hookspecs import Record

Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_REASON)]
_SECONDS: Final = 10**11  # no calendar has more


class CorrectionWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a record is to be.

    Args:
        record: what is to be stored under its id instead of what is there.
        reason: why, in words; it is kept.
        by: the name of whoever wants it; without it, the user at the other end of the socket.
        seen: the stored record as the caller knows it; if it is another one by now, nothing is done.
    """

    record: Record
    reason: Reason
    by: str | None = None
    seen: Record | None = None


class ClosingWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When an open record stopped; exactly one of the two.

    Args:
        record_id: whose record it is.
        stop_time: then.
        runtime: so many seconds after its start.
    """

    record_id: str
    stop_time: Instant | None = None
    runtime: Annotated[int, msgspec.Meta(ge=0, le=_SECONDS)] | None = None


class ClosingsWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which open records stopped when.

    Args:
        closings: one for each record.
        reason: why, in words; it is kept.
        by: the name of whoever wants it; without it, the user at the other end of the socket.
    """

    closings: list[ClosingWanted]
    reason: Reason
    by: str | None = None


class DeletionsWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which records are to be deleted.

    Args:
        ids: of the records.
        reason: why, in words; it is kept.
        by: the name of whoever wants it; without it, the user at the other end of the socket.
    """

    ids: list[str]
    reason: Reason
    by: str | None = None


class Outcomes(msgspec.Struct, frozen=True):
    """What became of each wish.

    Args:
        outcomes: one for each record.
    """

    outcomes: list[Outcome]


class FormerVersion(msgspec.Struct, frozen=True):
    """A record as it was until somebody changed it.

    Args:
        number: of one record, a later change has the higher one.
        action: what was done then: ``correct``, ``close`` or ``delete``.
        reason: why.
        changed_at: when.
        changed_by: who did it.
        record: as it was until then.
        received_at: when the record had first arrived.
        updated_at: when this version of it had come, or null if it was the first.
        principal: who had brought it.
    """

    number: int
    action: Action
    reason: str
    changed_at: Instant
    changed_by: str | None
    record: StoredRecord
    received_at: Instant
    updated_at: Instant | None
    principal: str | None


class History(msgspec.Struct, frozen=True):
    """What a record was before.

    Args:
        versions: one for each change, the oldest first; none if nobody has changed it on purpose.
    """

    versions: list[FormerVersion]
