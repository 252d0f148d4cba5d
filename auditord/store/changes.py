"""Change records in a transaction: read their rows, make a plan (:class:`ChangePlan`), and write the planned rows.

Nearly all records are new, so the driver of each database first tries to insert them without reading stored ones. Only
if that fails, a plan is made. The rows that a plan was made from are locked and compared before its changes are
applied. If another transaction has changed them, the work is rolled back and tried again
(:class:`auditord.store.work.Overtaken`).

To redact is to permanently remove meta from stored records; see :meth:`auditord.store.store.RecordStore.redact`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, Final

import msgspec

from auditord.database.instants import EPOCH
from auditord.duplicates import Duplicates
from auditord.store.feed import note_removals
from auditord.store.lake import ReleasedRow
from auditord.store.planning import (
    Change,
    ChangePlan,
    Correction,
    IsReleased,
    Outcome,
    Removed,
    StoredRow,
    ids_of,
)
from auditord.store.protocol import Verdict, is_forwarded
from auditord.store.releasing import Pair, find_released, restore
from auditord.store.rows import Bulk, Identity, PendingRecord, make_pending
from auditord.store.work import Overtaken, Refused, Work, as_json, ask, atomic, for_each, records
from auditord_hookspecs import InvalidRecord, Provenance, Record
from auditord_hookspecs.wire import decode_record, encode_record


class Move(msgspec.Struct, frozen=True, gc=False):
    """New times of a stored record."""

    record_id: str
    start_time: datetime
    stop_time: datetime | None
    runtime: int | None
    document: str
    received_at: datetime


def change_each(changes: Sequence[Change]) -> Work[Sequence[Outcome]]:
    """Make changes in order, in one transaction. If the database refuses one, make each in a transaction of its own."""
    try:
        return (yield from atomic(lambda: _settle(changes)))
    except Refused:
        outcomes: list[Outcome] = []
        for change in changes:
            try:
                outcomes += yield from atomic(partial(_settle, [change]))
            except Refused as error:
                outcomes.append(_invalid(ids_of(change)[0], error))
        return outcomes


def add_bulk(bulk: Bulk) -> Work[Sequence[Outcome]]:
    """Add records in one transaction, all or none.

    Raises:
        InvalidRecord: the database permanently refuses one of them.
    """
    pending = bulk.pending()
    try:
        return (yield from atomic(lambda: _settle(pending, is_atomic=bulk.atomic)))
    except Refused as error:
        refused: Sequence[PendingRecord] = pending
        while len(refused) > 1:  # find the refused record by bisection
            half = refused[: len(refused) // 2]
            refused = half if (yield from _is_refused(half)) else refused[len(half) :]
        raise _invalid(refused[0].record_id, error) from error


def correct(corrections: Sequence[Correction]) -> Work[Sequence[Outcome]]:
    """Make those corrections that still fit the stored records, in one transaction. After an error, none is made.

    Raises:
        IsReleased: a record must be recalled from the lake first.
        InvalidRecord: the database refuses a record.
    """
    try:
        return (yield from atomic(lambda: _settle(corrections)))
    except Refused as error:
        raise InvalidRecord(f"A record cannot be stored: {error}.") from error


def _settle(changes: Sequence[Change], *, is_atomic: bool = False) -> Work[Sequence[Outcome]]:
    ids = dict.fromkeys(chain.from_iterable(map(ids_of, changes)))
    whole = any(not isinstance(change, PendingRecord) for change in changes)
    plan = ChangePlan(index_rows((yield from ask("find_records", ids=as_json(list(ids)), whole=whole))))
    outcomes = [plan.apply(change) for change in changes]
    if is_atomic and Verdict.EXISTS in outcomes:
        return outcomes
    new = plan.new
    inserted = yield from records("insert_records", new)
    if inserted < len(new):
        raise Overtaken
    # Only after the inserts, which block further releases.
    if new and (yield from ask("find_released", ids=as_json([each.record_id for each in new]))):
        raise Overtaken
    if plan.touched:
        touched = sorted(plan.touched)
        locked = index_rows((yield from ask("lock_records", ids=as_json(touched))))
        for record_id in touched:
            found, before = locked.get(record_id), plan.before[record_id]
            if found is None or found.identity != before.identity or before.document not in {None, found.document}:
                raise Overtaken
    yield from for_each("keep_versions", [kept for _, kept in sorted(plan.kept.items())])
    yield from note_removals([plan.forwarded.get(each) or Removed(each) for each in plan.changed])
    yield from records("overwrite_records", plan.overwritten)
    moves: list[Move] = []
    for pending in plan.moved:
        start, stop, runtime = pending.record.start_time, pending.record.stop_time, pending.record.runtime
        received_at = pending.provenance.received_at
        moves.append(Move(pending.record_id, start, stop, runtime, pending.row.document, received_at))
    yield from for_each("move_records", moves)
    if plan.settled:
        yield from ask("settle_differences", ids=as_json(sorted(plan.settled)))
    yield from records("note_differences", list(plan.differences.values()))
    if plan.removed:
        yield from ask("delete_records", ids=as_json(sorted(plan.removed)))
    # The principal of a new record decides whether it is forwarded, unless another one changed it in the same plan.
    others = [each.record_id for each in new if not is_forwarded(each.provenance)]
    yield from for_each("note_forwards", [plan.forwarded[each] for each in others if each in plan.forwarded])
    return outcomes


class _Tried(Exception):
    """Rolls back work that was only tried."""


def index_rows(rows: Iterable[Sequence[Any]]) -> Mapping[str, StoredRow]:  # Any: columns of all types
    """Return the rows of ``find_records`` or ``lock_records`` by id."""
    return {
        record_id: StoredRow(Identity(start, stop, content), document, *release)
        for record_id, start, stop, content, document, *release in rows
    }


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


_UNUSED: Final = Provenance(EPOCH)
"""Fills the rows for ``redact_records``, which does not write the provenance."""


def redact(
    record_ids: Sequence[str], keys: Collection[str], back: Sequence[Pair] = (), seen: Collection[ReleasedRow] = ()
) -> Work[int]:
    """Redact records and their former versions, and forget their differences. Return how many records were changed.

    Args:
        record_ids: the ids of the records, released or not.
        keys: the meta keys to remove.
        back: released records with any of the keys. They are recalled first.
        seen: those of the records that were released when the lake was read.

    Raises:
        IsReleased: another one has been released since then.
    """
    if back:
        yield from restore(back)
    ids = as_json(sorted(record_ids))
    for number, document in (yield from ask("versions_of_records", ids=ids)):
        yield from _redact_version(number, _remove_keys(document, keys))
    rows = index_rows((yield from ask("lock_records", ids=ids))).values()
    for row in (yield from find_released(record_ids)):
        if row not in seen:
            raise IsReleased(row.record_id)
    found = [after for row in rows if (after := _remove_keys(row.text, keys)) is not None]
    if found:
        yield from note_removals([Removed(after.record_id) for after in found])
        yield from records("redact_records", [make_pending(each, _UNUSED, Duplicates.SAME_RUN) for each in found])
        yield from ask("settle_differences", ids=as_json([after.record_id for after in found]))
    return len(found)


def redact_leftovers(before: datetime, keys: Collection[str]) -> Work[int]:
    """Redact former versions of old records, and forget differences of old records. Return their number."""
    changed = 0
    for key in keys:
        text = msgspec.json.encode(key).decode() + ":"  # occurs in every document with the key
        for number, document in (yield from ask("versions_with_text", text=text)):
            changed += yield from _redact_version(number, _remove_keys_if_old(document, keys, before))
        for record_id, content, offered in (yield from ask("differences_with_text", text=text)):
            if _remove_keys_if_old(offered, keys, before) is not None:
                yield from ask("forget_difference", record_id=record_id, content=content)
                changed += 1
    return changed


def _redact_version(number: int, after: Record | None) -> Work[bool]:
    if after is None:
        return False
    yield from ask("redact_version", number=number, document=encode_record(after).decode())
    return True


def _remove_keys(document: str, keys: Collection[str]) -> Record | None:
    """Return the record without the keys, or None if it has none of them."""
    before = decode_record(document.encode())
    if before.meta is None or not has_any(before, keys):
        return None
    meta = {key: values for key, values in before.meta.items() if key not in keys}
    return msgspec.structs.replace(before, meta=meta)


def has_any(record: Record, keys: Collection[str]) -> bool:
    """Return whether a record has any of the meta keys."""
    return record.meta is not None and not set(keys).isdisjoint(record.meta)


def _remove_keys_if_old(document: str, keys: Collection[str], before: datetime) -> Record | None:
    """Return the redacted record; None if nothing changes, or if it stopped (or, if open, started) too late."""
    after = _remove_keys(document, keys)
    return None if after is None or (after.stop_time or after.start_time) >= before else after
