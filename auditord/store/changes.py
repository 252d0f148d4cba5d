"""Change records in a transaction: read their rows, make a plan (:class:`ChangePlan`), and write the planned rows.

Nearly all records are new: the driver of each database first tries to add them at once, without reading
stored ones, and asks for a plan if that fails. Where several daemons may write, the rows that the plan was made from
are locked and compared before anything is written; if another transaction has changed them, all begins anew
(:class:`auditord.store.work.Overtaken`).
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

import msgspec

from auditord.store.bulks import Bulk
from auditord.store.feed import note_removals, removed
from auditord.store.planning import (
    Addition,
    Change,
    ChangePlan,
    Correction,
    IsReleased,
    Kept,
    Outcome,
    StoredRow,
    ids_of,
)
from auditord.store.protocol import Verdict, is_forwarded
from auditord.store.rows import PendingRecord
from auditord.store.verdicts import Identity
from auditord.store.work import Overtaken, Refused, Work, as_json, ask, atomic, for_each, records
from auditord_hookspecs import InvalidRecord


class Move(msgspec.Struct, frozen=True, gc=False):
    """A record that starts or stops at another time."""

    record_id: str
    start_time: datetime
    stop_time: datetime | None
    runtime: int | None
    document: str
    received_at: datetime


class KeptVersion(msgspec.Struct, frozen=True, gc=False):
    """A version of a record that is kept, and the change that replaced it."""

    record_id: str
    action: str
    reason: str
    changed_at: datetime
    changed_by: int


def change_each(changes: Sequence[Change]) -> Work[Sequence[Outcome]]:
    """Make changes in order and in one transaction; one that the database refuses harms no other."""
    try:
        return (yield from atomic(lambda: _settle(changes)))
    except Refused:
        outcomes: list[Outcome] = []
        for change in changes:
            outcomes.append((yield from _alone(change)))  # noqa: PERF401 a comprehension cannot yield
        return outcomes


def add_bulk(bulk: Bulk) -> Work[Sequence[Outcome]]:
    """Add records in one transaction, all or none.

    Raises:
        InvalidRecord: the database refuses one of them for good.
    """
    pending = bulk.pending()
    additions = [Addition(each) for each in pending]
    try:
        return (yield from atomic(lambda: _settle(additions, is_atomic=bulk.atomic)))
    except Refused as error:
        raise (yield from _refusal(pending, error)) from error


def correct(corrections: Sequence[Correction]) -> Work[Sequence[Outcome]]:
    """Make those corrections that still fit the stored records, in one transaction, or none.

    Raises:
        IsReleased: a record has to come back from the lake first.
        InvalidRecord: the database refuses a record.
    """
    try:
        return (yield from atomic(lambda: _settle_here(corrections)))
    except Refused as error:
        raise InvalidRecord(f"A record cannot be stored: {error}.") from error


def _alone(change: Change) -> Work[Outcome]:
    try:
        (outcome,) = yield from atomic(lambda: _settle([change]))
    except Refused as error:
        return _invalid(ids_of(change)[0], error)
    return outcome


def _settle(changes: Sequence[Change], *, is_atomic: bool = False) -> Work[Sequence[Outcome]]:
    plan = ChangePlan((yield from _find(changes)))
    outcomes = [plan.apply(change) for change in changes]
    if not (is_atomic and Verdict.EXISTS in outcomes):
        yield from _write(plan)
    return outcomes


def _settle_here(corrections: Sequence[Correction]) -> Work[Sequence[Outcome]]:
    outcomes = yield from _settle(corrections)
    for outcome in outcomes:
        if isinstance(outcome, IsReleased):
            raise outcome
    return outcomes


def _write(plan: ChangePlan) -> Work[None]:
    new = plan.new
    inserted = yield from records("insert_records", new)
    if inserted < len(new) or (yield from _are_released(new)):
        raise Overtaken
    if plan.touched:
        yield from _lock(plan)
    yield from for_each("keep_versions", [_version(record_id, kept) for record_id, kept in sorted(plan.kept.items())])
    yield from note_removals([removed(record_id, plan.forwarded.get(record_id)) for record_id in plan.changed])
    yield from records("overwrite_records", plan.overwritten)
    yield from for_each("move_records", [_move(pending) for pending in plan.moved])
    if plan.settled:
        yield from ask("settle_differences", ids=as_json(sorted(plan.settled)))
    yield from records("note_differences", list(plan.differences.values()))
    if plan.removed:
        yield from ask("delete_records", ids=as_json(sorted(plan.removed)))
    # The sender of a new record decides whether it is forwarded, unless another principal changed it at once.
    forwarded = [
        each.record_id for each in new if each.record_id in plan.forwarded and not is_forwarded(each.provenance)
    ]
    yield from for_each("note_forwards", [removed(each, plan.forwarded[each]) for each in forwarded])


def _refusal(pending: Sequence[PendingRecord], error: Refused) -> Work[InvalidRecord]:
    """The error about the record that the database refuses, found by trying ever smaller parts of them."""
    while len(pending) > 1:
        half = pending[: len(pending) // 2]
        pending = half if (yield from _is_refused(half)) else pending[len(half) :]
    return _invalid(pending[0].record_id, error)


class _Tried(Exception):
    """Work that is only tried, and undone."""


def stored_rows(rows: Iterable[Sequence[Any]]) -> Mapping[str, StoredRow]:  # Any: columns of all types
    """Rows of ``find_records`` and ``lock_records`` by id."""
    return {
        record_id: StoredRow(Identity(start, stop, content), document, *release)
        for record_id, start, stop, content, document, *release in rows
    }


def _find(changes: Sequence[Change]) -> Work[Mapping[str, StoredRow]]:
    ids = dict.fromkeys(chain.from_iterable(map(ids_of, changes)))
    whole = any(not isinstance(change, Addition) for change in changes)
    return stored_rows((yield from ask("find_records", ids=as_json(list(ids)), whole=whole)))


def _are_released(new: Sequence[PendingRecord]) -> Work[bool]:
    """Return whether a record is released by now; looked for after it was added, when it can't be released any more."""
    return bool(new) and bool((yield from ask("find_released", ids=as_json([each.record_id for each in new]))))


def _lock(plan: ChangePlan) -> Work[None]:
    """Lock the rows that the plan was made from.

    Raises:
        Overtaken: another transaction has changed one.
    """
    ids = sorted(plan.touched)
    locked = stored_rows((yield from ask("lock_records", ids=as_json(ids))))
    for record_id in ids:
        found, before = locked.get(record_id), plan.before[record_id]
        if found is None or found.identity != before.identity or before.document not in {None, found.document}:
            raise Overtaken


def _is_refused(pending: Sequence[PendingRecord]) -> Work[bool]:
    def attempt() -> Work[None]:
        yield from records("insert_records", pending)
        raise _Tried

    try:
        yield from atomic(attempt)
    except Refused:
        return True
    except _Tried:
        pass
    return False


def _invalid(record_id: str, error: Refused) -> InvalidRecord:
    return InvalidRecord(f"The record {record_id!r} cannot be stored: {error}.")


def _move(pending: PendingRecord) -> Move:
    record, received_at = pending.record, pending.provenance.received_at
    return Move(
        record.record_id, record.start_time, record.stop_time, record.runtime, pending.row.document, received_at
    )


def _version(record_id: str, kept: Kept) -> KeptVersion:
    return KeptVersion(record_id, kept.action.value, kept.reason, kept.provenance.received_at, kept.source)
