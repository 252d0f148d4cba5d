"""Compile conditions, queries for records and dimensions of sums into the SQL of a :class:`Dialect`.

Conditions and dimensions are read from the narrow columns where possible, so that indexes cover them. ``more`` marks
records whose columns are incomplete. For these records, and for all other keys and names, documents are read.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, LiteralString

import msgspec
from msgspec.structs import replace

from auditord.store.columns import AMOUNT_COLUMNS, COLUMNS_OF_TWO_KEYS, KEYS_OF_FEW_VALUES, OLDER_KEYS
from auditord.store.dialects import Dialect, Key
from auditord.store.sql import (
    FALSE,
    OPERATORS,
    TRUE,
    Columns,
    Sql,
    all_of,
    any_of,
    case,
    column_or_document,
    join,
    literal,
)
from auditord_hookspecs import (
    CalendarPeriod,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    ExceedsRuntime,
    MetaValue,
    RecordQuery,
    ScoreValue,
)
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
from auditord_hookspecs.vocabulary import TOTALS
from auditord_hookspecs.zones import ClockChange, clock_changes

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


def compile_dimension(  # noqa: C901,PLR0911 one branch for each type of dimension
    dimension: Dimension, stop: Sql, dialect: Dialect, columns: Columns
) -> Key:
    """Return the key of a dimension, in the form that :class:`auditord.store.aggregates.Folding` reads.

    Args:
        dimension: the dimension.
        stop: the stop time of the records, or the instant at which open ones count as stopped.
        dialect: the SQL of the database.
        columns: the records that are grouped.
    """
    match dimension:
        case MetaValue(keys):
            possible = tuple(filter(can_be_there, keys))
            return replace(_key_of_meta(possible, dialect, columns), shown=dialect.text_of)
        case ComponentAmount(name) | ComponentPresent(name) | ScoreValue(name) if not can_be_there(name):
            return Key(Sql(dialect.no_text))
        case ExceedsRuntime(name, _, per) if not (can_be_there(name) and can_be_there(per or "")):
            return Key(Sql(dialect.no_text))
        case ComponentAmount(component):
            if component in AMOUNT_COLUMNS and columns is Columns.COMPLETE:
                return Key(Sql(AMOUNT_COLUMNS[component]), dialect.text_of)
            return Key(dialect.amounts_of(component), dialect.text_of, costly=True)
        case ComponentPresent(component) if component in AMOUNT_COLUMNS:
            # NULL only if the component is missing, also in incomplete records.
            forms: list[LiteralString] = [
                f"{AMOUNT_COLUMNS[form]} IS NULL"
                for form in dict.fromkeys((component, TOTALS.get(component, component)))
            ]
            return Key(Sql(f"CASE WHEN {' AND '.join(forms)} THEN 0 ELSE 1 END"), dialect.text_of)
        case ComponentPresent(component):
            present = dialect.lists(component, Comparison.GTE, 0)
            return Key(case(present, Sql("1"), Sql("0")), dialect.text_of, costly=True)
        case ExceedsRuntime():
            return _exceeds(dimension, dialect, columns)
        case ScoreValue(component):
            if columns is Columns.COMPLETE:  # read from the score set instead
                return Key(Sql("NULL"), dialect.text_of)
            found = dialect.first_scores(component)
            if (total := TOTALS.get(component)) is not None:
                of_total = dialect.first_scores(total)
                found = Sql(f"coalesce({found.sql}, {of_total.sql})", (*found.parameters, *of_total.parameters))
            return Key(found, dialect.text_of, costly=True)
        case CalendarPeriod(unit, field, zone):
            moment = Sql("start_time") if field is TimeField.START else stop
            return dialect.first_day(to_local_time(moment, clock_changes(zone), dialect), unit)


def key_of_amount(dimension: ComponentAmount | ComponentPresent, amount: LiteralString, dialect: Dialect) -> Key:
    """Return the key of a dimension whose amount is also summed up, so that it is read once."""
    if isinstance(dimension, ComponentAmount):
        return Key(Sql(amount), dialect.text_of, over_amounts=amount)
    return Key(Sql(amount), dialect.text_of, over_amounts=f"CASE WHEN {amount} IS NULL THEN 0 ELSE 1 END")


def to_local_time(moment: Sql, changes: Sequence[ClockChange], dialect: Dialect) -> Sql:
    """Add the offset of a zone's clocks from UTC to an instant."""
    if not changes:
        return moment
    ahead = _ahead(moment, ClockChange(changes[0].moment, timedelta(0)), changes, dialect)
    return Sql(f"({moment.sql} + {ahead.sql})", (*moment.parameters, *ahead.parameters))


