"""What records are grouped by, as columns in SQLite's SQL.

Columns tell nearly all of it. Where they do not, the document is looked into: by a path if the key reads the same in a
path as in the document, otherwise key by key, since paths know no escapes.
"""

import re
from typing import Final, LiteralString

from auditord.store.aggregates_sql import Sql, column_of_keys
from auditord.store.rows import AMOUNT_COLUMNS
from auditord.store.sqlite.compiler import HAS_KEY, compile_condition
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

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_.:/ -]+")

_FORMATS: Final[dict[CalendarUnit, LiteralString]] = {
    CalendarUnit.DAY: "%Y-%m-%d",
    CalendarUnit.MONTH: "%Y-%m-01",
    CalendarUnit.YEAR: "%Y-01-01",
}


def compile_dimension(dimension: Dimension, stop: Sql) -> Sql:
    """A column of ``records``, as :class:`auditord.store.aggregates.Folding` wants it.

    Args:
        dimension: what is asked for.
        stop: the stop time of the records; for open ones it is a parameter.
    """
    match dimension:
        case MetaValue(keys):
            plain = all(map(_PLAIN_KEY.fullmatch, keys))
            return column_of_keys(keys, _by_path(keys) if plain else _by_key(keys))
        case ComponentAmount(component):
            return _component_amount(component)
        case ComponentPresent(component):
            return _is_present(component)
        case ScoreValue(component):
            return _scores_of_several(component)
        case CalendarPeriod(unit, field):
            return _first_day(Sql("start_time") if field is TimeField.START else stop, unit)


def _by_path(keys: tuple[str, ...]) -> Sql:
    first = Sql("json_extract(document, ?)", (f'$.meta."{keys[0]}"[0]',))
    has = Sql("json_type(document, ?) IS NOT NULL", (f'$.meta."{keys[0]}"',))
    return _first_of(has, first, _by_path(keys[1:])) if keys[1:] else first


def _by_key(keys: tuple[str, ...]) -> Sql:
    first = Sql(
        "(SELECT json_extract(meta.value, '$[0]') FROM json_each(document, '$.meta') AS meta WHERE meta.key = ?)",
        (keys[0],),
    )
    has = Sql(HAS_KEY, (keys[0],))
    return _first_of(has, first, _by_key(keys[1:])) if keys[1:] else first


def _first_of(has: Sql, first: Sql, others: Sql) -> Sql:
    return Sql(
        f"CASE WHEN {has.sql} THEN {first.sql} ELSE {others.sql} END",
        (*has.parameters, *first.parameters, *others.parameters),
    )


def _component_amount(component: str) -> Sql:
    # A sum might not fit 64 bits: several amounts stay apart, as text.
    document = Sql(
        "(SELECT group_concat(json_extract(each.value, '$.amount')) FROM json_each(document, '$.components') AS each"
        " WHERE json_extract(each.value, '$.name') = ?)",
        (component,),
    )
    if component not in AMOUNT_COLUMNS:
        return document
    column = AMOUNT_COLUMNS[component]
    return Sql(f"CASE WHEN more IS NULL THEN {column} ELSE {document.sql} END", document.parameters)


def _is_present(component: str) -> Sql:
    if component in AMOUNT_COLUMNS:  # these tell even where a name occurs more than once
        return Sql(f"CASE WHEN {AMOUNT_COLUMNS[component]} IS NULL THEN 0 ELSE 1 END")
    compiled = compile_condition(ComponentCompares(component, Comparison.GTE, 0))
    return Sql(f"CASE WHEN {compiled.sql} THEN 1 ELSE 0 END", compiled.parameters)


def _scores_of_several(component: str) -> Sql:
    # Unless several components may have one name, the set of scores tells.
    return Sql(
        "CASE WHEN more IS NOT NULL THEN (SELECT json_extract(each.value, '$.scores')"
        " FROM json_each(document, '$.components') AS each WHERE json_extract(each.value, '$.name') = ?"
        " ORDER BY each.key LIMIT 1) END",
        (component,),
    )


def _first_day(moment: Sql, unit: CalendarUnit) -> Sql:
    # Division truncates toward zero; before 1970 that would be the next second.
    seconds = f"({moment.sql} - 999999 * ({moment.sql} < 0)) / 1000000"
    return Sql(f"strftime('{_FORMATS[unit]}', {seconds}, 'unixepoch')", moment.parameters * 2)
