"""Changes of records on their way to the lake, an Iceberg table that many daemons write (:mod:`auditord.lake`).

Every transaction that changes a record notes its id; nothing of the change itself. What is synced is the record as it
is when its change gets the number of a batch, so all changes of a record until then are synced as one, and the lake
becomes what the store is: alternate ids, differences, corrections, deletions and redactions have been settled here.

The lake keeps the number of this store's last batch in the snapshot that has the batch. What is numbered up to there is
forgotten; what has a higher number may be on its way still (a commit whose answer was lost): it is numbered again, and
the lake may have it already (``known``), so it is looked for there. Numbers are given once. So a kill at any moment,
and even two processes that sync at the same time, lose nothing and double nothing.

A record that moves to the archive or comes back is the same record: nothing is noted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from auditord.store.archived import Removal
from auditord.store.lake import LakeDiverged, LakeState
from auditord.store.planning import ChangePlan
from auditord.store.work import Rows, Work, as_json, ask


class LakeChange(msgspec.Struct, frozen=True, gc=False):
    """A record that the lake does not have as it is now.

    Args:
        record_id: its id.
        known: 1 if the lake may have it as it was.
        stop_time: then, in microseconds since 1970; None while open.
    """

    record_id: str
    known: int
    stop_time: int | None


@dataclass(frozen=True, slots=True)
class TakenChanges:
    """Changes that have got the number of a batch.

    Args:
        batch: the number.
        known: the stop times with which the lake may have records, by id; not of records that it cannot have.
        rows: of the records that are in the database, see ``read_records_by_id``.
        archived: those that are in the archive.
    """

    batch: int
    known: Mapping[str, set[int | None]]
    rows: Rows
    archived: Sequence[Removal]


def lake_changes_of(plan: ChangePlan) -> Sequence[LakeChange]:
    """The records that a plan writes."""
    changed = sorted({each.record_id for each in (*plan.overwritten, *plan.moved)} | plan.removed)
    return [
        *[LakeChange(pending.record_id, 0, None) for pending in plan.new],
        *[LakeChange(record_id, 1, plan.before[record_id].identity.stop) for record_id in changed],
    ]


def read_lake(statement: str = "read_lake") -> Work[LakeState]:
    """The store's side of the lake."""
    rows = yield from ask(statement)
    return LakeState(*rows[0]) if rows else LakeState()


def begin_lake(store_id: str) -> Work[LakeState]:
    """Note that none of the records are in a lake, and no changes until it is filled; returns the state.

    Args:
        store_id: of the store, if it has none yet.
    """
    yield from ask("begin_lake", store_id=store_id)
    yield from ask("set_lake", lake_id="")
    yield from ask("drop_lake_changes")
    return (yield from read_lake())


def fill_lake(lake_id: str) -> Work[None]:
    """Note every record as a change, for a lake that has none of them."""
    yield from ask("lock_archive")  # records that move there or back are seen on one side
    yield from ask("hold_lake")
    yield from ask("drop_lake_changes")
    yield from ask("note_all_records")
    yield from ask("set_lake", lake_id=lake_id)


def take_lake_changes(position: int, limit: int) -> Work[TakenChanges]:
    """Number the changes that have waited longest, and read their records, in one transaction and as of one moment.

    A record that was read as a later change has left it would get a row in the lake that this change does not know of.

    Args:
        position: the number of the last batch that the lake has.
        limit: so many changes at most.

    Raises:
        LakeDiverged: the store has not given this number.
    """
    yield from ask("see_one_moment")
    state = yield from read_lake("lock_lake")
    if position > state.batch:
        raise LakeDiverged(f"The lake has batch {position} of this store, which has made only {state.batch}.")
    yield from ask("forget_lake_changes", position=position)
    yield from ask("retry_lake_changes")
    changes = yield from ask("list_lake_changes", limit=limit)
    if not changes:
        return TakenChanges(position, {}, (), ())
    batch = state.batch + 1
    yield from ask("note_lake_batch", batch=batch)
    yield from ask("number_lake_changes", batch=batch, numbers=as_json([number for number, *_ in changes]))
    ids = sorted({record_id for _, record_id, *_ in changes})
    rows = yield from ask("read_records_by_id", ids=as_json(ids))
    archived = [Removal(*row) for row in (yield from ask("find_archived", ids=as_json(ids)))]
    return TakenChanges(batch, _known(changes), rows, archived)


def _known(changes: Rows) -> Mapping[str, set[int | None]]:
    known: dict[str, set[int | None]] = {}
    for _, record_id, is_known, stop_time in changes:
        if is_known:
            known.setdefault(record_id, set()).add(stop_time)
    return known
