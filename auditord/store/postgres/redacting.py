"""Taking meta out of records for good; see :meth:`RecordStore.redact`."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from auditord.database.postgres import Connection
from auditord.store.postgres.changes import again
from auditord.store.postgres.counting import QUERIES as COUNTING
from auditord.store.postgres.counting import CountChanges
from auditord.store.postgres.rows import as_json
from auditord.store.postgres.sources import QUERIES
from auditord.store.redacting import Redacted, key_text, redact_old
from auditord.store.redacting import redact as redacted


async def redact(
    connection: Connection, record_ids: Sequence[str], keys: Collection[str], counted_keys: Sequence[str]
) -> int:
    """Redact the records, what differed from them and what they were before; returns how many records were changed."""

    async def work() -> int:
        async with connection.transaction():
            ids = as_json(sorted(record_ids))
            await _redact_versions(connection, ids, keys)
            rows = await (await connection.execute(QUERIES["lock_documents"], (ids,))).fetchall()
            found = [new for _, document in rows if (new := redacted(document.encode(), keys)) is not None]
            if found:
                await _write(connection, found, counted_keys)
            return len(found)

    return await again(work)


async def redact_leftovers(connection: Connection, before: datetime, keys: Collection[str]) -> int:
    """Redact former versions of old records, and forget what differed from old records; returns how many there were."""
    async with connection.transaction():
        return sum([await _redact_leftovers(connection, key_text(key), before, keys) for key in keys])


async def _redact_versions(connection: Connection, ids: str, keys: Collection[str]) -> None:
    rows = await (await connection.execute(QUERIES["versions_of_records"], (ids,))).fetchall()
    for number, document in rows:
        if (version := redacted(document.encode(), keys)) is not None:
            await connection.execute(QUERIES["redact_version"], (version.document, number))


async def _write(connection: Connection, found: Sequence[Redacted], counted_keys: Sequence[str]) -> None:
    await connection.execute(QUERIES["redact_records"], (as_json([_row(each) for each in found]),))
    await connection.execute(QUERIES["settle_differences"], (as_json([each.after.record_id for each in found]),))
    tally = CountChanges(counted_keys).add(each.after for each in found)
    for each in found:
        tally.remove(each.before)
    await connection.execute(COUNTING["note_changes"], (tally.as_json(),))


def _row(each: Redacted) -> Mapping[str, Any]:  # Any: JSON
    return {
        "record_id": each.after.record_id,
        "site": each.site,
        "user_group": each.user_group,
        "user_name": each.user_name,
        "more": True if each.more else None,
        "content": each.content,
        "meta": each.after.meta,
        "document": each.document,
    }


async def _redact_leftovers(connection: Connection, text: str, before: datetime, keys: Collection[str]) -> int:
    changed = 0
    for number, document in await (await connection.execute(QUERIES["versions_with_text"], (text,))).fetchall():
        if (version := redact_old(document.encode(), keys, before)) is not None:
            await connection.execute(QUERIES["redact_version"], (version.document, number))
            changed += 1
    rows = await (await connection.execute(QUERIES["differences_with_text"], (text,))).fetchall()
    for record_id, content, offered in rows:
        if redact_old(offered.encode(), keys, before) is not None:
            await connection.execute(QUERIES["forget_difference"], (record_id, content))
            changed += 1
    return changed
