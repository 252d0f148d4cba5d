"""Counts of records that are maintained by every transaction, without any two of them waiting for each other."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from auditord.database.postgres import Connection
from auditord.database.queries import load_queries
from auditord.store.protocol import RecordCounts
from auditord_hookspecs import Record
from auditord_hookspecs.records import Meta

QUERIES: Final = load_queries("auditord.store.postgres", "counting.sql")
ALL_RECORDS: Final = ""
"""Stands for a key that every record has; no meta key is empty."""

Changes: TypeAlias = dict[str, dict[str, int]]
"""How many more records have a value, by meta key."""


class CountChanges:
    """What one transaction changes in the counts.

    Args:
        keys: the meta keys that are counted.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._records = 0
        self._values: Changes = {key: {} for key in keys}

    def add(self, records: Iterable[Record]) -> "CountChanges":
        """Count records that are there from now on."""
        self._count([record.meta or {} for record in records], 1)
        return self

    def remove(self, record: Record) -> None:
        """Count a record that is there no more."""
        self._count([record.meta or {}], -1)

    def as_json(self) -> str:
        """What is appended; it has every key, so that whoever adds it up sees which ones were counted."""
        changes = {ALL_RECORDS: {"": self._records}, **self._values}
        return msgspec.json.encode(changes).decode()

    def _count(self, metas: Sequence[Meta], more: int) -> None:
        self._records += more * len(metas)
        for key, counts in self._values.items():
            # Many records have the same values, which are looked at once.
            for values, times in Counter([meta.get(key, ()) for meta in metas]).items():
                for value in values if len(values) == 1 else set(values):
                    counts[value] = counts.get(value, 0) + more * times


async def set_counted_keys(connection: Connection, keys: Sequence[str]) -> Sequence[str]:
    """Count values under these meta keys, and under those that other daemons count; returns all of them."""
    counted = await _counted_keys(connection)
    if missing := [key for key in keys if key not in counted]:
        await _count_from_scratch(connection, missing)
    return await _counted_keys(connection)


async def add_up(connection: Connection) -> Sequence[str]:
    """Add up what transactions have appended; returns the counted keys.

    A key that some daemon did not know yet when it appended is counted no more, until somebody wants it
    (:func:`set_counted_keys`): then it is counted from the records themselves.
    """
    async with connection.transaction():
        unknown = await (await connection.execute(QUERIES["add_up"])).fetchall()
        if unknown:
            await connection.execute(QUERIES["stop_counting"], (json.dumps([key for (key,) in unknown]),))
        return await _counted_keys(connection)


async def read_counts(connection: Connection, keys: Sequence[str] | None) -> RecordCounts:
    """The counts as of now, by the given keys or by all that are counted."""
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        shown = await _counted_keys(connection) if keys is None else keys
        rows = await (await connection.execute(QUERIES["list_counts"])).fetchall()
        found = await (await connection.execute(QUERIES["count_differences"])).fetchone()
    per_value: dict[str, dict[str, int]] = {key: {} for key in (ALL_RECORDS, *shown)}
    for key, value, records in rows:
        if key in per_value:
            per_value[key][value] = records
    total = per_value.pop(ALL_RECORDS).get("", 0)
    return RecordCounts(total, per_value, found[0] if found else 0)


async def _count_from_scratch(connection: Connection, keys: Sequence[str]) -> None:
    parameter = (json.dumps(keys),)
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")  # it reads every record
        await connection.execute(QUERIES["hold_writers"])
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
