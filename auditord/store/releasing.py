"""The store's side of the lake: read the feed for it, release records to it, and recall them.

A batch is a slice of the feed: the records whose current version is in it, and the former versions, also of deleted
records, that the lake may have. The number of a batch is the position at its end. The lake stores the number of this
store's last batch in the snapshot that adds the batch, and a batch is only written on top of the previous one. So
a kill at any moment, or two processes that sync at the same time, neither lose nor duplicate a record. The store keeps
the highest number that it has given. A lake with a higher one was synced by a later state of this store.

At every moment, each record is in the database or in the lake. A record keeps its position when it is released or
recalled.

The lake (:mod:`auditord.lake`) has every record, but cannot join a transaction of this database. To release old
records, some hundred of their rows in the lake get the number of a release and are read back. Then one transaction
deletes those records here that still equal their rows, and saves the number: from then on, rows up to this number are
the only copies of their records. Rows whose record has changed by then, or has been recalled, are listed in the table
``recalled`` and do not count. The batch that replaces them also lists them.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from auditord.database.instants import from_micros, to_micros
from auditord.store.feed import (
    LAKE,
    end_of_feed,
    end_of_slice,
    list_consumers,
    move_consumers,
)
from auditord.store.lake import (
    LakeBatch,
    LakeDiverged,
    LakeOvertaken,
    LakeRecord,
    LakeSnapshot,
    LakeState,
    Released,
    ReleasedRow,
)
from auditord.store.rows import PendingRecord, make_row
from auditord.store.work import Rows, Work, as_json, ask, for_each, records

Pair: TypeAlias = tuple[LakeRecord, PendingRecord]
"""A released record, and the row to be stored when it is recalled."""


class _ReleasedId(msgspec.Struct, frozen=True, gc=False):
    """A released record in the index of ids, with everything that verdicts on new records with its id depend on."""

    record_id: str
    start_time: datetime
    stop_time: datetime
    content: int
    release: int
    position: int


class _Restored(msgspec.Struct, frozen=True, gc=False):
    record_id: str
    position: int
    updated_at: datetime | None


def read_lake(statement: str = "read_lake") -> Work[LakeState]:
    """Read the store's side of the lake."""
    ((*values, first, last),) = yield from ask(statement)
    return LakeState(*values, *[None if stop is None else from_micros(stop) for stop in (first, last)])


def read_released() -> Work[Released]:
    """Read which rows of the lake are released records."""
    state = yield from read_lake()
    if not state.released_in:
        return Released(state)
    return Released(state, frozenset([ReleasedRow(*row) for row in (yield from ask("list_recalled"))]))


def release(rows: Sequence[LakeRecord], previous: int, snapshot: LakeSnapshot) -> Work[int]:
    """Delete records that the lake has; see :meth:`auditord.store.lake_store.LakeStore.release`.

    Raises:
        LakeOvertaken: another process has released records.
    """
    state = yield from read_lake("lock_lake")
    yield from ask("hold_records")  # after lock_lake: restore takes the locks in the same order
    number = rows[0].release
    if state.release != previous or number <= previous:
        raise LakeOvertaken(f"release {number} of the lake does not follow release {state.release}: try again")
    copies = {each.record.record_id: each for each in rows}
    ((passed,),) = yield from ask("passed_by_all")
    deleted: dict[str, _ReleasedId] = {}
    for record_id, content, position, *kept in (yield from ask("lock_releasable", ids=as_json(sorted(copies)))):
        copy = copies[record_id]
        updated_at = None if copy.updated_at is None else to_micros(copy.updated_at)
        synced = [copy.document, to_micros(copy.received_at), updated_at, copy.principal, copy.agent]
        if position <= passed and kept == synced:
            record = copy.record
            deleted[record_id] = _ReleasedId(record_id, record.start_time, copy.stop_time, content, number, position)
    if deleted:
        yield from ask("delete_records", ids=as_json(sorted(deleted)))
    yield from for_each("put_released", [deleted[record_id] for record_id in sorted(deleted)])
    stay = [_row_of(copies[record_id]) for record_id in sorted(copies.keys() - deleted.keys())]
    yield from for_each("put_recalled", stay)
    stops = [each.stop_time for each in deleted.values()]
    yield from ask(
        "note_release",
        release=number,
        records=len(deleted),
        beside_rollups=sum(make_row(copies[record_id].record).more is not None for record_id in deleted),
        first_stop=min(stops, default=None),
        last_stop=max(stops, default=None),
        lake_id=snapshot.lake_id,
        location=snapshot.location,
    )
    yield from _note_snapshot(snapshot)
    return len(deleted)


