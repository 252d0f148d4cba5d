"""Meta taken out of stored records for good; see :meth:`RecordStore.redact`."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

import msgspec

from auditord.database.instants import EPOCH
from auditord.duplicates import Duplicates
from auditord.store.changes import stored_rows
from auditord.store.feed import note_removals, removed
from auditord.store.lake import ReleasedRow
from auditord.store.planning import IsReleased
from auditord.store.releasing import Pair, find_released, restore
from auditord.store.rows import make_pending
from auditord.store.work import Work, as_json, ask, records
from auditord_hookspecs import Provenance, Record
from auditord_hookspecs.wire import decode_record, encode_record

_UNUSED: Final = Provenance(EPOCH)
"""The statement ``redact_records`` takes whole rows, but leaves the stored provenance alone."""


def redact(
    record_ids: Sequence[str], keys: Collection[str], back: Sequence[Pair] = (), seen: Collection[ReleasedRow] = ()
) -> Work[int]:
    """Redact the records, what differed from them and what they were before; returns how many records were changed.

    Args:
        record_ids: of all of them.
        keys: of the meta that goes.
        back: released ones that have any of the keys; they come back, and their rows in the lake do not count.
        seen: all of them that were released when the lake was looked into.

    Raises:
        IsReleased: another one is released by now.
    """
    if back:
        yield from restore(back)
    ids = as_json(sorted(record_ids))
    for number, document in (yield from ask("versions_of_records", ids=ids)):
        yield from _redact_version(number, _without(document, keys))
    rows = stored_rows((yield from ask("lock_records", ids=ids))).values()
    for row in (yield from find_released(record_ids)):
        if row not in seen:
            raise IsReleased(row.record_id)
    found = [after for row in rows if (after := _without(row.text, keys)) is not None]
    if found:
        yield from note_removals([removed(after.record_id) for after in found])
        yield from records("redact_records", [make_pending(each, _UNUSED, Duplicates.SAME_RUN) for each in found])
        yield from ask("settle_differences", ids=as_json([after.record_id for after in found]))
    return len(found)


def redact_leftovers(before: datetime, keys: Collection[str]) -> Work[int]:
    """Redact former versions of old records, and forget what differed from old records; returns how many there were."""
    changed = 0
    for key in keys:
        text = msgspec.json.encode(key).decode() + ":"  # in every document that has the key
        for number, document in (yield from ask("versions_with_text", text=text)):
            changed += yield from _redact_version(number, _without_if_old(document, keys, before))
        for record_id, content, offered in (yield from ask("differences_with_text", text=text)):
            if _without_if_old(offered, keys, before) is not None:
                yield from ask("forget_difference", record_id=record_id, content=content)
                changed += 1
    return changed


def _redact_version(number: int, after: Record | None) -> Work[bool]:
    if after is None:
        return False
    yield from ask("redact_version", number=number, document=encode_record(after).decode())
    return True


def _without(document: str, keys: Collection[str]) -> Record | None:
    """The record without the keys; None if it has none of them."""
    before = decode_record(document.encode())
    if before.meta is None or not has_any(before, keys):
        return None
    meta = {key: values for key, values in before.meta.items() if key not in keys}
    return msgspec.structs.replace(before, meta=meta)


def has_any(record: Record, keys: Collection[str]) -> bool:
    """Return whether a record has any of the meta keys."""
    return record.meta is not None and not set(keys).isdisjoint(record.meta)


def _without_if_old(document: str, keys: Collection[str], before: datetime) -> Record | None:
    """The redacted record, but None for a record that ended later (an open one: started later)."""
    after = _without(document, keys)
    return None if after is None or (after.stop_time or after.start_time) >= before else after
