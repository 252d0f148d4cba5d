"""Taking meta out of stored records for good, whatever database keeps them; see :meth:`RecordStore.redact`."""

from collections.abc import Collection
from datetime import datetime

import msgspec

from auditord.store.rows import Value, columns
from auditord_hookspecs import Record
from auditord_hookspecs.wire import decode_record


class Redacted(msgspec.Struct, frozen=True, gc=False):
    """A record without some of its meta, and the columns that this changes."""

    before: Record
    after: Record
    site: Value
    user_group: Value
    user_name: Value
    more: Value
    content: Value
    document: Value


def redact(document: bytes, keys: Collection[str]) -> Redacted | None:
    """What a stored record becomes; None if it has none of the keys."""
    before = decode_record(document)
    if before.meta is None or set(keys).isdisjoint(before.meta):
        return None
    after = msgspec.structs.replace(
        before, meta={key: values for key, values in before.meta.items() if key not in keys}
    )
    _, _, site, group, user, more, *_, content, text = columns(after)
    return Redacted(before, after, site, group, user, more, content, text)


def redact_old(document: bytes, keys: Collection[str], before: datetime) -> Redacted | None:
    """The same, but None for a record that ended later (an open one: started later)."""
    found = redact(document, keys)
    if found is None or (found.before.stop_time or found.before.start_time) >= before:
        return None
    return found


def key_text(key: str) -> str:
    """What stands in every wire text that has the meta key."""
    return msgspec.json.encode(key).decode() + ":"