def forget_recalled(rows: Sequence[ReleasedRow], number: int, snapshot: LakeSnapshot) -> Work[None]:
    """Forget rows that did not count; see :meth:`auditord.store.lake_store.LakeStore.forget_recalled`."""
    yield from read_lake("lock_lake")  # first, like everything that changes rows of the lake
    yield from for_each("forget_recalled", rows)
    yield from ask("pass_release", release=number)
    yield from _note_snapshot(snapshot)


def find_released(record_ids: Collection[str]) -> Work[Sequence[ReleasedRow]]:
    rows = yield from ask("find_released", ids=as_json(sorted(record_ids)))
    return [ReleasedRow(*row) for row in rows]


def list_recalled_and_kept(position: int) -> Work[Sequence[ReleasedRow]]:
    """Return rows that do not count, whose records are in the store exactly as in a lake synced up to a position."""
    return [ReleasedRow(*row) for row in (yield from ask("list_recalled_and_kept", position=position))]


def restore(copies: Sequence[Pair]) -> Work[int]:
    """Move records back into the database if their release has not changed since they were read. Return how many."""
    yield from read_lake("lock_lake")
    rows = yield from ask("lock_released", ids=as_json(sorted(copy.record.record_id for copy, _ in copies)))
    positions = {(record_id, number): position for record_id, number, position in rows}
    back = [(copy, pending) for copy, pending in copies if (pending.record_id, copy.release) in positions]
    ids = sorted(pending.record_id for _, pending in back)
    yield from ask("take_released", ids=as_json(ids))
    beside = sum(pending.row.more is not None for _, pending in back)
    yield from ask("note_fewer_released", records=len(ids), beside_rollups=beside)
    yield from records("insert_records", sorted((pending for _, pending in back), key=lambda each: each.record_id))
    # They keep their positions, since consumers have already read them.
    restored = [
        _Restored(each.record_id, positions[each.record_id, copy.release], copy.updated_at) for copy, each in back
    ]
    yield from for_each("restore_records", restored)
    yield from for_each("put_recalled", [_row_of(copy) for copy, _ in back])
    return len(back)


def _note_snapshot(snapshot: LakeSnapshot) -> Work[None]:
    yield from ask("note_snapshot", snapshot_id=snapshot.snapshot_id, sequence=snapshot.sequence)


def _row_of(copy: LakeRecord) -> ReleasedRow:
    return ReleasedRow(copy.record.record_id, copy.release, to_micros(copy.stop_time))


def begin_lake() -> Work[LakeState]:
    """Note that nothing is synced, and stop following the feed until the lake is filled. Return the state."""
    yield from ask("set_lake", lake_id="")
    yield from ask("forget_consumer", name=LAKE)
    return (yield from read_lake())


def fill_lake(lake_id: str) -> Work[None]:
    """Follow the feed from its beginning, for a lake that has none of the records."""
    yield from ask("forget_consumer", name=LAKE)
    yield from ask("add_consumer", name=LAKE, position=0)
    yield from ask("set_lake", lake_id=lake_id)


def count_unread() -> Work[int]:
    """Return the number of versions that the lake may lack."""
    for name, position in (yield from list_consumers()):
        if name == LAKE:
            ((waiting,),) = yield from ask("count_unread", position=position)
            return int(waiting)
    return 0


def take_slice(position: int, limit: int, last: int) -> Work[tuple[LakeBatch, Rows]]:
    """Read the next slice from one snapshot: a batch, and for its records the rows of ``read_records_by_id``.

    See :meth:`auditord.store.lake_store.LakeStore.lake_batch`.
    """
    yield from ask("see_one_moment")
    state = yield from read_lake("lock_lake")
    if position > state.given:
        raise LakeDiverged(f"The lake has batch {position} of this store, whose last batch is {state.given}.")
    for name, passed in (yield from list_consumers()):
        if name == LAKE and passed > position:
            raise LakeDiverged(f"The lake has batch {position} of this store, but had batch {passed} before.")
    yield from move_consumers([LAKE], position)
    upto, end = position, min(last, (yield from end_of_feed()))
    while True:
        after, upto = upto, (yield from end_of_slice(upto, end, limit))
        bounds = {"after": after, "upto": upto}
        known: dict[str, set[int | None]] = {}
        for record_id, stop_time in (yield from ask("removed_in_slice", **bounds)):
            known.setdefault(record_id, set()).add(stop_time)
        ids = [record_id for (record_id,) in (yield from ask("records_of_slice", **bounds))]
        rows = (yield from ask("read_records_by_id", ids=as_json(ids))) if ids else ()
        recalled = [ReleasedRow(*row) for row in (yield from ask("recalled_of_slice", **bounds))]
        batch = LakeBatch(upto, known, (), recalled)
        if rows or not batch.is_empty:
            break
        if upto >= end:
            return LakeBatch(position), ()
    yield from ask("note_given", given=batch.number)
    return batch, rows
