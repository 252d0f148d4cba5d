"""Count records by the values of some meta keys, with one consumer of the feed for each key.

A consumer ``count:<key>`` has counted all versions up to its position in the table ``record_counts``. The rest is
counted by each read. A record counts once for each of its values, even if its list repeats a value.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final, LiteralString

from auditord.store.columns import META_COLUMNS
from auditord.store.dialects import Sql, StoreDialect, join
from auditord.store.feed import (
    BEHIND_ALL,
    Slice,
    of_slice,
    oldest_unread,
    versions_between,
)
from auditord.store.protocol import RecordCounts
from auditord.store.work import Work, ask, execute

ALL_RECORDS: Final = ""
"""A pseudo key that every record has. No meta key is empty."""

PREFIX: Final = "count:"
"""The prefix of consumers' names, before the key."""


def count_slice(key: str, bounds: Slice, dialect: StoreDialect) -> Work[None]:
    """Count the versions of a slice, in the transaction that moves the consumer."""
    counted = of_slice(_by_value(key, dialect), bounds)
    yield from execute(
        Sql(
            f"INSERT INTO {dialect.schema}record_counts (meta_key, meta_value, records)"  # noqa: S608 literals
            f" SELECT {dialect.text_parameter}, value, records FROM ({counted.sql}) AS counted WHERE records <> 0"
            " ON CONFLICT (meta_key, meta_value) DO UPDATE SET records = record_counts.records + excluded.records",
            (key, *counted.parameters),
        )
    )
    if (yield from ask("has_removals")):
        yield from ask("drop_empty_counts", key=key)


def set_counted_keys(keys: Collection[str], *, others_too: bool) -> Work[None]:
    """Set the meta keys whose values are counted.

    Args:
        keys: the keys.
        others_too: whether to keep counting other keys, which another daemon may need.
    """
    counted = {key for key, _ in (yield from ask("list_counted_keys"))}
    for key in sorted({*keys} - counted):
        yield from ask("add_consumer", name=PREFIX + key, position=0)
    if others_too:
        return
    for key in sorted(counted - {ALL_RECORDS, *keys}):
        yield from ask("forget_consumer", name=PREFIX + key)
        yield from ask("forget_counts", key=key)


def read_counts(keys: Collection[str] | None, dialect: StoreDialect) -> Work[RecordCounts]:
    """Return the current counts. Call it in one transaction.

    Args:
        keys: the keys to return; None for all that are counted.
        dialect: the SQL of the database.
    """
    positions: Mapping[str, int] = dict((yield from ask("list_counted_keys")))
    shown = {ALL_RECORDS, *(positions if keys is None else keys)}
    counters = {key: Counter[str]() for key in shown & positions.keys()}
    for key, value, records in (yield from ask("list_counts")):
        if key in counters:
            counters[key][value] = records
    for key, counter in counters.items():
        counter.update(dict((yield from unread_values(key, positions[key], dialect))))
    per_value = {key: {value: records for value, records in each.items() if records} for key, each in counters.items()}
    total = per_value.pop(ALL_RECORDS).get("", 0)
    ((differences,),) = yield from ask("count_differences")
    return RecordCounts(total, per_value, differences, (yield from oldest_unread()))


def unread_values(key: str, position: int, dialect: StoreDialect) -> Work[Sequence[tuple[str, int]]]:
    """Return, for each value of a key, how many more records have it than its consumer has counted."""
    rows = yield from execute(of_slice(_by_value(key, dialect), Slice(position, BEHIND_ALL)))
    return [(value, int(records)) for value, records in rows]


@lru_cache(64)
def _by_value(key: str, dialect: StoreDialect) -> Sql:
    """Return the query for the values of a key, and by how much a slice changes the number of records with each."""
    if key == ALL_RECORDS:
        versions = versions_between("1 AS counted", "TRUE", dialect.feed, dialect.removals)
        count: LiteralString = f"SELECT {dialect.empty_text} AS value, coalesce(sum(sign), 0) AS records"
        return Sql(f"{count} FROM ({versions.sql}) AS version", versions.parameters)
    parts: list[Sql] = []
    if key in META_COLUMNS:
        column = META_COLUMNS[key]
        where = f"{dialect.no_more} AND {column} IS NOT NULL"
        complete = versions_between(f"{column} AS value", where, dialect.feed, dialect.removals)
        text: LiteralString = f"SELECT value, sum(sign) AS records FROM ({complete.sql}) AS version GROUP BY value"  # noqa: S608 literals
        parts.append(Sql(text, complete.parameters))
    where = dialect.more if parts else "TRUE"
    versions = versions_between(dialect.labels, where, dialect.feed, dialect.removals)
    entries, is_first = dialect.entries(key)
    parts.append(
        Sql(
            f"SELECT entry.value, sum(sign) AS records FROM ({versions.sql}) AS version, {entries.sql}"  # noqa: S608 literals
            f" WHERE {is_first.sql} GROUP BY entry.value",
            (*versions.parameters, *entries.parameters, *is_first.parameters),
        )
    )
    both = join(" UNION ALL ", parts)
    return Sql(f"SELECT value, sum(records) AS records FROM ({both.sql}) AS parts GROUP BY value", both.parameters)  # noqa: S608 literals
