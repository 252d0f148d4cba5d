"""Dimensions of aggregates as columns: from the narrow columns where they are complete, otherwise from documents."""

from collections.abc import Sequence
from datetime import timedelta
from typing import LiteralString

from msgspec.structs import replace

from auditord.store.columns import AMOUNT_COLUMNS, COLUMNS_OF_TWO_KEYS, OLDER_KEYS
from auditord.store.conditions import can_be_there
from auditord.store.dialects import Dialect, Key
from auditord.store.sql import Columns, Sql, case, join, literal
from auditord_hookspecs import (
    CalendarPeriod,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    ExceedsRuntime,
    MetaValue,
    ScoreValue,
)
from auditord_hookspecs.query import Comparison, TimeField
from auditord_hookspecs.zones import ClockChange, clock_changes


def compile_dimension(  # noqa: PLR0911 one branch for each type of dimension
    dimension: Dimension, stop: Sql, dialect: Dialect, columns: Columns
) -> Key:
    """A column of the table of records, as :class:`auditord.store.aggregates.Folding` reads it.

    Args:
        dimension: of the query.
        stop: the stop time of the records; for open ones it is a parameter.
        dialect: of the database.
        columns: the records that it is about.
    """
    if (possible := _possible(dimension)) is None:
        return Key(Sql(dialect.no_text))
    match possible:
        case MetaValue(keys):
            return replace(_key_of_meta(keys, dialect, columns), shown=dialect.text_of)
        case ComponentAmount(component):
            return _amount(component, dialect, columns)
        case ComponentPresent(component):
            return _is_present(component, dialect)
        case ExceedsRuntime():
            return _exceeds(possible, dialect, columns)
        case ScoreValue(component):
            return _scores_of_several(component, dialect, columns)
        case CalendarPeriod(unit, field, zone):
            moment = Sql("start_time") if field is TimeField.START else stop
            return dialect.first_day(shown_by_clocks(moment, clock_changes(zone), dialect), unit)


def key_of_amount(dimension: ComponentAmount | ComponentPresent, amount: LiteralString, dialect: Dialect) -> Key:
    """The key of the name of an amount that is summed up anyway."""
    if isinstance(dimension, ComponentAmount):
        return Key(Sql(amount), dialect.text_of, over_amounts=amount)
    return Key(Sql(amount), dialect.text_of, over_amounts=f"CASE WHEN {amount} IS NULL THEN 0 ELSE 1 END")


def shown_by_clocks(moment: Sql, changes: Sequence[ClockChange], dialect: Dialect) -> Sql:
    """An instant moved by as much as the clocks of a zone are ahead of UTC."""
    if not changes:
        return moment
    ahead = _ahead(moment, ClockChange(changes[0].moment, timedelta(0)), changes, dialect)
    return Sql(f"({moment.sql} + {ahead.sql})", (*moment.parameters, *ahead.parameters))


def _ahead(moment: Sql, known: ClockChange, changes: Sequence[ClockChange], dialect: Dialect) -> Sql:
    """The time by which they are ahead, found by halves: of 261 changes since 1970, nine are compared with."""
    if not changes:
        return Sql(dialect.literal_span(known.ahead))
    middle = len(changes) // 2
    is_earlier = Sql(f"{moment.sql} < {dialect.literal_moment(changes[middle].moment)}", moment.parameters)
    earlier = _ahead(moment, known, changes[:middle], dialect)
    later = _ahead(moment, changes[middle], changes[middle + 1 :], dialect)
    return case(is_earlier, earlier, later)


def _possible(dimension: Dimension) -> Dimension | None:
    """The dimension without keys that no record can have; None if nothing is left."""
    match dimension:
        case MetaValue(keys):
            possible = [key for key in keys if can_be_there(key)]
            return MetaValue(*possible) if possible else None
        case ComponentAmount(component) | ComponentPresent(component) | ScoreValue(component):
            return dimension if can_be_there(component) else None
        case ExceedsRuntime(component, _, per):
            return dimension if can_be_there(component) and can_be_there(per or "") else None
        case CalendarPeriod():
            return dimension


