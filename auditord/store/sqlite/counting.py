"""Counts of records, in all and by the values of counted meta keys, which are maintained and yet cost an insert little.

What is counted is written down every thousand records, in the transaction that adds them; the few that have come since
are counted on demand. Each counted key knows up to which record it has been written down, so that a new key
begins with the first record, and nothing is counted twice after a crash.
"""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, LiteralString

from auditord.database.sql_files import load_queries
from auditord.store.conditions import can_be_there
from auditord.store.planning import StoredRow
from auditord.store.protocol import RecordCounts
from auditord.store.work import Count
from auditord_hookspecs import Record
from auditord_hookspecs.query import Condition, Leaf, MetaContains, MetaContainsAny, fold

QUERIES: Final = load_queries(
    "auditord.store.sqlite", "queries.sql", "counting.sql", "archiving.sql", "rollups.sql", "lake.sql"
)
"""All statements of the store."""

ALL_RECORDS: Final = ""
"""Stands for a key that every record has; no meta key is empty."""

BETWEEN_NOTES: Final = 1_000
"""Records that may be added before the counts are written down again."""

_COUNT_MORE: Final = "INSERT INTO record_counts (meta_key, meta_value, records)"
_OR_ADD: Final = "ON CONFLICT (meta_key, meta_value) DO UPDATE SET records = records + excluded.records"

_COLUMN_QUERIES: Final[dict[str, LiteralString]] = {
    "site_id": QUERIES["arrivals_by_site"],
    "group_id": QUERIES["arrivals_by_group"],
    "user_id": QUERIES["arrivals_by_user"],
}


def read_counts(connection: sqlite3.Connection) -> RecordCounts:
    """The counts as of now."""
    per_key: dict[str, dict[str, int]] = {}
    for key, up_to in _counted_keys(connection):
        counter = Counter(dict(connection.execute(QUERIES["list_counts"], (key,)).fetchall()))
        counter.update(_arrivals(connection, key, up_to))
        per_key[key] = {value: records for value, records in counter.items() if records}
    total = per_key.pop(ALL_RECORDS).get("", 0)
    (differences,) = connection.execute(QUERIES["count_differences"]).fetchone()
    return RecordCounts(total, per_key, differences)


def has_none(connection: sqlite3.Connection, where: Condition) -> bool:
    """Return whether no record can fulfil a condition, since the counts know none with the values that it asks for.

    False where they do not tell. No index has the values, so that without counts all records are read for nothing.
    """
    progress = dict(_counted_keys(connection))

    def is_unknown(leaf: Leaf) -> bool:
        match leaf:
            case MetaContains(key, value):
                return _has_none(connection, progress, key, (value,))
            case MetaContainsAny(key, values):
                return _has_none(connection, progress, key, values)
            case _:
                return False

    return fold(where, is_unknown, any, all)


def _has_none(connection: sqlite3.Connection, progress: Mapping[str, int], key: str, values: Collection[str]) -> bool:
    if key not in progress or not all(map(can_be_there, values)):
        return False
    if any(connection.execute(QUERIES["has_count"], (key, value)).fetchone() for value in values):
        return False
    return _arrivals(connection, key, progress[key]).keys().isdisjoint(values)


def set_counted_keys(connection: sqlite3.Connection, keys: Iterable[str]) -> None:
    """Count values under exactly these meta keys; all records are read for keys that were not counted before."""
    wanted = {ALL_RECORDS, *keys}
    counted = {key for key, _ in _counted_keys(connection)}
    for key in counted - wanted:
        connection.execute(QUERIES["stop_counting"], (key,))
        connection.execute(QUERIES["forget_counts"], (key,))
    for key in wanted - counted:
        connection.execute(QUERIES["start_counting"], (key,))
    _write_down(connection, _last_record(connection))


def count_arrivals(connection: sqlite3.Connection) -> None:
    """To be called when records have been added: writes the counts down if it is time."""
    last = _last_record(connection)
    (up_to,) = connection.execute(QUERIES["first_uncounted"]).fetchone()
    if last - up_to >= BETWEEN_NOTES:
        _write_down(connection, last)


def count_changes(connection: sqlite3.Connection, count: Count) -> None:
    """Correct what has been written down, and write down what is new if it is time."""
    for before, after in count.changed:
        _correct(connection, before, after)
    for before in count.removed:
        _correct(connection, before, None)
    if count.removed:
        # Of the newest record the next one takes the number over: it has not been written down.
        connection.execute(QUERIES["note_removal"], (_last_record(connection),))
    if count.added:
        count_arrivals(connection)


def _correct(connection: sqlite3.Connection, before: StoredRow, after: Record | None) -> None:
    record = before.record
    for key, up_to in _counted_keys(connection):
        if before.seq <= up_to:
            changes = Counter(() if after is None else _values(after, key))
            changes.subtract(_values(record, key))
            _add(connection, key, changes)


def _write_down(connection: sqlite3.Connection, last: int) -> None:
    for key, up_to in _counted_keys(connection):
        for query, parameters in _arrivals_of(key, up_to):
            count: LiteralString = f"{_COUNT_MORE} SELECT ?, * FROM ({query}) WHERE TRUE {_OR_ADD}"  # noqa: S608 literals
            connection.execute(count, (key, *parameters))
    connection.execute(QUERIES["note_progress"], (last,))


def _arrivals(connection: sqlite3.Connection, key: str, up_to: int) -> "Counter[str]":
    """Number of records after the given one, by value of a key."""
    counter = Counter[str]()
    for query, parameters in _arrivals_of(key, up_to):
        counter.update(dict[str, int](connection.execute(query, parameters).fetchall()))
    return counter


def _arrivals_of(key: str, up_to: int) -> Sequence[tuple[LiteralString, Sequence[object]]]:
    """The queries that find them, with their parameters."""
    if key == ALL_RECORDS:
        return [(QUERIES["arrivals"], (up_to,))]
    if key in _COLUMN_QUERIES:
        return [(_COLUMN_QUERIES[key], (up_to,)), (QUERIES["arrivals_by_rare_value"], (up_to, key))]
    return [(QUERIES["arrivals_by_value"], (up_to, key))]


def _add(connection: sqlite3.Connection, key: str, changes: "Counter[str]") -> None:
    rows = [(key, value, more) for value, more in changes.items() if more]
    connection.executemany(f"{_COUNT_MORE} VALUES (?, ?, ?) {_OR_ADD}", rows)


def _counted_keys(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    return connection.execute(QUERIES["list_counted_keys"]).fetchall()


def _last_record(connection: sqlite3.Connection) -> int:
    last: int = connection.execute(QUERIES["last_record"]).fetchone()[0]
    return last


def _values(record: Record, key: str) -> Collection[str]:
    # A value that is listed twice makes no second record.
    return {""} if key == ALL_RECORDS else set((record.meta or {}).get(key, ()))
