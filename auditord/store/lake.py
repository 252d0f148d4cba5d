"""The lake from a record store's point of view: the state of the sync, and the records that only the lake has.

:mod:`auditord.store.releasing` reads the feed for the lake, releases records and recalls them.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import ClassVar, Final, Protocol, TypeAlias

import msgspec

from auditord.errors import StoreUnavailable
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery

Days: TypeAlias = tuple[int, int, str | None]
"""The first UTC day, the day after the last one (as numbers since 1970), and the key of the cells; None for the first
set."""


class LakeRecord(msgspec.Struct, frozen=True, gc=False):
    """A record with everything that a store knows about it.

    Args:
        document: the wire text.
        received_at: when the record was first received.
        updated_at: when it was last changed; None if never.
        principal, agent: the origin; '' if unknown.
        release: the number of the release in its row of the lake; 0 for none.
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
        store_id: the store's id, which never changes.
        lake_id: the id of the table that records are synced to; '' while nothing is synced.
        given: the highest number of a batch that the store has given.
        released_in: the id of the table with the released records; '' if there never were any.
        location: the location of that table.
        snapshot_id: the snapshot of that table that has the released records.
        sequence: the sequence number of the snapshot.
        release: the last valid release. Records in rows with a higher number are still in the store.
        records: the number of released records.
        beside_rollups: the number of released records that roll-ups leave out.
        first_stop: a lower bound of the stop times of released records.
        last_stop: an upper bound of these stop times.
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
    """The released records of a store, as listed in the manifest of a backup.

    Args:
        location: the location of the table.
        snapshot: the id of the snapshot that has them.
        release: the last valid release.
        records: the number of released records.
    """

    location: str
    snapshot: int
    release: int
    records: int


class LakeSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of a lake's table."""

    lake_id: str
    location: str
    snapshot_id: int
    sequence: int


class ReleasedRow(msgspec.Struct, frozen=True):
    """A row of the lake, identified by record and release, with the stop time in microseconds since 1970."""

    record_id: str
    release: int
    stop_time: int


class Released(msgspec.Struct, frozen=True):
    """The rows of the lake that are released records, as of one moment.

    Args:
        state: the last valid release and its snapshot.
        recalled: rows that do not count, since their records have been recalled or changed.
    """

    state: LakeState = LakeState()
    recalled: Collection[ReleasedRow] = frozenset()


class LakeBatch(msgspec.Struct, frozen=True):
    """Changes that the lake does not have yet.

    Args:
        number: the number of the batch: the position in the feed at its end.
        known: the stop times (microseconds since 1970, None while open) with which the lake may have records, by id.
        records: the stored versions. Ids of ``known`` without one were deleted.
        recalled: released rows that these records replace, or whose records were deleted.
    """

    number: int
    known: Mapping[str, set[int | None]] = msgspec.field(default_factory=dict[str, set[int | None]])
    records: Sequence[LakeRecord] = ()
    recalled: Collection[ReleasedRow] = ()

    @property
    def is_empty(self) -> bool:
        """True if the batch has no changes."""
        return not (self.known or self.records or self.recalled)


class LakeUnavailable(StoreUnavailable):
    """The lake cannot be read or written now, or is damaged. Released records are only there.

    Attributes:
        summary: a text for clients. The message can have addresses, which are only for the log.

    Remedy:
        see the message: `auditord lake verify` names damaged files and missing rows, `auditord doctor` checks the
        catalog.
    """

    summary: ClassVar[str] = "the lake (table auditord.lake), which has the released records, cannot be read now"


REMEDY: Final = "run `auditord lake verify` on the daemon's host; its log has the reason"
"""The advice to clients if the lake is unavailable."""


class LakeDiverged(LakeUnavailable):
    """The lake has batches that the store never made, because the store was restored from a backup.

    Remedy:
        none: the run deletes the store's records from the lake and syncs all of them again.
    """


class LakeMiscounted(LakeUnavailable):
    """The lake has fewer or more rows of a daemon than that daemon has written.

    Remedy:
        run `auditord lake verify`, find out who deleted or added rows, and roll the table back to the last snapshot
        before that, or restore the lake and its catalog from their backup.
    """

    summary: ClassVar[str] = "the lake (table auditord.lake) has fewer or more rows than were written to it"


class LakeOvertaken(LakeUnavailable):
    """Another process is changing the lake at the same time, or the record store is older than the lake.

    Remedy:
        wait until the other process ends, and try again; if that does not help, run `auditord lake run`, then
        `auditord lake verify`.
    """


class ReleasedRecords(Protocol):
    """Reads released records from the lake. Each call says which rows count as released.

    Every method raises :class:`auditord.errors.StoreUnavailable` if the lake cannot be read now.
    """

    async def find(self, state: LakeState, wanted: Collection[ReleasedRow]) -> Sequence[LakeRecord]:
        """Return single records."""
        ...

    async def sum_released(self, released: Released, query: AggregateQuery, days: Days | None) -> Aggregates:
        """Return sums over the released records, except for the days that the store's roll-ups answer."""
        ...

    def stream_released(
        self, released: Released, query: RecordQuery
    ) -> AbstractAsyncContextManager[AsyncIterator[Sequence[bytes]]]:
        """Stream pages of the wire texts of matching records, in the query's order."""
        ...
