"""The answers of a record store: verdicts, counts, differences, and what senders must forward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

import msgspec

from auditord_hookspecs import Entry


class Verdict(Enum):
    """The outcome of adding or replacing one record."""

    ADDED = "added"
    CLOSED = "closed"
    """It was open; the full record with its stop time has replaced it."""
    SAME = "same"
    """It was there already with equal content, or is an open record that came back; nothing changed."""
    DIFFERENT = "different"
    """The same run was there with other content: the stored one stays, the new one is kept in the differences."""
    EXISTS = "exists"
    """Refused: the id belongs to another run."""

    @property
    def accepted(self) -> bool:
        """Return whether the sender may forget the record."""
        return self is not Verdict.EXISTS


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Numbers of records: in all, and per value of each counted meta key (once per value of a list)."""

    total: int
    per_value: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    differences: int = 0
    """Number of noted differences (:class:`Difference`)."""
    unread: Mapping[str, datetime | None] = field(default_factory=dict[str, datetime | None], compare=False)
    """By consumer of the feed, when the oldest record arrived that it has not read; None if it has read all."""

    def lag(self, now: datetime) -> Mapping[str, float]:
        """The age in seconds of these records; 0 for consumers that have read all."""
        return {
            name: 0.0 if arrival is None else max((now - arrival).total_seconds(), 0.0)
            for name, arrival in self.unread.items()
        }


class Difference(msgspec.Struct, frozen=True):
    """A record that came for a run that was stored with other content; both as wire text, None if released."""

    record_id: str
    seen_at: datetime
    principal: str | None
    stored: bytes | None
    offered: bytes


class OutboxEntry(msgspec.Struct, frozen=True):
    """A change that senders must forward.

    Args:
        number: its place; of one record, a later change has the higher number.
        entry: the change, with its provenance.
    """

    number: int
    entry: Entry


class Outbox(msgspec.Struct, frozen=True):
    """Changes that senders must forward.

    Args:
        after: the position of the feed behind which these are.
        position: up to which they are all.
        entries: in order.
    """

    after: int
    position: int
    entries: Sequence[OutboxEntry]

    @property
    def has_more(self) -> bool:
        """Return True if the feed has more behind ``after``, including changes that are not forwarded."""
        return self.position > self.after