def _key_of_meta(keys: tuple[str, ...], dialect: Dialect, columns: Columns) -> Key:
    """The first value under the first of the keys that a record has, from a column if one is complete."""
    if columns is not Columns.COMPLETE:
        found = COLUMNS_OF_TWO_KEYS.get(keys)
        return _looked_up(keys, dialect) if found is None else Key(Sql(found))
    keys = tuple([key for key in keys if key not in OLDER_KEYS])  # of these records, none has one
    if not keys:
        return Key(Sql("NULL"))
    if set(keys) <= dialect.meta_columns.keys():
        names: list[LiteralString] = [dialect.meta_columns[key] for key in keys]
        return Key(Sql(names[0] if len(names) == 1 else f"coalesce({', '.join(names)})"))
    return _looked_up(keys, dialect, has_columns=True)


def _looked_up(keys: tuple[str, ...], dialect: Dialect, *, has_columns: bool = False) -> Key:
    *others, last = keys
    _, column = _value(last, dialect, has_columns=has_columns)
    for key in reversed(others):
        has, value = _value(key, dialect, has_columns=has_columns)
        column = case(has, value, column)
    return Key(column, costly=dialect.meta_is_long)


def _value(key: str, dialect: Dialect, *, has_columns: bool) -> tuple[Sql, Sql]:
    """A flag that a record has a key, and its first value: from a column, if these are complete."""
    if has_columns and (column := dialect.meta_columns.get(key)) is not None:
        return Sql(f"{column} IS NOT NULL"), Sql(column)
    return dialect.has_key(key), dialect.first_value(key)


def _amount(component: str, dialect: Dialect, columns: Columns) -> Key:
    if component in AMOUNT_COLUMNS and columns is Columns.COMPLETE:
        return Key(Sql(AMOUNT_COLUMNS[component]), dialect.text_of)
    return Key(dialect.amounts_of(component), dialect.text_of, costly=True)


def _is_present(component: str, dialect: Dialect) -> Key:
    if component in AMOUNT_COLUMNS:  # these are right even where a name occurs more than once
        return Key(Sql(f"CASE WHEN {AMOUNT_COLUMNS[component]} IS NULL THEN 0 ELSE 1 END"), dialect.text_of)
    present = dialect.lists(component, Comparison.GTE, 0)
    return Key(case(present, Sql("1"), Sql("0")), dialect.text_of, costly=True)


def _exceeds(dimension: ExceedsRuntime, dialect: Dialect, columns: Columns) -> Key:
    """Return 1 where an amount exceeds the runtime; for incomplete records, the numbers with semicolons between."""
    ran: LiteralString = f"({dialect.runtime_in_index or 'runtime'})"
    names = [dimension.component] if dimension.per is None else [dimension.component, dimension.per]
    if columns is not Columns.COMPLETE:
        numbers = [dialect.amounts_of(names[0]), Sql(ran), *map(dialect.amounts_of, names[1:])]
        texts = [Sql(dialect.text_of.format(number.sql), number.parameters) for number in numbers]
        return Key(join(" || ';' || ", texts), dialect.text_of, costly=True)
    amount, *per = [
        Sql(AMOUNT_COLUMNS[name]) if name in AMOUNT_COLUMNS else dialect.amount_of_one(name) for name in names
    ]
    # A number with an exponent: the product of three whole ones may not fit 64 bits.
    most = join(" * ", [Sql(literal(f"{dimension.factor:f}E0")), Sql(f"({ran} + 1)"), *per])
    exceeds = join(" > ", [amount, most])
    return Key(case(exceeds, Sql("1"), Sql("0")), dialect.text_of, costly=not AMOUNT_COLUMNS.keys() >= set(names))


def _scores_of_several(component: str, dialect: Dialect, columns: Columns) -> Key:
    if columns is Columns.COMPLETE:  # the set of scores has them
        return Key(Sql("NULL"), dialect.text_of)
    return Key(dialect.first_scores(component), dialect.text_of, costly=True)
