"""The feed on its way to the lake, an Iceberg table that many daemons write (:mod:`auditord.lake`).

A batch is a slice of the feed: the records whose present version is in it, and the former versions of them, or of
records that are gone, that the lake has. The number of a batch is the position at its end. The lake keeps the number of
this store's last batch in the snapshot that has the batch, and a batch is written only on top of the one before it: so
a kill at any moment, and even two processes that sync at the same time, lose nothing and double nothing.

The highest number that was given is kept: a lake that has a higher one was synced by a later state of this store.

A record that is released or recalled is the same record and keeps its position. Rows of releases that do not count
(:mod:`auditord.store.releasing`) are in the batch that replaces them.
"""

from collections.abc import Mapping, Sequence

import msgspec

from auditord.store.feed import (
    LAKE,
    add_consumer,
    end_of_feed,
    end_of_slice,
    forget_consumer,
    list_consumers,
    move_consumer,
)
from auditord.store.lake import LakeDiverged, LakeState, ReleasedRow
from auditord.store.releasing import read_lake
from auditord.store.work import Rows, Work, as_json, ask


class TakenSlice(msgspec.Struct, frozen=True):
    """A slice of the feed for the lake.

    Args:
        upto: the position at its end.
        known: the stop times with which the lake has former versions, by record id.
        rows: of its records, see ``read_records_by_id``.
        recalled: rows of releases that the batch replaces.
    """

    upto: int
    known: Mapping[str, set[int | None]]
    rows: Rows
    recalled: Sequence[ReleasedRow]

    @property
    def is_empty(self) -> bool:
        """True if there is nothing in it."""
        return not (self.known or self.rows or self.recalled)


def begin_lake() -> Work[LakeState]:
    """Note that nothing is synced, and follow the feed no more until the lake is filled; returns the state."""
    yield from ask("set_lake", lake_id="")
    yield from forget_consumer(LAKE)
    return (yield from read_lake())


def fill_lake(lake_id: str) -> Work[None]:
    """Follow the feed from its beginning, for a lake that has none of the records."""
    yield from forget_consumer(LAKE)
    yield from add_consumer(LAKE, 0)
    yield from ask("set_lake", lake_id=lake_id)


def count_unread() -> Work[int]:
    """The number of versions that the lake may not have."""
    for name, position in (yield from list_consumers()):
        if name == LAKE:
            ((waiting,),) = yield from ask("count_unread", position=position)
            return int(waiting)
    return 0


def take_slice(position: int, limit: int) -> Work[TakenSlice]:
    """Read the next slice, in one transaction and as of one moment.

    Args:
        position: the number of the last batch that the lake has.
        limit: the most records, unless one transaction stored more.

    Raises:
        LakeDiverged: the store has not given this number, or has forgotten the batches behind it.
    """
    yield from ask("see_one_moment")
    state = yield from read_lake("lock_lake")
    if position > state.given:
        raise LakeDiverged(f"The lake has batch {position} of this store, which has made only {state.given}.")
    for name, passed in (yield from list_consumers()):
        if name == LAKE and passed > position:
            raise LakeDiverged(f"The lake has batch {position} of this store, and had {passed} before.")
    yield from move_consumer(LAKE, position)
    taken, end = TakenSlice(position, {}, (), ()), (yield from end_of_feed())
    while True:
        taken = yield from _read_slice(taken.upto, (yield from end_of_slice(taken.upto, end, limit)))
        if not taken.is_empty:
            break
        if taken.upto >= end:
            return TakenSlice(position, {}, (), ())
    yield from ask("note_given", given=taken.upto)
    return taken


def _read_slice(after: int, upto: int) -> Work[TakenSlice]:
    bounds = {"after": after, "upto": upto}
    known: dict[str, set[int | None]] = {}
    for record_id, stop_time in (yield from ask("removed_in_slice", **bounds)):
        known.setdefault(record_id, set()).add(stop_time)
    ids = [record_id for (record_id,) in (yield from ask("records_of_slice", **bounds))]
    rows = (yield from ask("read_records_by_id", ids=as_json(ids))) if ids else ()
    recalled = [ReleasedRow(*row) for row in (yield from ask("recalled_of_slice", **bounds))]
    return TakenSlice(upto, known, rows, recalled)
