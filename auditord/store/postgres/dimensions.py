"""What records are grouped by, as columns in PostgreSQL's SQL.

Columns tell nearly all of it. Where they do not, ``meta`` is looked into, or the components in the document.
"""

from typing import Final

from auditord.store.aggregates_sql import Key, Sql, column_of_keys
from auditord.store.postgres.compiler import HAS_KEY, compile_condition
from auditord.store.rows import AMOUNT_COLUMNS
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

_TEXT: Final = "{}::text"
_DATE: Final = "to_char({}, 'YYYY-MM-DD')"


def compile_dimension(dimension: Dimension, stop: Sql) -> Key:
    """A column of ``auditord.records``.

    Args:
        dimension: what is asked for.
        stop: the stop time of the records; for open ones it is a parameter.
    """
    match dimension:
        case MetaValue(keys):
            return Key(column_of_keys(keys, _first_of(keys)), _TEXT)
        case ComponentAmount(component):
            return Key(_component_amount(component), _TEXT)
        case ComponentPresent(component):
            return Key(_is_present(component), _TEXT)
        case ScoreValue(component):
            return Key(_scores_of_several(component), _TEXT)
        case CalendarPeriod(unit, field):
            return Key(_first_day(Sql("start_time") if field is TimeField.START else stop, unit), _DATE)


def _first_of(keys: tuple[str, ...]) -> Sql:
    first = Sql("meta -> %s::text ->> 0", (keys[0],))
    if len(keys) == 1:
        return first
    others = _first_of(keys[1:])
    return Sql(
        f"CASE WHEN {HAS_KEY} THEN {first.sql} ELSE {others.sql} END",
        (keys[0], *first.parameters, *others.parameters),
    )


def _component_amount(component: str) -> Sql:
    listed = Sql(
        "(SELECT sum((each ->> 'amount')::numeric) FROM jsonb_array_elements(document::jsonb -> 'components') AS each"
        " WHERE each ->> 'name' = %s)",
        (component,),
    )
    if component not in AMOUNT_COLUMNS:
        return listed
    column = AMOUNT_COLUMNS[component]
    return Sql(f"CASE WHEN more IS NULL THEN {column}::numeric ELSE {listed.sql} END", listed.parameters)


def _is_present(component: str) -> Sql:
    if component in AMOUNT_COLUMNS:  # these tell even where a name occurs more than once
        return Sql(f"CASE WHEN {AMOUNT_COLUMNS[component]} IS NULL THEN 0 ELSE 1 END")
    compiled = compile_condition(ComponentCompares(component, Comparison.GTE, 0))
    return Sql(f"CASE WHEN {compiled.sql} THEN 1 ELSE 0 END", compiled.parameters)


def _scores_of_several(component: str) -> Sql:
    # Unless several components may have one name, the set of scores tells.
    return Sql(
        "CASE WHEN more THEN (SELECT (each -> 'scores')::text"
        " FROM jsonb_array_elements(document::jsonb -> 'components') WITH ORDINALITY AS listed (each, place)"
        " WHERE each ->> 'name' = %s ORDER BY place LIMIT 1) END",
        (component,),
    )


def _first_day(moment: Sql, unit: CalendarUnit) -> Sql:
    local = f"{moment.sql} AT TIME ZONE 'UTC'"
    match unit:
        case CalendarUnit.DAY:
            return Sql(f"({local})::date", moment.parameters)
        case CalendarUnit.MONTH:
            return Sql(f"date_trunc('month', {local})", moment.parameters)
        case CalendarUnit.YEAR:
            return Sql(f"date_trunc('year', {local})", moment.parameters)
