"""What records are grouped by, as columns in SQLite's SQL.

Columns tell nearly all of it. Where they do not, the document is looked into: by a path if the key reads the same in a
path as in the document, otherwise key by key, since paths know no escapes.
"""

import re
from typing import Final, LiteralString

from auditord.store.dialects import Key, key_of_meta
from auditord.store.rows import AMOUNT_COLUMNS
from auditord.store.sql import Columns, Sql
from auditord.store.sqlite.compiler import HAS_KEY, compile_condition, encoded
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


def compile_dimension(dimension: Dimension, stop: Sql, columns: Columns) -> Key:
    """A column of ``records``, as :class:`auditord.store.aggregates.Folding` wants it.

    Args:
        dimension: what is asked for.
        stop: the stop time of the records; for open ones it is a parameter.
        columns: what they tell of the records.
    """
    match dimension:
        case MetaValue(keys):
            return key_of_meta(keys, columns, _looked_up)
        case ComponentAmount(component):
            return _component_amount(component, columns)
        case ComponentPresent(component):
            return _is_present(component)
        case ScoreValue(component):
            return _scores_of_several(component, columns)
        case CalendarPeriod(unit, field):
            return _first_day(Sql("start_time") if field is TimeField.START else stop, unit)


def key_of_amount(dimension: ComponentAmount | ComponentPresent, amount: LiteralString) -> Key:
    """The same of the name of an amount."""
    if isinstance(dimension, ComponentAmount):
        return Key(Sql(amount), over_amounts=amount)
    return Key(Sql(amount), over_amounts=f"CASE WHEN {amount} IS NULL THEN 0 ELSE 1 END")


def amount_of_one(component: str) -> Sql:
    """The amount of a component in the document of a record that has no two of one name; NULL if it has none."""
    return Sql(
        "CASE WHEN instr(document, ?) > 0 THEN (SELECT json_extract(each.value, '$.amount')"
        " FROM json_each(document, '$.components') AS each WHERE json_extract(each.value, '$.name') = ?) END",
        (encoded(component), component),
    )


def _looked_up(keys: tuple[str, ...]) -> Sql:
    return _by_path(keys) if all(map(_PLAIN_KEY.fullmatch, keys)) else _by_key(keys)


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


def _component_amount(component: str, columns: Columns) -> Key:
    if component in AMOUNT_COLUMNS and columns is Columns.TELL_ALL:
        return Key(Sql(AMOUNT_COLUMNS[component]))
    # A sum might not fit 64 bits: several amounts stay apart, as text.
    listed = Sql(
        "(SELECT group_concat(json_extract(each.value, '$.amount')) FROM json_each(document, '$.components') AS each"
        " WHERE json_extract(each.value, '$.name') = ?)",
        (component,),
    )
    return Key(listed, costly=True)


def _is_present(component: str) -> Key:
    if component in AMOUNT_COLUMNS:  # these tell even where a name occurs more than once
        return Key(Sql(f"CASE WHEN {AMOUNT_COLUMNS[component]} IS NULL THEN 0 ELSE 1 END"))
    compiled = compile_condition(ComponentCompares(component, Comparison.GTE, 0), Columns.MAY_TELL)
    return Key(Sql(f"CASE WHEN {compiled.sql} THEN 1 ELSE 0 END", compiled.parameters), costly=True)


def _scores_of_several(component: str, columns: Columns) -> Key:
    if columns is Columns.TELL_ALL:  # the set of scores tells
        return Key(Sql("NULL"))
    first = Sql(
        "(SELECT json_extract(each.value, '$.scores')"
        " FROM json_each(document, '$.components') AS each WHERE json_extract(each.value, '$.name') = ?"
        " ORDER BY each.key LIMIT 1)",
        (component,),
    )
    return Key(first, costly=True)


def _first_day(moment: Sql, unit: CalendarUnit) -> Key:
    # Division truncates toward zero; before 1970 that would be the next second.
    if unit is CalendarUnit.DAY:  # a number is quicker to group by, and days have one length
        day = f"({moment.sql} - 86399999999 * ({moment.sql} < 0)) / 86400000000"
        return Key(Sql(day, moment.parameters * 2), f"strftime('{_FORMATS[unit]}', {{}} * 86400, 'unixepoch')")
    seconds = f"({moment.sql} - 999999 * ({moment.sql} < 0)) / 1000000"
    return Key(Sql(f"strftime('{_FORMATS[unit]}', {seconds}, 'unixepoch')", moment.parameters * 2))
