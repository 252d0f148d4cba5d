"""Queries compiled to SQLite's SQL: pure, everything that a user says is a parameter.

Where a condition can be answered from the narrow columns, it is, so that the index on stop times covers it. ``more``
marks the records whose columns do not tell all; of them, and for all other keys and names, the document is looked into.
Documents and parameters are encoded by one encoder, so a cheap search for the encoded text goes before the parsing.
"""

from collections.abc import Sequence
from typing import Final, LiteralString

import msgspec

from auditord.store.rows import AMOUNT_COLUMNS, META_COLUMNS, OLDER_KEYS, to_micros
from auditord.store.sql import FALSE, OPERATORS, TRUE, Columns, Sql, all_of, any_of, told
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import (
    AllOf,
    AnyOf,
    ComponentCompares,
    Condition,
    IdEquals,
    IsOpen,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    MetaLacks,
    Order,
    PlaceCompares,
    RuntimeCompares,
    SortField,
    TimeCompares,
    TimeField,
)

# A plus sign keeps a condition away from the index that it would choose: an answer streams from the index of its order,
# since sorting whole records costs more than passing over index entries (0.1 µs each).
_TIME_COLUMNS: Final[dict[tuple[TimeField, SortField], LiteralString]] = {
    (TimeField.START, SortField.START): "start_time",
    (TimeField.STOP, SortField.STOP): "stop_time",
    (TimeField.START, SortField.RUNTIME): "start_time",
    (TimeField.STOP, SortField.RUNTIME): "stop_time",
}
_TIMES_BESIDE_THE_ORDER: Final[dict[TimeField, LiteralString]] = {
    TimeField.START: "+start_time",
    TimeField.STOP: "+stop_time",
}

HAS_KEY: Final = "EXISTS (SELECT 1 FROM json_each(document, '$.meta') AS meta WHERE meta.key = ?)"
_CONTAINS: Final = (
    "(instr(document, ?) > 0 AND EXISTS (SELECT 1 FROM json_each(document, '$.meta') AS meta,"
    " json_each(meta.value) AS entry WHERE meta.key = ? AND entry.value = ?))"
)

# Descending is the exact reverse of ascending, so that one index serves both.
_ORDERS: Final[dict[tuple[SortField, bool], LiteralString]] = {
    (SortField.STOP, False): "stop_time ASC NULLS LAST, record_id ASC",
    (SortField.STOP, True): "stop_time DESC NULLS FIRST, record_id DESC",
    (SortField.START, False): "start_time ASC, record_id ASC",
    (SortField.START, True): "start_time DESC, record_id DESC",
    (SortField.RUNTIME, False): "runtime ASC NULLS LAST, record_id ASC",
    (SortField.RUNTIME, True): "runtime DESC NULLS FIRST, record_id DESC",
    (SortField.ID, False): "record_id ASC",
    (SortField.ID, True): "record_id DESC",
}

_NO_LIMIT: Final = -1


def compile_query(query: RecordQuery) -> Sql:
    """A statement whose rows have one column, the wire text as bytes."""
    where = _condition(query.where, query.order.field, Columns.MAY_TELL)
    limit = _NO_LIMIT if query.limit is None else query.limit
    return Sql(_select(where.sql, query.order), (*where.parameters, limit))


def _select(where: LiteralString, order: Order) -> LiteralString:
    by = _ORDERS[order.field, order.descending]
    if order.field is not SortField.RUNTIME:
        return f"SELECT CAST(document AS BLOB) FROM records WHERE {where} ORDER BY {by} LIMIT ?"  # noqa: S608 literals
    # No index has runtimes: the sorting is done with row numbers, the documents are fetched behind it.
    return (
        "SELECT CAST(records.document AS BLOB)"  # noqa: S608 literals only, as the types say
        f" FROM (SELECT seq FROM records WHERE {where} ORDER BY {by} LIMIT ?) AS chosen"
        " CROSS JOIN records ON records.seq = chosen.seq"
    )


def compile_condition(condition: Condition, columns: Columns) -> Sql:
    """What is true of the rows of ``records`` that match, whatever index serves it best."""
    return _condition(condition, SortField.RUNTIME, columns)


