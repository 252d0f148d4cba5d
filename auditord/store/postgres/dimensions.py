"""What records are grouped by, as columns in PostgreSQL's SQL.

Columns tell nearly all of it. Where they do not, ``meta`` is looked into, or the components in the document.
"""

from dataclasses import replace
from typing import Final, LiteralString

from auditord.store.dialects import Key, key_of_meta
from auditord.store.postgres.compiler import HAS_KEY, as_written, compile_condition
from auditord.store.rows import AMOUNT_COLUMNS
from auditord.store.sql import Columns, Sql
from auditord_hookspecs import (
    CalendarPeriod,
    CalendarUnit,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    MetaValue,
    ScoreValue,
)
from auditord_hookspecs.query import Comparison, ComponentCompares, TimeField

_TEXT: Final[LiteralString] = "{}::text"
_DATE: Final[LiteralString] = "to_char({}, 'YYYY-MM-DD')"


def compile_dimension(dimension: Dimension, stop: Sql, columns: Columns) -> Key:
    """A column of ``auditord.records``.

    Args:
        dimension: what is asked for.
        stop: the stop time of the records; for open ones it is a parameter.
        columns: what they tell of the records.
    """
    match dimension:
        case MetaValue(keys):
            return replace(key_of_meta(keys, columns, _first_of), shown=_TEXT, costly=False)  # meta is short
        case ComponentAmount(component):
            return _component_amount(component, columns)
        case ComponentPresent(component):
            return _is_present(component)
        case ScoreValue(component):
            return _scores_of_several(component, columns)
        case CalendarPeriod(unit, field):
            return Key(_first_day(Sql("start_time") if field is TimeField.START else stop, unit), _DATE)


def key_of_amount(dimension: ComponentAmount | ComponentPresent, amount: LiteralString) -> Key:
    """The same of the name of an amount."""
    if isinstance(dimension, ComponentAmount):
        return Key(Sql(amount), _TEXT, over_amounts=amount)
    return Key(Sql(amount), _TEXT, over_amounts=f"CASE WHEN {amount} IS NULL THEN 0 ELSE 1 END")


def amount_of_one(component: str) -> Sql:
    """The amount of a component in the document of a record that has no two of one name; NULL if it has none."""
    return Sql(
        "CASE WHEN strpos(document, %s) > 0 THEN (SELECT (each ->> 'amount')::bigint"
        " FROM jsonb_array_elements(document::jsonb -> 'components') AS each WHERE each ->> 'name' = %s) END",
        (as_written(component), component),
    )


def _first_of(keys: tuple[str, ...]) -> Sql:
    first = Sql("meta -> %s::text ->> 0", (keys[0],))
    if len(keys) == 1:
        return first
    others = _first_of(keys[1:])
    return Sql(
        f"CASE WHEN {HAS_KEY} THEN {first.sql} ELSE {others.sql} END",
        (keys[0], *first.parameters, *others.parameters),
    )


def _component_amount(component: str, columns: Columns) -> Key:
    if component in AMOUNT_COLUMNS and columns is Columns.TELL_ALL:
        return Key(Sql(AMOUNT_COLUMNS[component]), _TEXT)
    listed = Sql(
        "(SELECT sum((each ->> 'amount')::numeric) FROM jsonb_array_elements(document::jsonb -> 'components') AS each"
        " WHERE each ->> 'name' = %s)",
        (component,),
    )
    return Key(listed, _TEXT, costly=True)


def _is_present(component: str) -> Key:
    if component in AMOUNT_COLUMNS:  # these tell even where a name occurs more than once
        return Key(Sql(f"CASE WHEN {AMOUNT_COLUMNS[component]} IS NULL THEN 0 ELSE 1 END"), _TEXT)
    compiled = compile_condition(ComponentCompares(component, Comparison.GTE, 0), Columns.MAY_TELL)
    return Key(Sql(f"CASE WHEN {compiled.sql} THEN 1 ELSE 0 END", compiled.parameters), _TEXT, costly=True)


def _scores_of_several(component: str, columns: Columns) -> Key:
    if columns is Columns.TELL_ALL:  # the set of scores tells
        return Key(Sql("NULL"), _TEXT)
    first = Sql(
        "(SELECT (each -> 'scores')::text"
        " FROM jsonb_array_elements(document::jsonb -> 'components') WITH ORDINALITY AS listed (each, place)"
        " WHERE each ->> 'name' = %s ORDER BY place LIMIT 1)",
        (component,),
    )
    return Key(first, _TEXT, costly=True)


def _first_day(moment: Sql, unit: CalendarUnit) -> Sql:
    local = f"{moment.sql} AT TIME ZONE 'UTC'"
    match unit:
        case CalendarUnit.DAY:
            return Sql(f"({local})::date", moment.parameters)
        case CalendarUnit.MONTH:
            return Sql(f"date_trunc('month', {local})", moment.parameters)
        case CalendarUnit.YEAR:
            return Sql(f"date_trunc('year', {local})", moment.parameters)
