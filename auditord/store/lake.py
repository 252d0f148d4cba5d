"""The lake as a record store sees it: the state of the sync, and the records that only the lake has.

:mod:`auditord.store.releasing` reads the feed for the lake, releases records, and takes them back.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol, TypeAlias

import msgspec

from auditord.errors import StoreUnavailable
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery

Days: TypeAlias = tuple[int, int, str | None]
"""The first day since 1970 in UTC, the day behind the last one, and the key whose cells answer, if one's do."""


class LakeRecord(msgspec.Struct, frozen=True, gc=False):
    """A record with all that a store knows of it.

    Args:
        record: the record.
        document: its wire text.
        received_at: when it arrived first.
        updated_at: when it was changed last.
        principal: who sent it; '' if unknown.
        agent: with what; '' if unknown.
        release: the number of the release that its row in the lake has; 0 for none.
    """

    record: Record
    document: str
    received_at: datetime
    updated_at: datetime | None
    principal: str
    agent: str
    release: int = 0

    @property
    def stop_time(self) -> datetime:
        """The stop time, which every released record has."""
        if self.record.stop_time is None:
            raise AssertionError("open records are not released")
        return self.record.stop_time

    @property
    def site(self) -> str | None:
        """The first value of the first key that names a site, as in the column ``site``."""
        meta = self.record.meta or {}
        values = meta.get("site_id", meta.get("site"))
        return values[0] if values else None


class LakeState(msgspec.Struct, frozen=True):
    """A store's side of the lake.

    Args:
        store_id: of the store, from its first day on.
        lake_id: of the table that records are synced to; '' while nothing is synced.
        given: the highest number of a batch that was given.
        released_in: the table that has the released records; '' if there never were any.
        location: of that table.
        snapshot_id: the snapshot of the table that has them.
        sequence: the snapshot's place in the order of all.
        release: the last release that counts: rows with a higher number are of records that are in the store.
        records: how many records are released.
        beside_rollups: how many of them roll-ups leave out.
        first_stop: their stop times lie from here.
        last_stop: to here.
    """

    store_id: str = ""
    lake_id: str = ""
    given: int = 0
    released_in: str = ""
    location: str = ""
    snapshot_id: int = 0
    sequence: int = 0
    release: int = 0
    records: int = 0
    beside_rollups: int = 0
    first_stop: datetime | None = None
    last_stop: datetime | None = None


class LakePart(msgspec.Struct, frozen=True):
    """The released records of a store, as the manifest of a backup names them.

    Args:
        location: of the table.
        snapshot: the id of the snapshot that has them.
        release: the last release that counts.
        records: their number.
    """

    location: str
    snapshot: int
    release: int
    records: int


class LakeSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of the table.

    Args:
        lake_id: of the table.
        location: of the table.
        snapshot_id: of the snapshot.
        sequence: its place in the order of all.
    """

    lake_id: str
    location: str
    snapshot_id: int
    sequence: int


class ReleasedRow(msgspec.Struct, frozen=True):
    """A row of the lake by record and release, and when its record stopped, in microseconds since 1970."""

    record_id: str
    release: int
    stop_time: int


class Released(msgspec.Struct, frozen=True):
    """The rows of the lake that are released records, as of one moment.

    Args:
        state: up to which release, in which snapshot.
        recalled: without these rows: their records are in the store again, or have changed.
    """

    state: LakeState = LakeState()
    recalled: Collection[ReleasedRow] = frozenset()


class LakeBatch(msgspec.Struct, frozen=True):
    """Records whose stored version the lake does not have.

    Args:
        number: of the batch: the position in the feed at its end.
        known: the stop times (microseconds since 1970, None while open) with which the lake may have records, by id.
        records: the stored versions; ids of ``known`` without one are deleted.
        recalled: rows of releases that these records replace, or whose records are deleted.
    """

    number: int
    known: Mapping[str, set[int | None]] = msgspec.field(default_factory=dict[str, set[int | None]])
    records: Sequence[LakeRecord] = ()
    recalled: Collection[ReleasedRow] = ()

    @property
    def is_empty(self) -> bool:
        """True if the lake has all of it already."""
        return not (self.known or self.records or self.recalled)


class LakeDiverged(StoreUnavailable):
    """The lake has batches that the store never made: it was restored from a backup.

    Remedy:
        none: the run takes the store's records out of the lake and syncs all of them again.
    """


class LakeOvertaken(StoreUnavailable):
    """Another process works on the lake at the same time, or the record store is an older one than the lake.

    Remedy:
        let the other one end and try again; if it stays so, `auditord lake run`, then `auditord lake verify`.
    """


class ReleasedRecords(Protocol):
    """The lake as a store asks it for released records; what counts as released is given with each question.

    Every method raises :class:`auditord.errors.StoreUnavailable` where the lake cannot be read now.
    """

    async def find(self, state: LakeState, wanted: Collection[ReleasedRow]) -> Sequence[LakeRecord]:
        """Single rows."""
        ...

    async def sum_released(self, released: Released, query: AggregateQuery, days: Days | None) -> Aggregates:
        """Sums over the released records, without the days that the store's roll-ups answer."""
        ...

    def stream_released(
        self, released: Released, query: RecordQuery
    ) -> AbstractAsyncContextManager[AsyncIterator[Sequence[bytes]]]:
        """Pages of the wire texts of those that match, in the query's order."""
        ...
