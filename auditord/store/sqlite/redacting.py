"""Taking meta out of records for good, in the writer's thread; see :meth:`RecordStore.redact`."""

import sqlite3
from collections.abc import Collection, Sequence
from datetime import datetime

from auditord.store.redacting import key_text, redact_old
from auditord.store.redacting import redact as redacted
from auditord.store.sqlite.changes import StoredRow, find
from auditord.store.sqlite.counting import count_change
from auditord.store.sqlite.sources import QUERIES


def redact(connection: sqlite3.Connection, record_ids: Sequence[str], keys: Collection[str]) -> int:
    """Redact the records, what differed from them and what they were before; returns how many records were changed."""
    stored = (find(connection, record_id) for record_id in record_ids)
    return sum(_redact(connection, each, keys) for each in stored if each is not None)


def redact_leftovers(connection: sqlite3.Connection, before: datetime, keys: Collection[str]) -> int:
    """Redact former versions of old records, and forget what differed from old records; returns how many there were."""
    return sum(_redact_leftovers(connection, key_text(key), before, keys) for key in keys)


def _redact(connection: sqlite3.Connection, stored: StoredRow, keys: Collection[str]) -> bool:
    for number, document in connection.execute(QUERIES["versions_of_record"], (stored.record.record_id,)).fetchall():
        if (version := redacted(document, keys)) is not None:
            connection.execute(QUERIES["redact_version"], (version.document, number))
    new = redacted(stored.document, keys)
    if new is None:
        return False
    values = (new.site, new.user_group, new.user_name, new.more, new.content, new.document)
    connection.execute(QUERIES["redact_record"], (*values, stored.seq))
    connection.execute(QUERIES["settle_differences"], (new.after.record_id,))
    count_change(connection, stored.seq, new.before, new.after)
    return True


def _redact_leftovers(connection: sqlite3.Connection, text: str, before: datetime, keys: Collection[str]) -> int:
    changed = 0
    for number, document in connection.execute(QUERIES["versions_with_text"], (text,)).fetchall():
        if (version := redact_old(document, keys, before)) is not None:
            connection.execute(QUERIES["redact_version"], (version.document, number))
            changed += 1
    for seq, offered in connection.execute(QUERIES["differences_with_text"], (text,)).fetchall():
        if redact_old(offered, keys, before) is not None:
            connection.execute(QUERIES["forget_difference"], (seq,))
            changed += 1
    return changed
