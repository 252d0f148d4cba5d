"""The side of a store that its records are synced to the lake from; see :mod:`auditord.store.lake_changes`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from auditord.errors import StoreUnavailable
from auditord.store.archived import ArchivedRecord


@dataclass(frozen=True, slots=True)
class LakeState:
    """A store's side of a lake.

    Args:
        store_id: of the store; '' before anything is synced.
        lake_id: of the lake's table; '' while nothing is synced.
        given: the highest number of a batch that was given.
    """

    store_id: str = ""
    lake_id: str = ""
    given: int = 0


@dataclass(frozen=True, slots=True)
class LakeBatch:
    """Records that the lake does not have as they are.

    Args:
        number: of the batch: the position in the feed at its end.
        known: the stop times (microseconds since 1970, None while open) with which the lake may have records, by id.
        records: those that are there, as they are; the others are deleted.
    """

    number: int
    known: Mapping[str, set[int | None]]
    records: Sequence[ArchivedRecord]


class LakeDiverged(StoreUnavailable):
    """The lake has batches that the store never made: it was restored from a backup.

    Remedy:
        none: the run takes the store's records out of the lake and syncs all of them again.
    """


class LakeSource(Protocol):
    """Records that are synced to a lake; a part of the protocol of record stores."""

    async def lake_state(self) -> LakeState:
        """The store's side of the lake that its records are synced to."""
        ...

    async def begin_lake(self) -> LakeState:
        """Note that the lake has none of the records, and keep nothing for it until it is filled; returns the state."""
        ...

    async def fill_lake(self, lake_id: str) -> None:
        """Let the lake, which has none of the records, get all of them and all changes from now on."""
        ...

    async def lake_waiting(self) -> int:
        """The number of versions of records that the lake may not have."""
        ...

    async def lake_batch(self, position: int, limit: int) -> LakeBatch:
        """The records of the next slice of the feed, under the position at its end; ``position`` if there are none.

        Args:
            position: the number of the last batch that the lake has; what it had is forgotten.
            limit: so many records at most, unless one transaction stored more.

        Raises:
            LakeDiverged: the store has not given this number, or has forgotten what came behind it.
        """
        ...
