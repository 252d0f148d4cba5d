"""Protocols for reading from record stores, and the values that stores return."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, Protocol

import msgspec

from auditord_hookspecs import AggregateQuery, Aggregates, Entry, Provenance, RecordQuery

SILENT_AFTER: Final = timedelta(minutes=2)
"""A daemon that has not saved its state for this time counts as ended. It does so every half a minute."""


class Listed(Protocol):
    """Records that can be listed and summed up."""

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums over one consistent state of the records, in whole numbers. Every store gives the same."""
        ...

    def stream(self, query: RecordQuery) -> AbstractAsyncContextManager[AsyncIterator[Sequence[bytes]]]:
        """Stream pages of wire texts, one per record, in the query's order, with bounded memory.

        When the context is entered, the first page has been read, so that an error shows before a response is begun.
        Later errors are raised by the iteration. Leaving the context early is cheap.
        """
        ...


class Reads(Listed, Protocol):
    """Records that can be read: a store's, those visible to a principal, or a replica's."""

    async def get(self, record_id: str) -> bytes | None:
        """Return the wire text of one record, or None."""
        ...


class Verdict(Enum):
    """The outcome of adding or replacing one record."""

    ADDED = "added"
    CLOSED = "closed"
    """The stored record was open; the full record with its stop time has replaced it."""
    SAME = "same"
    """An equal record was already stored, or an open record arrived again. Nothing changed."""
    DIFFERENT = "different"
    """The same run was stored with other content. An added record goes to the differences; a replacement is stored."""
    EXISTS = "exists"
    """Refused: the id belongs to another run."""

    @property
    def accepted(self) -> bool:
        """True if the sender may forget the record."""
        return self is not Verdict.EXISTS


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Numbers of records: in total, and per value of each counted meta key (once for each value in a list)."""

    total: int
    per_value: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    differences: int = 0
    """Number of noted differences (:class:`Difference`)."""
    unread: Mapping[str, datetime | None] = field(default_factory=dict[str, datetime | None], compare=False)
    """For each consumer of the feed, when its oldest unread record arrived; None if it has read everything."""

    def lag(self, now: datetime) -> Mapping[str, float]:
        """Return the age in seconds of each consumer's oldest unread record; 0 if it has read everything."""
        return {
            name: 0.0 if arrival is None else max((now - arrival).total_seconds(), 0.0)
            for name, arrival in self.unread.items()
        }


class Difference(msgspec.Struct, frozen=True):
    """A record that arrived for a run already stored with other content. ``stored`` is None if that is released."""

    record_id: str
    seen_at: datetime
    principal: str | None
    stored: bytes | None
    offered: bytes


class OutboxEntry(msgspec.Struct, frozen=True):
    """A change that senders must forward.

    Args:
        number: the position in the feed; later changes of a record have higher numbers.
        entry: the change, with its provenance.
    """

    number: int
    entry: Entry


class Outbox(msgspec.Struct, frozen=True):
    """Changes that senders must forward.

    Args:
        after: the position in the feed after which the changes begin.
        position: the position up to which the changes are complete.
        entries: the changes in order.
    """

    after: int
    position: int
    entries: Sequence[OutboxEntry]

    @property
    def has_more(self) -> bool:
        """True if the feed continues after ``after``, even if only with changes that are not forwarded."""
        return self.position > self.after


def is_forwarded(provenance: Provenance) -> bool:
    """Return whether senders read a change from the feed. Changes by collectors are queued for each sender instead."""
    return provenance.principal is None or not provenance.principal.startswith("task:")


class DaemonState(msgspec.Struct, frozen=True):
    """The state of a daemon, as it saves it in its database.

    Args:
        spool_id: the id of its spool.
        process: its process id.
        version: the version of auditord.
        state_dir: the folder of its spool.
        queued: the number of entries in its queues.
        oldest: when the oldest queued entry was received.
        quarantined: the number of entries in its quarantine.
        ended: whether it was shut down properly.
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
    """The last saved state of a daemon, and the time since then by the database's clock."""

    state: DaemonState
    age: timedelta

    @property
    def is_running(self) -> bool:
        """True if the daemon has saved its state recently and has not ended."""
        return not self.state.ended and self.age < SILENT_AFTER