def _condition(condition: Condition, order: SortField, columns: Columns) -> Sql:  # noqa: C901,PLR0911 one branch per type of node
    match condition:
        case AllOf(conditions):
            return all_of([_condition(part, order, columns) for part in conditions])
        case AnyOf(conditions):
            return any_of([_condition(part, order, columns) for part in conditions])
        case IdEquals(record_id):
            return Sql("record_id = ?", (record_id,))
        case IsOpen():
            return Sql("stop_time IS NULL")
        case TimeCompares(field, comparison, moment):
            column = _TIME_COLUMNS.get((field, order), _TIMES_BESIDE_THE_ORDER[field])
            return Sql(f"{column} {OPERATORS[comparison]} ?", (to_micros(moment),))
        case RuntimeCompares(comparison, seconds):
            return Sql(f"runtime {OPERATORS[comparison]} ?", (seconds,))
        case MetaContains(key, value):
            return _meta_contains(key, value, columns)
        case MetaLacks(key, value):
            return _meta_lacks(key, value, columns)
        case MetaContainsAny(key, values):
            return _meta_contains_any(key, values, columns)
        case MetaAbsent(key):
            return _meta_absent(key, columns)
        case ComponentCompares(name, comparison, amount):
            return _component(name, OPERATORS[comparison], amount, columns)
        case PlaceCompares(comparison, moment, record_id):
            start = "start_time" if order is SortField.START else "+start_time"
            return Sql(f"({start}, record_id) {OPERATORS[comparison]} (?, ?)", (to_micros(moment), record_id))


def _meta_contains(key: str, value: str, columns: Columns) -> Sql:
    contains = Sql(_CONTAINS, (encoded(value), key, value))
    if key not in META_COLUMNS:
        return _if_there(key, contains, columns)
    return told(columns, Sql(f"{META_COLUMNS[key]} = ?", (value,)), contains)


def _meta_lacks(key: str, value: str, columns: Columns) -> Sql:
    lacks = Sql(f"({HAS_KEY} AND NOT {_CONTAINS})", (key, encoded(value), key, value))
    if key not in META_COLUMNS:
        return lacks
    return told(columns, Sql(f"{META_COLUMNS[key]} <> ?", (value,)), lacks)


def _meta_contains_any(key: str, values: Sequence[str], columns: Columns) -> Sql:
    if not values:
        return FALSE
    marks = _repeated("?", ", ", len(values))
    likely = _repeated("instr(document, ?) > 0", " OR ", len(values))
    contains = Sql(
        f"(({likely}) AND EXISTS (SELECT 1 FROM json_each(document, '$.meta') AS meta,"  # noqa: S608 literals only
        f" json_each(meta.value) AS entry WHERE meta.key = ? AND entry.value IN ({marks})))",
        (*map(encoded, values), key, *values),
    )
    if key not in META_COLUMNS:
        return _if_there(key, contains, columns)
    return told(columns, Sql(f"{META_COLUMNS[key]} IN ({marks})", tuple(values)), contains)


def _if_there(key: str, document: Sql, columns: Columns) -> Sql:
    """Few records have an older key, and an index has these."""
    if key not in OLDER_KEYS:
        return document
    if columns is Columns.TELL_ALL:
        return FALSE
    return Sql(f"(more IS NOT NULL AND {document.sql})", document.parameters)


def _repeated(part: LiteralString, separator: LiteralString, count: int) -> LiteralString:
    parts: list[LiteralString] = [part] * count
    return separator.join(parts)


def _meta_absent(key: str, columns: Columns) -> Sql:
    absent = Sql(f"NOT {HAS_KEY}", (key,))
    if key not in META_COLUMNS:
        return told(columns, TRUE, absent) if key in OLDER_KEYS else absent
    return told(columns, Sql(f"{META_COLUMNS[key]} IS NULL"), absent)


def _component(name: str, operator: LiteralString, amount: int, columns: Columns) -> Sql:
    compares = Sql(
        "(instr(document, ?) > 0 AND EXISTS (SELECT 1 FROM json_each(document, '$.components') AS component"  # noqa: S608 same
        " WHERE json_extract(component.value, '$.name') = ?"
        f" AND json_extract(component.value, '$.amount') {operator} ?))",
        (encoded(name), name, amount),
    )
    if name not in AMOUNT_COLUMNS:
        return compares
    return told(columns, Sql(f"{AMOUNT_COLUMNS[name]} {operator} ?", (amount,)), compares)


def encoded(text: str) -> str:
    """The text as encode_record() writes it, with its quotation marks."""
    return msgspec.json.encode(text).replace(b"\\\\", b"\\u005c").decode()
