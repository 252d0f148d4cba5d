"""The reading side of record stores as a protocol, and the values that stores answer."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, Protocol

import msgspec

from auditord_hookspecs import AggregateQuery, Aggregates, Entry, Provenance, RecordQuery

SILENT_AFTER: Final = timedelta(minutes=2)
"""Time without a word after which a daemon counts as gone; it notes itself every half a minute."""


class Listed(Protocol):
    """Records that can be listed and summed up."""

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Sums over one consistent state of the records, in whole numbers; every store gives the same."""
        ...

    def stream(self, query: RecordQuery) -> AbstractAsyncContextManager[AsyncIterator[Sequence[bytes]]]:
        """Pages of wire texts, one per record, in the query's order, with bounded memory.

        The query has begun and its first page is there (or known to be empty) when the context is entered, so that a
        fault shows before an answer is begun; a later fault raises out of the iteration. Leaving early is cheap.
        """
        ...


class Reads(Listed, Protocol):
    """Records that can be read: a store's, those visible to a principal, or a replica's."""

    async def get(self, record_id: str) -> bytes | None:
        """The wire text of one record."""
        ...


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


def is_forwarded(provenance: Provenance) -> bool:
    """Return whether senders read a change from the feed; the changes of collectors are queued for each sender."""
    return provenance.principal is None or not provenance.principal.startswith("task:")


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
