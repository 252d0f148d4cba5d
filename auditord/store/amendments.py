"""Changes of single records on purpose: by a principal, for a reason, and what was there before is kept."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.wire import decode_record

LONGEST_REASON: Final = 1_000
"""Characters."""

COLLECTED_AGAIN: Final = "collected again with --replace"
"""The reason that is kept for what a replacement overwrites."""


class Action(Enum):
    """The kind of a change on purpose."""

    CORRECT = "correct"
    CLOSE = "close"
    DELETE = "delete"


class Amended(Enum):
    """The outcome of an amendment."""

    DONE = "done"
    SAME = "same"
    """The record was like that already; nothing is kept."""
    CHANGED = "changed"
    """Refused: it is not as it was when the principal looked at it."""
    MISSING = "missing"
    """Refused: there is no such record."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """A change of one record.

    Args:
        action: what it is meant as.
        stored: the wire text of the record as the principal has seen it.
        record: what is to be there instead, under the same id; None deletes it.
        reason: in words, for those who wonder later.

    Raises:
        InvalidRecord: the reason is empty, too long or no text, or the ids differ.
    """

    action: Action
    stored: bytes
    record: Record | None
    reason: str

    def __post_init__(self) -> None:
        check_reason(self.reason)
        if self.record is not None and self.record.record_id != self.record_id:
            raise InvalidRecord(f"the id of {self.record_id!r} cannot be corrected: delete it and add another record")

    @property
    def record_id(self) -> str:
        """The id of the record that it changes."""
        return decode_record(self.stored).record_id


@dataclass(frozen=True, slots=True)
class Version:
    """A record as it was until it was changed on purpose.

    Args:
        number: of one record, a later change has the higher one.
        action: what was done to it.
        reason: why.
        changed_at: when.
        changed_by: who did it.
        document: the wire text until then.
        received_at: when the record had first arrived.
        updated_at: when this version of it had come, if it was not the first.
        principal: who had sent it.
    """

    number: int
    action: Action
    reason: str
    changed_at: datetime
    changed_by: str | None
    document: bytes
    received_at: datetime
    updated_at: datetime | None
    principal: str | None


def check_reason(reason: str) -> None:
    """Return if a reason can be kept.

    Raises:
        InvalidRecord: it is empty, too long or no text.
    """
    if not reason.strip() or len(reason) > LONGEST_REASON:
        raise InvalidRecord(f"a reason has 1 to {LONGEST_REASON} characters")
    if "\0" in reason or reason.encode(errors="replace").decode() != reason:
        raise InvalidRecord("a reason is text without NUL")
