"""Compile conditions and queries for records into the SQL of a :class:`Dialect`.

Conditions are read from the narrow columns where possible, so that indexes cover them. ``more`` marks records whose
columns are incomplete. For these records, and for all other keys and names, documents are read.
"""

from collections.abc import Sequence
from typing import Final, LiteralString

import msgspec

from auditord.store.columns import AMOUNT_COLUMNS, KEYS_OF_FEW_VALUES, OLDER_KEYS
from auditord.store.dialects import (
    FALSE,
    OPERATORS,
    TRUE,
    Columns,
    Dialect,
    Sql,
    all_of,
    any_of,
    column_or_document,
    literal,
)
from auditord_hookspecs import RecordQuery
from auditord_hookspecs.query import (
    MOST_CPU_TIME,
    Comparison,
    ComponentCompares,
    Condition,
    IdEquals,
    ImplausibleCpuTime,
    IsOpen,
    Leaf,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    MetaLacks,
    PlaceCompares,
    RuntimeCompares,
    SortField,
    TimeCompares,
    TimeField,
    fold,
)

# Descending is the exact reverse of ascending, so that one index serves both. The braces stand for the runtime.
_ORDERS: Final[dict[tuple[SortField, bool], LiteralString]] = {
    (SortField.STOP, False): "stop_time ASC NULLS LAST, record_id ASC",
    (SortField.STOP, True): "stop_time DESC NULLS FIRST, record_id DESC",
    (SortField.START, False): "start_time ASC, record_id ASC",
    (SortField.START, True): "start_time DESC, record_id DESC",
    (SortField.RUNTIME, False): "{} ASC NULLS LAST, record_id ASC",
    (SortField.RUNTIME, True): "{} DESC NULLS FIRST, record_id DESC",
    (SortField.ID, False): "record_id ASC",
    (SortField.ID, True): "record_id DESC",
}


def can_be_there(text: str) -> bool:
    """Return whether any stored text can equal this one. A database may refuse other texts as parameters."""
    return "\0" not in text and text.encode(errors="replace").decode() == text


def compile_query(query: RecordQuery, dialect: Dialect, among: Sql | None = None, *, few: bool = False) -> Sql:
    """Return a statement whose rows are the dialect's ``document``: for record stores, one column with the wire text.

    Args:
        query: conditions, order and limit.
        dialect: the SQL of the database.
        among: a further condition on the records.
        few: whether an index (or ``among``) leaves few records, which are then sorted.
    """
    by = _ORDERS[query.order.field, query.order.descending].format(dialect.runtime_in_index or "runtime")
    if query.order.field is SortField.RUNTIME and dialect.runtime_in_index is not None:
        return _sort_by_number(query, dialect, by)
    if few and dialect.has_numbers:
        return _sort_by_number(query, dialect, f"+{by}", among)  # the plus sign avoids the index of the order
    where = compile_condition(query.where, dialect, Columns.EITHER, query.order.field)
    where = where if among is None else all_of([among, where])
    found: LiteralString = f"{dialect.records} WHERE {where.sql}"
    if few:
        found = f"(SELECT * FROM {found} OFFSET 0) AS found"  # noqa: S608 literals; avoids the index of the order
    sql: LiteralString = f"SELECT {dialect.document} FROM {found} ORDER BY {by}"  # noqa: S608 literals
    if query.limit is None:
        return Sql(sql, where.parameters)
    return Sql(f"{sql} LIMIT %s", (*where.parameters, query.limit))


def _sort_by_number(query: RecordQuery, dialect: Dialect, by: LiteralString, among: Sql | None = None) -> Sql:
    """Return a statement that sorts row numbers, then fetches documents, for orders that no index gives."""
    where = compile_condition(query.where, dialect, Columns.EITHER)
    where = where if among is None else all_of([among, where])
    return Sql(
        f"SELECT {dialect.document} FROM (SELECT position AS number FROM {dialect.records} WHERE {where.sql}"  # noqa: S608 literals
        f" ORDER BY {by} LIMIT %s) AS chosen CROSS JOIN {dialect.records} ON position = number",
        (*where.parameters, -1 if query.limit is None else query.limit),
    )


def compile_condition(condition: Condition, dialect: Dialect, columns: Columns, order: SortField | None = None) -> Sql:
    """Return a condition on rows of the table of records."""
    return fold(condition, _Conditions(dialect, columns, order).leaf, all_of, any_of)


