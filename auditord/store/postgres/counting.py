"""Counts of records that are maintained by every transaction, without any two of them waiting for each other."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from auditord.database.postgres import Connection
from auditord.database.sql_files import load_queries
from auditord.store.protocol import RecordCounts
from auditord_hookspecs import Record

QUERIES: Final = load_queries(
    "auditord.store.postgres", "queries.sql", "counting.sql", "archiving.sql", "rollups.sql", "lake.sql"
)
"""All statements of the store."""

ALL_RECORDS: Final = ""
"""Stands for a key that every record has; no meta key is empty."""

_Values: TypeAlias = dict[str, dict[str, int]]
"""Numbers of additional records by meta key and value."""


def changes(keys: Sequence[str], added: Sequence[Record], removed: Sequence[Record] = ()) -> str:
    """The changes of the counts by one transaction, as they are appended.

    They have every key that is counted, so that adding up shows which ones were.
    """
    values: _Values = {key: {} for key in keys}
    _count(values, added, 1)
    _count(values, removed, -1)
    return msgspec.json.encode({ALL_RECORDS: {"": len(added) - len(removed)}, **values}).decode()


async def set_counted_keys(connection: Connection, keys: Sequence[str]) -> Sequence[str]:
    """Count values under these meta keys, and under those that other daemons count; returns all of them."""
    counted = await _counted_keys(connection)
    if missing := [key for key in keys if key not in counted]:
        await _count_from_scratch(connection, missing)
    return await _counted_keys(connection)


async def add_up(connection: Connection) -> Sequence[str]:
    """Add up what transactions have appended; returns the counted keys.

    A key that some daemon did not know yet when it appended is counted no more, until a daemon asks for it
    (:func:`set_counted_keys`): then it is counted from the records themselves.
    """
    async with connection.transaction():
        unknown = await (await connection.execute(QUERIES["add_up"])).fetchall()
        if unknown:
            await connection.execute(QUERIES["stop_counting"], {"keys": json.dumps([key for (key,) in unknown])})
        return await _counted_keys(connection)


async def read_counts(connection: Connection, keys: Sequence[str] | None) -> RecordCounts:
    """The counts as of now, by the given keys or by all that are counted."""
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        shown = await _counted_keys(connection) if keys is None else keys
        rows = await (await connection.execute(QUERIES["list_counts"])).fetchall()
        found = await (await connection.execute(QUERIES["count_differences"])).fetchone()
    per_value: _Values = {key: {} for key in (ALL_RECORDS, *shown)}
    for key, value, records in rows:
        if key in per_value:
            per_value[key][value] = records
    total = per_value.pop(ALL_RECORDS).get("", 0)
    return RecordCounts(total, per_value, found[0] if found else 0)


def _count(values: _Values, records: Sequence[Record], more: int) -> None:
    # Many records share their meta, which is looked at once.
    metas = [record.meta for record in records]
    by_identity = dict(zip(map(id, metas), metas, strict=True))
    for identity, times in Counter(map(id, metas)).items():
        meta = by_identity[identity] or {}
        for key, counts in values.items():
            found = meta.get(key, ())
            for value in found if len(found) == 1 else set(found):
                counts[value] = counts.get(value, 0) + more * times


async def _count_from_scratch(connection: Connection, keys: Sequence[str]) -> None:
    parameter = {"keys": json.dumps(keys)}
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")  # it reads every record
        await connection.execute(QUERIES["hold_counts"])
        while await _any_changes(connection):
            await connection.execute(QUERIES["add_up"])
        await connection.execute(QUERIES["forget_counts"], parameter)
        await connection.execute(QUERIES["recount"], parameter)
        await connection.execute(QUERIES["start_counting"], parameter)


async def _counted_keys(connection: Connection) -> Sequence[str]:
    return [key for (key,) in await (await connection.execute(QUERIES["list_counted_keys"])).fetchall()]


async def _any_changes(connection: Connection) -> bool:
    found = await (await connection.execute(QUERIES["any_changes"])).fetchone()
    return bool(found and found[0])
