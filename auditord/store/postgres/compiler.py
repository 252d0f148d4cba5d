"""Queries compiled to PostgreSQL's SQL: pure, everything that a user says is a parameter."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, LiteralString, TypeAlias

import msgspec

from auditord.store.rows import AMOUNT_COLUMNS, OLDER_KEYS, can_be_there
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
    PlaceCompares,
    RuntimeCompares,
    SortField,
    TimeCompares,
    TimeField,
)

Parameter: TypeAlias = str | int | datetime


@dataclass(frozen=True, slots=True)
class Compiled:
    """A piece of SQL with placeholders, and what they stand for."""

    sql: LiteralString
    parameters: tuple[Parameter, ...] = ()


_OPERATORS: Final[dict[Comparison, LiteralString]] = {
    Comparison.GT: ">",
    Comparison.GTE: ">=",
    Comparison.LT: "<",
    Comparison.LTE: "<=",
    Comparison.EQUALS: "=",
}

_TIMES: Final[dict[TimeField, LiteralString]] = {TimeField.START: "start_time", TimeField.STOP: "stop_time"}
_TIME_ORDERS: Final = {TimeField.START: SortField.START, TimeField.STOP: SortField.STOP}

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

_NEVER: Final = Compiled("FALSE")
HAS_KEY: Final = "coalesce(meta ? %s, FALSE)"
_CONTAINS: Final = "coalesce(meta @> %s::jsonb, FALSE)"


def compile_query(query: RecordQuery) -> Compiled:
    """A statement whose rows have one column, the wire text."""
    where = compile_condition(query.where)
    by = _ORDERS[query.order.field, query.order.descending]
    sql: LiteralString = f"SELECT document FROM auditord.records WHERE {where.sql} ORDER BY {by}"  # noqa: S608 literals
    if query.limit is None:
        return Compiled(sql, where.parameters)
    return Compiled(f"{sql} LIMIT %s", (*where.parameters, query.limit))


def follows_an_index(query: RecordQuery) -> bool:
    """Whether the answer should come out of the index of its order, whatever the planner thinks.

    It counts the cost of all rows, and would rather sort a large answer than look rows up in order; who streams wants
    the first row soon and nothing sorted. A condition that another index serves may leave few rows, sorted quickly.
    """
    return query.order.field is not SortField.RUNTIME and not _is_selective(query.where, query.order.field)


def _is_selective(condition: Condition, order: SortField) -> bool:  # noqa: PLR0911 same as below
    match condition:
        case AllOf(conditions):
            return any(_is_selective(part, order) for part in conditions)
        case AnyOf(conditions):
            return all(_is_selective(part, order) for part in conditions)
        case TimeCompares(field):
            return _TIME_ORDERS[field] is not order
        case PlaceCompares():
            return order is not SortField.START
        case IsOpen():
            return order is not SortField.STOP
        case IdEquals() | MetaContains() | MetaContainsAny():
            return True
        case _:
            return False


def compile_condition(condition: Condition) -> Compiled:  # noqa: C901,PLR0911 one branch for each type of node
    """What is true of the rows of ``auditord.records`` that match."""
    match condition:
        case AllOf(conditions):
            return _joined(" AND ", "TRUE", [compile_condition(part) for part in conditions])
        case AnyOf(conditions):
            return _joined(" OR ", "FALSE", [compile_condition(part) for part in conditions])
        case IdEquals(record_id):
            return Compiled("record_id = %s", (record_id,)) if can_be_there(record_id) else _NEVER
        case IsOpen():
            return Compiled("stop_time IS NULL")
        case TimeCompares(field, comparison, moment):
            return Compiled(f"{_TIMES[field]} {_OPERATORS[comparison]} %s", (moment,))
        case RuntimeCompares(comparison, seconds):
            return Compiled(f"runtime {_OPERATORS[comparison]} %s", (seconds,))
        case MetaContains(key, value):
            return _meta_contains_any(key, (value,))
        case MetaLacks(key, value):
            return _meta_lacks(key, value)
        case MetaContainsAny(key, values):
            return _meta_contains_any(key, values)
        case MetaAbsent(key):
            return Compiled(f"NOT {HAS_KEY}", (key,)) if can_be_there(key) else Compiled("TRUE")
        case ComponentCompares(name, comparison, amount):
            return _component(name, _OPERATORS[comparison], amount)
        case PlaceCompares(comparison, moment, record_id):
            place = (moment, record_id.replace("\0", "").encode(errors="replace").decode())
            return Compiled(f"(start_time, record_id) {_OPERATORS[comparison]} (%s, %s)", place)


def _joined(word: LiteralString, of_none: LiteralString, parts: list[Compiled]) -> Compiled:
    if not parts:
        return Compiled(of_none)
    sql = word.join([part.sql for part in parts])
    return Compiled(f"({sql})", tuple(parameter for part in parts for parameter in part.parameters))


def _meta_contains_any(key: str, values: Sequence[str]) -> Compiled:
    wanted = [value for value in values if can_be_there(key) and can_be_there(value)]
    if not wanted:
        return _NEVER
    each: list[LiteralString] = ["meta @> %s::jsonb" for _ in wanted]
    contains = Compiled(f"({' OR '.join(each)})", tuple(_one_value(key, value) for value in wanted))
    if key not in OLDER_KEYS:
        return contains
    return Compiled(f"(more AND {contains.sql})", contains.parameters)  # few records have one, and an index has these


def _meta_lacks(key: str, value: str) -> Compiled:
    if not can_be_there(key):
        return _NEVER
    if not can_be_there(value):
        return Compiled(HAS_KEY, (key,))
    return Compiled(f"({HAS_KEY} AND NOT {_CONTAINS})", (key, _one_value(key, value)))


def _one_value(key: str, value: str) -> str:
    return msgspec.json.encode({key: [value]}).decode()


def _component(name: str, operator: LiteralString, amount: int) -> Compiled:
    if not can_be_there(name):
        return _NEVER
    # The name as it stands in the text is searched for before the text is taken apart.
    compares = Compiled(
        "(strpos(document, %s) > 0 AND EXISTS (SELECT 1 FROM jsonb_array_elements(document::jsonb -> 'components') AS"  # noqa: S608 literals only
        f" component WHERE component ->> 'name' = %s AND (component ->> 'amount')::numeric {operator} %s))",
        (as_written(name), name, amount),
    )
    if name not in AMOUNT_COLUMNS:
        return compares
    return Compiled(
        f"CASE WHEN more THEN {compares.sql} ELSE {AMOUNT_COLUMNS[name]} {operator} %s END",
        (*compares.parameters, amount),
    )


def as_written(name: str) -> str:
    """The name as encode_record() writes it, with its quotation marks."""
    return msgspec.json.encode(name).replace(b"\\\\", b"\\u005c").decode()