def _ahead(moment: Sql, known: ClockChange, changes: Sequence[ClockChange], dialect: Dialect) -> Sql:
    """Return the offset of the clocks, found by binary search: 261 changes since 1970 take nine comparisons."""
    if not changes:
        return Sql(dialect.literal_span(known.ahead))
    middle = len(changes) // 2
    is_earlier = Sql(f"{moment.sql} < {dialect.literal_moment(changes[middle].moment)}", moment.parameters)
    earlier = _ahead(moment, known, changes[:middle], dialect)
    later = _ahead(moment, changes[middle], changes[middle + 1 :], dialect)
    return case(is_earlier, earlier, later)


def _key_of_meta(keys: tuple[str, ...], dialect: Dialect, columns: Columns) -> Key:
    """Return the first value under the first of the keys that a record has, from a column if that is complete."""
    complete: Mapping[str, LiteralString] = {}
    if columns is Columns.COMPLETE:
        keys = tuple([key for key in keys if key not in OLDER_KEYS])  # complete records have none of these
        complete = dialect.meta_columns
    elif keys in COLUMNS_OF_TWO_KEYS:
        return Key(Sql(COLUMNS_OF_TWO_KEYS[keys]))
    if not keys:
        return Key(Sql(dialect.no_text))
    if set(keys) <= complete.keys():
        names: list[LiteralString] = [complete[key] for key in keys]
        return Key(Sql(names[0] if len(names) == 1 else f"coalesce({', '.join(names)})"))
    found: Sql | None = None
    for key in reversed(keys):
        column = complete.get(key)
        value = dialect.first_value(key) if column is None else Sql(column)
        has = dialect.has_key(key) if column is None else Sql(f"{column} IS NOT NULL")
        found = value if found is None else case(has, value, found)
    return Key(found or Sql(dialect.no_text), costly=dialect.meta_is_long)


def _exceeds(dimension: ExceedsRuntime, dialect: Dialect, columns: Columns) -> Key:
    """Return 1 or 0 for complete records; for others, the numbers to be compared, separated by semicolons."""
    ran: LiteralString = f"({dialect.runtime_in_index or 'runtime'})"
    names = [dimension.component] if dimension.per is None else [dimension.component, dimension.per]
    total = TOTALS.get(dimension.per or "")
    if columns is not Columns.COMPLETE:
        numbers = [dialect.amounts_of(names[0]), Sql(ran), *map(dialect.amounts_of, names[1:])]
        texts = [Sql(dialect.text_of.format(number.sql), number.parameters) for number in numbers]
        found = join(" || ';' || ", texts)
        if total is not None:
            of_total = dialect.amounts_of(total)
            text = Sql(f"';' || {dialect.text_of.format(of_total.sql)}", of_total.parameters)
            of_total = join(" || ';' || ", [*texts[:2], text])
            found = Sql(f"coalesce({of_total.sql}, {found.sql})", (*of_total.parameters, *found.parameters))
        return Key(found, dialect.text_of, costly=True)
    amount, *per = [
        Sql(AMOUNT_COLUMNS[name]) if name in AMOUNT_COLUMNS else dialect.amount_of_one(name) for name in names
    ]
    # With an exponent, the factor is not an integer. The product of three integers may not fit 64 bits.
    times = join(" * ", [Sql(f"({ran} + 1.0E0)"), *per])
    if total is not None:
        # The product with zero makes it NULL for open records.
        times = Sql(f"coalesce({AMOUNT_COLUMNS[total]} + 1.0E0 + 0 * {ran}, {times.sql})", times.parameters)
    most = join(" * ", [Sql(literal(f"{dimension.factor:f}E0")), times])
    exceeds = join(" > ", [amount, most])
    return Key(case(exceeds, Sql("1"), Sql("0")), dialect.text_of, costly=not AMOUNT_COLUMNS.keys() >= set(names))