class _Conditions(msgspec.Struct, frozen=True):
    dialect: Dialect
    columns: Columns
    order: SortField | None

    def leaf(self, condition: Leaf) -> Sql:  # noqa: C901,PLR0911 one branch for each type of node
        match condition:
            case IdEquals(record_id):
                return Sql("record_id = %s", (record_id,)) if can_be_there(record_id) else FALSE
            case IsOpen():
                return Sql("stop_time IS NULL")
            case ImplausibleCpuTime():  # the exponent avoids integers, whose products may overflow
                ran: LiteralString = f"({self.dialect.runtime_in_index or 'runtime'})"
                most = f"coalesce(core_seconds + 1.0E0, cores * 1.0E0 * ({ran} + 1))"
                return Sql(f"({ran} >= 0 AND total_cpu > {literal(f'{MOST_CPU_TIME}E0')} * {most})")
            case TimeCompares(field, comparison, moment):
                column = self.dialect.time_column(field, self.order)
                return Sql(f"{column} {OPERATORS[comparison]} %s", (self.dialect.moment(moment),))
            case RuntimeCompares(comparison, seconds):
                return Sql(f"runtime {OPERATORS[comparison]} %s", (seconds,))
            case MetaContains(key, value):
                return self._contains(key, (value,))
            case MetaContainsAny(key, values):
                return self._contains(key, values)
            case MetaLacks(key, value):
                return self._lacks(key, value)
            case MetaAbsent(key):
                return self._absent(key)
            case ComponentCompares(name, comparison, amount):
                return self._component(name, comparison, amount)
            case PlaceCompares(comparison, moment, record_id):
                start = self.dialect.time_column(TimeField.START, self.order)
                place = (self.dialect.moment(moment), record_id.replace("\0", "").encode(errors="replace").decode())
                return Sql(f"({start}, record_id) {OPERATORS[comparison]} (%s, %s)", place)

    def _contains(self, key: str, values: Sequence[str]) -> Sql:
        wanted = [value for value in values if can_be_there(key) and can_be_there(value)]
        if not wanted or (key in OLDER_KEYS and self.columns is Columns.COMPLETE):
            return FALSE
        contains = self.dialect.contains(key, wanted)
        if key in OLDER_KEYS:
            return all_of([Sql(self.dialect.more), contains])  # few records have such keys, and an index finds them
        if (column := self.dialect.meta_columns.get(key)) is None:
            return contains
        is_one_of, few = self.dialect.one_of(column, wanted), key in KEYS_OF_FEW_VALUES
        return self.dialect.dimension_contains(is_one_of, contains, self.columns, has_few_values=few)

    def _lacks(self, key: str, value: str) -> Sql:
        if not can_be_there(key) or (key in OLDER_KEYS and self.columns is Columns.COMPLETE):
            return FALSE
        has = self.dialect.has_key(key)
        if not can_be_there(value):
            return has
        contains = self.dialect.contains(key, (value,))
        lacks = Sql(f"({has.sql} AND NOT coalesce({contains.sql}, FALSE))", (*has.parameters, *contains.parameters))
        if (column := self.dialect.meta_columns.get(key)) is None:
            return lacks
        return self.dialect.dimension_lacks(Sql(f"{column} <> %s", (value,)), lacks, self.columns)

    def _absent(self, key: str) -> Sql:
        if not can_be_there(key):
            return TRUE
        has = self.dialect.has_key(key)
        absent = Sql(f"NOT {has.sql}", has.parameters)
        if key in OLDER_KEYS:
            return self.dialect.dimension_lacks(TRUE, absent, self.columns)
        if (column := self.dialect.meta_columns.get(key)) is None:
            return absent
        return self.dialect.dimension_lacks(Sql(f"{column} IS NULL"), absent, self.columns)

    def _component(self, name: str, comparison: Comparison, amount: int) -> Sql:
        if not can_be_there(name):
            return FALSE
        compares = self.dialect.lists(name, comparison, amount)
        if name not in AMOUNT_COLUMNS:
            return compares
        column = Sql(f"{AMOUNT_COLUMNS[name]} {OPERATORS[comparison]} %s", (amount,))
        return column_or_document(self.columns, column, compares)
