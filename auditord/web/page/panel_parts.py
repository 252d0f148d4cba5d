"""The parts of a panel, checked and written as the template shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from auditord.reporting.writing import text
from auditord.web.page.charts import Axis, bars, lines
from auditord.web.page.charts import Series as Drawn
from auditord.web.page.drawing import Mark, Picture
from auditord.web.page.numbers import NOTHING, digits_of, instant
from auditord_hookspecs import CellValue, Chart, Column, PanelPart, Series, Table

MOST_ROWS: Final = 500
_MOST_COLUMNS: Final = 20
_MOST_LABELS: Final = 400
_MOST_SERIES: Final = 8
_MOST_PARTS: Final = 20
_LONGEST: Final = 500


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """A part of a panel: a note, a table, or a chart.

    Args:
        note: a sentence.
        title: above a table or a chart.
        columns: title and unit of each column, and whether it holds numbers.
        rows: texts.
        left_out: how many rows are not shown.
        svg: a chart.
        keys: of its legend: the name of each series, and its colour as the last member.
    """

    note: str = ""
    title: str = ""
    columns: Sequence[tuple[str, str, bool]] = ()
    rows: Sequence[Sequence[str]] = ()
    left_out: int = 0
    svg: Picture | None = None
    keys: Sequence[tuple[str, None, int]] = ()


def drawn(parts: Sequence[PanelPart], zone: tzinfo = UTC) -> list[DrawnPart]:
    """The parts as they are shown, instants in a time zone.

    Raises:
        ValueError: a part is not as the contract has it.
    """
    given: Any = parts  # Any: a hook module made it
    if not isinstance(given, list | tuple) or len(parts) > _MOST_PARTS:
        raise ValueError(f"a panel is a list of up to {_MOST_PARTS} tables, charts and notes")
    return [_part(each, zone) for each in parts]


def _part(part: PanelPart, zone: tzinfo) -> DrawnPart:
    match part:
        case str():
            return DrawnPart(note=part[:_LONGEST])
        case Table():
            return _table(part, zone)
        case Chart():
            return _chart(part)
        case _:
            raise ValueError(f"{part!r} is no table, no chart and no note")


def _table(table: Table, zone: tzinfo) -> DrawnPart:
    columns, rows = table.columns, table.rows[:MOST_ROWS]
    if not 0 < len(columns) <= _MOST_COLUMNS:
        raise ValueError(f"a table has 1 to {_MOST_COLUMNS} columns, not {len(columns)}")
    for at, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise ValueError(f"row {at} has {len(row)} values for {len(columns)} columns")
    numbers = [any(_is_number(row[at]) for row in rows) for at in range(len(columns))]
    return DrawnPart(
        title=table.title,
        columns=[(each.title, each.unit, is_number) for each, is_number in zip(columns, numbers, strict=True)],
        rows=[[_cell(value, column, zone) for value, column in zip(row, columns, strict=True)] for row in rows],
        left_out=len(table.rows) - len(rows),
    )


def _is_number(value: CellValue) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _cell(value: CellValue, column: Column, zone: tzinfo) -> str:
    match value:
        case None:
            return NOTHING
        case str():
            return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
        case datetime():
            if value.tzinfo is None:
                raise ValueError(f"an instant in the column '{column.title}' has no time zone")
            return instant(value, zone)
        case int():
            return f"{value:,}"
        case float() | Decimal():
            exact = _exact(value, column.title)
            return text(exact, digits_of(exact, column.unit or "number"))
        case _:
            raise ValueError(f"the column '{column.title}' has {value!r}, which is no text, number or instant")


def _exact(value: float | Decimal, where: str) -> Fraction:
    try:
        return Fraction(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"'{where}' has {value}, which is no number") from error


def _chart(chart: Chart) -> DrawnPart:
    if len(chart.labels) > _MOST_LABELS or len(chart.series) > _MOST_SERIES:
        raise ValueError(f"a chart has up to {_MOST_SERIES} series and {_MOST_LABELS} labels")
    series = [_series(chart, each, colour) for colour, each in enumerate(chart.series)]
    draw = lines if chart.lines else bars
    return DrawnPart(
        title=chart.title,
        svg=draw(chart.title, Axis(chart.labels, unit=chart.unit), series),
        keys=[(each.name, None, each.colour) for each in series],
    )


def _series(chart: Chart, series: Series, colour: int) -> Drawn:
    if len(series.values) != len(chart.labels):
        raise ValueError(f"the series '{series.name}' has {len(series.values)} values for {len(chart.labels)} labels")
    marks = list[Mark]()
    for label, value in zip(chart.labels, series.values, strict=True):
        exact = None if value is None else _exact(value, series.name)
        if exact is not None and exact < 0:
            raise ValueError(f"the series '{series.name}' has {value}: values below 0 cannot be drawn")
        digits = 0 if exact is None or exact.denominator == 1 else digits_of(exact, chart.unit)
        shown = "" if exact is None else f"{text(exact, digits)} {chart.unit}".strip()
        marks.append(Mark(None if exact is None else float(exact), f"{series.name}, {label}: {shown}"))
    return Drawn(series.name, colour, marks)
