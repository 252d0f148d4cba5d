"""Sums over rows of the table: by the record store's own SQL, in a database in memory, some thousand rows at a time.

So the archive needs no arithmetic of its own, and its integers are those that the record store would give.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from auditord.archive.schema import RECORD_COLUMNS, records_of, values_of
from auditord.database.migrations import load_migrations, migrate
from auditord.store.aggregates import Folding, merged
from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.archived import Removal
from auditord.store.feed import BEHIND_ALL
from auditord.store.rollups.scope import Rolled, Scope
from auditord.store.rows import AMOUNT_COLUMNS, META_COLUMNS, scores_text
from auditord.store.sqlite.dialect import SqliteDialect, marked, take_rows
from auditord.store.sqlite.driver import QUERIES
from auditord.store.sqlite.store import MIGRATIONS
from auditord.store.sqlite.sums import Arithmetic, Overflow, noticing_overflow
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    CalendarPeriod,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    ExceedsRuntime,
    MetaValue,
    ScoreValue,
)
from auditord_hookspecs.query import (
    IdEquals,
    ImplausibleCpuTime,
    IsOpen,
    Leaf,
    MetaContains,
    MetaContainsAny,
    PlaceCompares,
    RuntimeCompares,
    TimeCompares,
    fold,
)

_NARROW: Final = (
    *("record_id", "start_time", "stop_time", "site", "user_group", "user_name", "more"),
    *("cores", "memory", "gpu", "total_cpu"),
)
COLUMNS: Final = tuple(dict.fromkeys((*_NARROW, *RECORD_COLUMNS)))
"""Of the table, that sums may need."""

_KEYS: Final = {("site_id", "site"), ("group_id", "group"), ("user_id", "user")}
"""Keys whose first value is in a column of every record."""

_UNREAD: Final = (0, "")
"""Content and document of rows of which neither is looked at."""

_TRIMMED: Final = """
SELECT 'DROP ' || type || ' ' || name
FROM sqlite_master
WHERE tbl_name = 'records' AND type IN ('index', 'trigger') AND sql IS NOT NULL AND name <> 'records_by_id'
"""


def sums_over(
    batches: Iterable[Any], removals: Collection[Removal], query: AggregateQuery, scope: Scope | None
) -> Aggregates:
    """The answer over rows.

    Args:
        batches: pyarrow's RecordBatches, with :data:`COLUMNS`.
        removals: the rows that do not count.
        query: what is asked.
        scope: the part of it that roll-ups answer for these rows as well.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, load_migrations(MIGRATIONS), Path(":memory:"))
        for (statement,) in connection.execute(_TRIMMED).fetchall():
            connection.execute(statement)
        return merged(query, (_sums(connection, batch, removals, query, scope) for batch in batches))


def _sums(
    connection: sqlite3.Connection,
    batch: Any,
    removals: Collection[Removal],
    query: AggregateQuery,
    scope: Scope | None,
) -> Aggregates:  # Any: pyarrow's RecordBatch
    connection.execute("BEGIN")
    try:
        connection.executemany(QUERIES["insert_records"], _rows(connection, batch, removals, query))
        try:
            with noticing_overflow():
                return _asked(connection, query, scope, Arithmetic.LIKELY)
        except Overflow:
            return _asked(connection, query, scope, Arithmetic.SPLIT)
    finally:
        connection.execute("ROLLBACK")


def _rows(
    connection: sqlite3.Connection, batch: Any, removals: Collection[Removal], query: AggregateQuery
) -> Iterator[Sequence[object]]:  # Any: pyarrow's RecordBatch
    """Values for ``insert_records``; documents and scores only where the query may look at them."""
    keys = zip(values_of(batch.column("record_id")), values_of(batch.column("chunk")), strict=True)
    removed = {place for place, key in enumerate(keys) if Removal(*key) in removals} if removals else set[int]()
    narrow = list(zip(*[values_of(batch.column(name)) for name in _NARROW], strict=True))
    whole = _looks_into_documents(query) or bool(_scores(query))
    places = [place for place, row in enumerate(narrow) if whole or row[6]]
    records = dict(zip(places, records_of(batch.take(places)), strict=True)) if places else {}
    score_sets: dict[str, int] = {}
    for place, row in enumerate(narrow):
        if place in removed:
            continue
        if (copy := records.get(place)) is None:
            yield *row[:7], None, *row[7:], *_UNREAD, None, 0, 0
            continue
        score_set = _score_set(connection, score_sets, scores_text(copy.record.components))
        yield *row[:7], None, *row[7:], 0, copy.document, score_set, 0, 0


def _score_set(connection: sqlite3.Connection, known: dict[str, int], text: str | None) -> int | None:
    if text is None:
        return None
    if text not in known:
        connection.execute(QUERIES["insert_score_set"], {"scores": text, "digest": b""})
        known[text] = connection.execute(QUERIES["find_score_set"], {"scores": text, "digest": b""}).fetchone()[0]
    return known[text]


def _looks_into_documents(query: AggregateQuery) -> bool:
    """Return whether columns do not tell all even of records that have nothing unusual."""
    return not (
        all(each.component in AMOUNT_COLUMNS for each in query.usage)
        and all(map(_in_columns, query.by))
        and fold(query.where, _is_narrow, all, all)
    )


def _in_columns(dimension: Dimension) -> bool:
    match dimension:
        case MetaValue(keys):
            return keys in _KEYS
        case ComponentAmount(component) | ComponentPresent(component):
            return component in AMOUNT_COLUMNS
        case ExceedsRuntime(component, _, per):
            return component in AMOUNT_COLUMNS and (per is None or per in AMOUNT_COLUMNS)
        case ScoreValue():
            return False
        case CalendarPeriod():
            return True


def _is_narrow(condition: Leaf) -> bool:
    match condition:
        case IdEquals() | TimeCompares() | RuntimeCompares() | IsOpen() | ImplausibleCpuTime() | PlaceCompares():
            return True
        case MetaContains(key) | MetaContainsAny(key):
            return key in META_COLUMNS
        case _:
            return False


def _scores(query: AggregateQuery) -> Sequence[str]:
    return [score for usage in query.usage for score in usage.scores]


def _asked(
    connection: sqlite3.Connection, query: AggregateQuery, scope: Scope | None, arithmetic: Arithmetic
) -> Aggregates:
    rolled = None if scope is None else Rolled(replace(scope, cells=replace(scope.cells, position=BEHIND_ALL)))
    compiled = compile_aggregate(query, SqliteDialect(arithmetic, windowed=query.window is not None), rolled)
    folding = Folding(query, compiled.parts)
    cursor = connection.execute(*marked(compiled.statement))
    is_last = False
    while not is_last:
        rows, is_last = take_rows(cursor)
        folding.add(rows)
    return folding.result()
