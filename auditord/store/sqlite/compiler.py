"""Queries compiled to SQLite's SQL: pure, everything that a user says is a parameter.

Where a condition can be answered from the narrow columns, it is, so that the index on stop times covers it. ``more``
marks the records whose columns do not tell all; of them, and for all other keys and names, the document is looked into.
Documents and parameters are encoded by one encoder, so a cheap search for the encoded text goes before the parsing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString, TypeAlias

import msgspec

from auditord.store.rows import AMOUNT_COLUMNS, META_COLUMNS, OLDER_KEYS, to_micros
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import (
    AllOf,
    AnyOf,
    Comparison,
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

Parameter: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A piece of SQL with question marks, and what they stand for."""

    sql: LiteralString
    parameters: tuple[Parameter, ...] = ()


_OPERATORS: Final[dict[Comparison, LiteralString]] = {
    Comparison.GT: ">",
    Comparison.GTE: ">=",
    Comparison.LT: "<",
    Comparison.LTE: "<=",
    Comparison.EQUALS: "=",
}

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


def compile_query(query: RecordQuery) -> Compiled:
    """A statement whose rows have one column, the wire text as bytes."""
    where = _condition(query.where, query.order.field)
    limit = _NO_LIMIT if query.limit is None else query.limit
    return Compiled(_select(where.sql, query.order), (*where.parameters, limit))


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


def compile_condition(condition: Condition) -> Compiled:
    """What is true of the rows of ``records`` that match, whatever index serves it best."""
    return _condition(condition, SortField.RUNTIME)


def _condition(condition: Condition, order: SortField) -> Compiled:  # noqa: C901,PLR0911 one branch per type of node
    match condition:
        case AllOf(conditions):
            return _joined(" AND ", "TRUE", [_condition(part, order) for part in conditions])
        case AnyOf(conditions):
            return _joined(" OR ", "FALSE", [_condition(part, order) for part in conditions])
        case IdEquals(record_id):
            return Compiled("record_id = ?", (record_id,))
        case IsOpen():
            return Compiled("stop_time IS NULL")
        case TimeCompares(field, comparison, moment):
            column = _TIME_COLUMNS.get((field, order), _TIMES_BESIDE_THE_ORDER[field])
            return Compiled(f"{column} {_OPERATORS[comparison]} ?", (to_micros(moment),))
        case RuntimeCompares(comparison, seconds):
            return Compiled(f"runtime {_OPERATORS[comparison]} ?", (seconds,))
        case MetaContains(key, value):
            return _meta_contains(key, value)
        case MetaLacks(key, value):
            return _meta_lacks(key, value)
        case MetaContainsAny(key, values):
            return _meta_contains_any(key, values)
        case MetaAbsent(key):
            return _meta_absent(key)
        case ComponentCompares(name, comparison, amount):
            return _component(name, _OPERATORS[comparison], amount)
        case PlaceCompares(comparison, moment, record_id):
            start = "start_time" if order is SortField.START else "+start_time"
            return Compiled(f"({start}, record_id) {_OPERATORS[comparison]} (?, ?)", (to_micros(moment), record_id))


def _joined(word: LiteralString, of_none: LiteralString, parts: list[Compiled]) -> Compiled:
    if not parts:
        return Compiled(of_none)
    sql = word.join([part.sql for part in parts])
    return Compiled(f"({sql})", tuple(parameter for part in parts for parameter in part.parameters))


def _meta_contains(key: str, value: str) -> Compiled:
    contains = Compiled(_CONTAINS, (encoded(value), key, value))
    if key not in META_COLUMNS:
        return _if_there(key, contains)
    return _from_column(Compiled(f"{META_COLUMNS[key]} = ?", (value,)), contains)


def _meta_lacks(key: str, value: str) -> Compiled:
    lacks = Compiled(f"({HAS_KEY} AND NOT {_CONTAINS})", (key, encoded(value), key, value))
    if key not in META_COLUMNS:
        return lacks
    return _from_column(Compiled(f"{META_COLUMNS[key]} <> ?", (value,)), lacks)


def _meta_contains_any(key: str, values: Sequence[str]) -> Compiled:
    if not values:
        return Compiled("FALSE")
    marks = _repeated("?", ", ", len(values))
    likely = _repeated("instr(document, ?) > 0", " OR ", len(values))
    contains = Compiled(
        f"(({likely}) AND EXISTS (SELECT 1 FROM json_each(document, '$.meta') AS meta,"  # noqa: S608 literals only
        f" json_each(meta.value) AS entry WHERE meta.key = ? AND entry.value IN ({marks})))",
        (*map(encoded, values), key, *values),
    )
    if key not in META_COLUMNS:
        return _if_there(key, contains)
    return _from_column(Compiled(f"{META_COLUMNS[key]} IN ({marks})", tuple(values)), contains)


def _if_there(key: str, document: Compiled) -> Compiled:
    """Few records have an older key, and an index has these."""
    return Compiled(f"(more IS NOT NULL AND {document.sql})", document.parameters) if key in OLDER_KEYS else document


def _repeated(part: LiteralString, separator: LiteralString, count: int) -> LiteralString:
    parts: list[LiteralString] = [part] * count
    return separator.join(parts)


def _meta_absent(key: str) -> Compiled:
    absent = Compiled(f"NOT {HAS_KEY}", (key,))
    if key not in META_COLUMNS:
        return absent
    return _from_column(Compiled(f"{META_COLUMNS[key]} IS NULL"), absent)


def _component(name: str, operator: LiteralString, amount: int) -> Compiled:
    compares = Compiled(
        "(instr(document, ?) > 0 AND EXISTS (SELECT 1 FROM json_each(document, '$.components') AS component"  # noqa: S608 same
        " WHERE json_extract(component.value, '$.name') = ?"
        f" AND json_extract(component.value, '$.amount') {operator} ?))",
        (encoded(name), name, amount),
    )
    if name not in AMOUNT_COLUMNS:
        return compares
    return _from_column(Compiled(f"{AMOUNT_COLUMNS[name]} {operator} ?", (amount,)), compares)


def _from_column(column: Compiled, document: Compiled) -> Compiled:
    return Compiled(
        f"CASE WHEN more IS NULL THEN {column.sql} ELSE {document.sql} END",
        (*column.parameters, *document.parameters),
    )


def encoded(text: str) -> str:
    """The text as encode_record() writes it, with its quotation marks."""
    return msgspec.json.encode(text).replace(b"\\\\", b"\\u005c").decode()
