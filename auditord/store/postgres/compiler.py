"""Queries compiled to PostgreSQL's SQL: pure, everything that a user says is a parameter."""

from collections.abc import Sequence
from typing import Final, LiteralString

import msgspec

from auditord.store.rows import AMOUNT_COLUMNS, META_COLUMNS, OLDER_KEYS, can_be_there
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
    PlaceCompares,
    RuntimeCompares,
    SortField,
    TimeCompares,
    TimeField,
)

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

HAS_KEY: Final = "coalesce(meta ? %s, FALSE)"
_CONTAINS: Final = "coalesce(meta @> %s::jsonb, FALSE)"


def compile_query(query: RecordQuery) -> Sql:
    """A statement whose rows have one column, the wire text."""
    where = compile_condition(query.where, Columns.MAY_TELL)
    by = _ORDERS[query.order.field, query.order.descending]
    sql: LiteralString = f"SELECT document FROM auditord.records WHERE {where.sql} ORDER BY {by}"  # noqa: S608 literals
    if query.limit is None:
        return Sql(sql, where.parameters)
    return Sql(f"{sql} LIMIT %s", (*where.parameters, query.limit))


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


def compile_condition(condition: Condition, columns: Columns) -> Sql:  # noqa: C901,PLR0911 one branch for each type of node
    """What is true of the rows of ``auditord.records`` that match."""
    match condition:
        case AllOf(conditions):
            return all_of([compile_condition(part, columns) for part in conditions])
        case AnyOf(conditions):
            return any_of([compile_condition(part, columns) for part in conditions])
        case IdEquals(record_id):
            return Sql("record_id = %s", (record_id,)) if can_be_there(record_id) else FALSE
        case IsOpen():
            return Sql("stop_time IS NULL")
        case TimeCompares(field, comparison, moment):
            return Sql(f"{_TIMES[field]} {OPERATORS[comparison]} %s", (moment,))
        case RuntimeCompares(comparison, seconds):
            return Sql(f"runtime {OPERATORS[comparison]} %s", (seconds,))
        case MetaContains(key, value):
            return _meta_contains_any(key, (value,), columns)
        case MetaLacks(key, value):
            return _meta_lacks(key, value)
        case MetaContainsAny(key, values):
            return _meta_contains_any(key, values, columns)
        case MetaAbsent(key):
            return _meta_absent(key, columns)
        case ComponentCompares(name, comparison, amount):
            return _component(name, OPERATORS[comparison], amount, columns)
        case PlaceCompares(comparison, moment, record_id):
            place = (moment, record_id.replace("\0", "").encode(errors="replace").decode())
            return Sql(f"(start_time, record_id) {OPERATORS[comparison]} (%s, %s)", place)


def _meta_contains_any(key: str, values: Sequence[str], columns: Columns) -> Sql:
    wanted = [value for value in values if can_be_there(key) and can_be_there(value)]
    if not wanted or (key in OLDER_KEYS and columns is Columns.TELL_ALL):
        return FALSE
    each: list[LiteralString] = ["meta @> %s::jsonb" for _ in wanted]
    contains = Sql(f"({' OR '.join(each)})", tuple(_one_value(key, value) for value in wanted))
    if key in OLDER_KEYS:
        return all_of([Sql("more"), contains])  # few records have one, and an index has these
    if key in META_COLUMNS and columns is Columns.TELL_ALL:
        column = Sql(f"{META_COLUMNS[key]} = ANY (%s::text[])", (wanted,))
        # There are few sites. Of many groups and users, the index on meta finds one; the column dismisses the others.
        return column if META_COLUMNS[key] == "site" else all_of([column, contains])
    return contains


def _meta_lacks(key: str, value: str) -> Sql:
    if not can_be_there(key):
        return FALSE
    if not can_be_there(value):
        return Sql(HAS_KEY, (key,))
    return Sql(f"({HAS_KEY} AND NOT {_CONTAINS})", (key, _one_value(key, value)))


def _meta_absent(key: str, columns: Columns) -> Sql:
    if not can_be_there(key) or (key in OLDER_KEYS and columns is Columns.TELL_ALL):
        return TRUE
    if key in META_COLUMNS and columns is Columns.TELL_ALL:
        return Sql(f"{META_COLUMNS[key]} IS NULL")
    return Sql(f"NOT {HAS_KEY}", (key,))


def _one_value(key: str, value: str) -> str:
    return msgspec.json.encode({key: [value]}).decode()


def _component(name: str, operator: LiteralString, amount: int, columns: Columns) -> Sql:
    if not can_be_there(name):
        return FALSE
    # The name as it stands in the text is searched for before the text is taken apart.
    compares = Sql(
        "(strpos(document, %s) > 0 AND EXISTS (SELECT 1 FROM jsonb_array_elements(document::jsonb -> 'components') AS"  # noqa: S608 literals only
        f" component WHERE component ->> 'name' = %s AND (component ->> 'amount')::numeric {operator} %s))",
        (as_written(name), name, amount),
    )
    if name not in AMOUNT_COLUMNS:
        return compares
    return told(columns, Sql(f"{AMOUNT_COLUMNS[name]} {operator} %s", (amount,)), compares)


def as_written(name: str) -> str:
    """The name as encode_record() writes it, with its quotation marks."""
    return msgspec.json.encode(name).replace(b"\\\\", b"\\u005c").decode()
