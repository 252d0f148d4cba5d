"""Archived records, and the archive as a record store sees it; see :mod:`auditord.store.archiving`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

import msgspec

from auditord.errors import StoreUnavailable
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery

Days: TypeAlias = tuple[int, int, str | None]
"""The first day since 1970 in UTC, the one behind the last, and the key whose cells answer, if one's do."""


class ArchivedRecord(msgspec.Struct, frozen=True, gc=False):
    """A finished record with all that a store knows of it.

    Args:
        record: it itself.
        document: its wire text.
        received_at: of its first arrival.
        updated_at: of its last change.
        principal: who sent it; '' if unknown.
        agent: with what; '' if unknown.
        chunk: of the archive; 0 before it is there.
    """

    record: Record
    document: str
    received_at: datetime
    updated_at: datetime | None
    principal: str
    agent: str
    chunk: int = 0

    @property
    def stop_time(self) -> datetime:
        """The stop time, which every archived record has."""
        if self.record.stop_time is None:
            raise AssertionError("open records are not archived")
        return self.record.stop_time

    @property
    def site(self) -> str | None:
        """The first value of the first key that names a site, as in the column ``site``."""
        meta = self.record.meta or {}
        values = meta.get("site_id", meta.get("site"))
        return values[0] if values else None


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """The rows of the archive's table that count.

    Args:
        archive_id: of the table; '' without an archive.
        location: of the table.
        snapshot_id: the snapshot of the table.
        sequence: the snapshot's place in the order of all.
        chunk: the last one that counts.
        records: how many records are archived.
        beside_rollups: how many of them roll-ups leave out.
        first_stop: their stop times lie from here.
        last_stop: to here.
    """

    archive_id: str = ""
    location: str = ""
    snapshot_id: int = 0
    sequence: int = 0
    chunk: int = 0
    records: int = 0
    beside_rollups: int = 0
    first_stop: datetime | None = None
    last_stop: datetime | None = None


class Removal(msgspec.Struct, frozen=True):
    """A row of the archive's table that counts no more."""

    record_id: str
    chunk: int


@dataclass(frozen=True, slots=True)
class Counted:
    """The rows of the archive's table that count, as of one moment.

    Args:
        state: up to which chunk of which snapshot.
        removals: without these.
    """

    state: ArchiveState = ArchiveState()
    removals: Collection[Removal] = frozenset()


class ArchiveOvertaken(StoreUnavailable):
    """Another process works on the archive at the same time.

    Remedy:
        let the other one end and try again; if it stays so, `auditord archive verify`.
    """


class Archive(Protocol):
    """The archive as a store asks it; what counts is given with each question.

    Every method raises :class:`auditord.errors.StoreUnavailable` where the archive cannot be read now.
    """

    async def find(self, state: ArchiveState, wanted: Collection[Removal]) -> Sequence[ArchivedRecord]:
        """Single rows, by record and chunk."""
        ...

    async def aggregate(self, counted: Counted, query: AggregateQuery, days: Days | None) -> Aggregates:
        """Sums over the rows that count, but for what the store's roll-ups answer of these days."""
        ...

    async def page(self, counted: Counted, query: RecordQuery, after: Record | None) -> Sequence[bytes]:
        """The wire texts of the matching rows that count, behind a record in the query's order, within its limit.

        There may be fewer than the limit; none means that there are no more.
        """
        ...
