"""Deliberate changes of single records, by a principal and for a reason. The former version is kept."""

from datetime import datetime
from enum import Enum
from typing import Final

import msgspec

from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.wire import decode_record

LONGEST_REASON: Final = 1_000
"""Characters."""

COLLECTED_AGAIN: Final = "collected again with --replace"
"""The reason that is kept with a version that a replacement overwrites."""

STOPPED_AGAIN: Final = "a client set another stop time (PUT /record)"
"""The reason that is kept with a version that was already closed, and whose stop time is overwritten."""


class Action(Enum):
    """The kind of a deliberate change."""

    CORRECT = "correct"
    CLOSE = "close"
    DELETE = "delete"


class Amended(Enum):
    """The outcome of an amendment."""

    DONE = "done"
    SAME = "same"
    """The record has the wanted content already; no version is kept."""
    CHANGED = "changed"
    """Refused: the record has changed since the principal read it."""
    MISSING = "missing"
    """Refused: there is no such record."""


class Amendment(msgspec.Struct, frozen=True):
    """A change of one record.

    Args:
        action: the kind of change.
        stored: the wire text of the record that the principal read.
        record: the new record, with the same id; None deletes it.
        reason: a text for later readers.

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
        return decode_record(self.stored).record_id


class Version(msgspec.Struct, frozen=True):
    """A former version of a record, kept when the record was changed deliberately.

    Args:
        number: grows with each change of a record.
        action: the change.
        reason: for the change.
        changed_at: time of the change.
        changed_by: principal that made the change.
        document: the former wire text.
        received_at: when the record first arrived.
        updated_at: when this version arrived, unless it was the first.
        principal: the principal that sent this version.
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
    """Raise InvalidRecord if a reason is empty, too long or no text."""
    if not reason.strip() or len(reason) > LONGEST_REASON:
        raise InvalidRecord(f"a reason must have 1 to {LONGEST_REASON} characters")
    if "\0" in reason or reason.encode(errors="replace").decode() != reason:
        raise InvalidRecord("a reason must be valid text without NUL")
