"""Reports as CSV, JSON and Parquet: one line for each row, bin and measure."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any, Final

from auditord.reporting.bins import Part, parts_of
from auditord.reporting.measures import Figure
from auditord.reporting.report import Cell, Report
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.errors import AuditordError
from auditord_hookspecs.spreadsheets import no_formula

_DIGITS: Final = 6
_PARTIAL: Final = "partial"
"""The column that says which days of a bin a report has, if these are not all of them."""


class NoParquet(AuditordError):
    """The library that writes Parquet is not installed.

    Remedy:
        pip install 'auditord[archive]', or choose another format.
    """


def number(figure: Figure) -> float | int | None:
    """A figure as JSON has it, with six digits behind the point; None for a ratio of nothing."""
    value = figure.value
    if value is None:
        return None
    rounded = round(value, _DIGITS)
    return int(rounded) if rounded.denominator == 1 else float(rounded)


def text(value: Fraction, digits: int = 0) -> str:
    """A number for people: thousands separated, that many digits behind the point."""
    rounded = round(value * 10**digits) if digits else round(value)
    return f"{Decimal(rounded).scaleb(-digits):,.{digits}f}" if digits else f"{rounded:,}"


def as_json(report: Report) -> str:
    """One object: what was asked, the rows with their bins, the totals."""
    question = report.question
    names = [measure.name for measure in question.measures]

    def named(cell: Cell) -> dict[str, float | int | None]:
        return dict(zip(names, map(number, cell), strict=True))

    def binned(cells: Mapping[date | None, Cell]) -> dict[str, dict[str, float | int | None]]:
        return {each.isoformat(): named(cells[each]) for each in report.bins if each in cells}

    document: dict[str, Any] = {  # Any: JSON
        "by": question.by,
        "bin": None if question.bin is None else question.bin.value,
        "timezone": question.zone,
        "from": None if question.window is None else question.window.start.isoformat(),
        "to": None if question.window is None else question.window.stop.isoformat(),
        "units": {measure.name: measure.unit for measure in question.measures},
        "rows": [{"label": row.label, "total": named(row.total), "bins": binned(row.cells)} for row in report.rows],
        "total": named(report.total),
        "bins": binned(report.totals),
        "partial": {begin.isoformat(): _days(part) for begin, part in parts_of(report).items()},
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def columns(report: Report) -> tuple[str, ...]:
    """The columns of :func:`lines`."""
    question = report.question
    labels = [question.bin.value] if question.bin is not None else []
    labels += [question.by] if question.by is not None else []
    return (*labels, *(measure.name for measure in question.measures), *([_PARTIAL] if _has_parts(report) else []))


def _has_parts(report: Report) -> bool:
    """Tell if bins may be partial; a report without them, or by day, needs no column for that."""
    return report.question.bin not in {None, CalendarUnit.DAY}


def _days(part: Part) -> dict[str, str]:
    days = {"from": part.first, "to": part.last}
    return {name: day.isoformat() for name, day in days.items() if day is not None}


def lines(report: Report) -> Iterator[Sequence[str | float | None]]:
    """One line for each row and bin, in the order of the bins."""
    parts = {begin: str(part) for begin, part in parts_of(report).items()}
    for row in report.rows:
        for begin in report.bins or (None,):
            if begin in row.cells:
                labels = [] if begin is None else [begin.isoformat()]
                labels += [] if report.question.by is None else [row.label or ""]
                partial = [parts.get(begin, "")] if begin is not None and _has_parts(report) else []
                yield (*labels, *map(number, row.cells[begin]), *partial)


def as_csv(report: Report, shown: Callable[[Any], Any] = no_formula) -> str:  # Any: cells
    """RFC 4180 with a header; text that a spreadsheet would take for a formula is escaped."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns(report))
    writer.writerows([shown(cell) for cell in line] for line in lines(report))
    return out.getvalue()


def as_parquet(report: Report) -> bytes:
    """The columns of the CSV as Parquet.

    Raises:
        NoParquet: pyarrow is not installed.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise NoParquet("Parquet needs pyarrow: pip install 'auditord[arrow]', or ask for CSV") from error
    known = list(lines(report))
    table = arrow.table({name: [line[at] for line in known] for at, name in enumerate(columns(report))})
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()
