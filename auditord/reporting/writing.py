"""Reports as CSV, JSON and Parquet: one line for each row, bin and measure, written piece by piece."""

import csv
import io
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from itertools import islice
from typing import Any, BinaryIO, Final

from auditord.reporting.bins import Part, parts_of
from auditord.reporting.grid import Grid, GridRow, Number, Numbers
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.errors import AuditordError
from auditord_hookspecs.spreadsheets import no_formula

_LINES_AT_ONCE: Final = 5_000
_PARTIAL: Final = "partial"
"""The column that says which days of a bin a report has, if these are not all of them."""


class NoParquet(AuditordError):
    """The library that writes Parquet is not installed.

    Remedy:
        pip install 'auditord[lake]', or choose another format.
    """


def text(value: Fraction, digits: int = 0) -> str:
    """Format a number for people: with separators for thousands, and this number of decimals."""
    rounded = round(value * 10**digits) if digits else round(value)
    return f"{Decimal(rounded).scaleb(-digits):,.{digits}f}" if digits else f"{rounded:,}"


def json_pieces(grid: Grid) -> Iterator[str]:
    """Yield a JSON object: the question, the rows with their bins, the totals."""
    question = grid.question
    names = [measure.name for measure in question.measures]

    def named(found: Numbers) -> dict[str, Number]:
        return dict(zip(names, found, strict=True))

    def binned(row: GridRow) -> dict[str, dict[str, Number]]:
        cells = zip(grid.bins, row.cells, strict=True) if grid.bins else ()
        return {begin.isoformat(): named(cell) for begin, cell in cells if cell is not None}

    asked = {
        "by": question.by,
        "bin": None if question.bin is None else question.bin.value,
        "timezone": question.zone,
        "from": None if question.window is None else question.window.start.isoformat(),
        "to": None if question.window is None else question.window.stop.isoformat(),
        "units": {measure.name: measure.unit for measure in question.measures},
    }
    yield f'{_json(asked)[:-1]}, "rows": ['
    separator = "\n"
    for row in grid.rows:
        yield separator + _json({"label": row.label, "total": named(row.total), "bins": binned(row)})
        separator = ",\n"
    partial = {begin.isoformat(): _days(part) for begin, part in parts_of(question, grid.bins).items()}
    rest = {"total": named(grid.totals.total), "bins": binned(grid.totals), "partial": partial}
    yield f"\n], {_json(rest)[1:]}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def columns(grid: Grid) -> tuple[str, ...]:
    """Return the columns of :func:`lines`."""
    question = grid.question
    labels = [question.bin.value] if question.bin is not None else []
    labels += [question.by] if question.by is not None else []
    return (*labels, *(measure.name for measure in question.measures), *([_PARTIAL] if _has_parts(grid) else []))


def _has_parts(grid: Grid) -> bool:
    """Tell if bins may be partial; a report without them, or by day, needs no column for that."""
    return grid.question.bin not in {None, CalendarUnit.DAY}


def _days(part: Part) -> dict[str, str]:
    days = {"from": part.first, "to": part.last}
    return {name: day.isoformat() for name, day in days.items() if day is not None}


def lines(grid: Grid) -> Iterator[Sequence[str | Number]]:
    """Yield one line for each row and bin, in the order of the bins."""
    bins: Sequence[date | None] = grid.bins or (None,)
    parts = {begin: str(part) for begin, part in parts_of(grid.question, grid.bins).items()}
    has_parts = _has_parts(grid)
    for row in grid.rows:
        for begin, cell in zip(bins, row.cells, strict=True):
            if cell is not None:
                labels = [] if begin is None else [begin.isoformat()]
                labels += [] if grid.question.by is None else [row.label or ""]
                partial = [parts.get(begin, "")] if begin is not None and has_parts else []
                yield (*labels, *cell, *partial)


def csv_pieces(grid: Grid, shown: Callable[[Any], Any] = no_formula) -> Iterator[str]:  # Any: cells
    """Yield CSV (RFC 4180) with a header; text that a spreadsheet would evaluate as a formula is escaped."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns(grid))
    yield out.getvalue()
    for line in lines(grid):
        out.seek(0)
        out.truncate()
        writer.writerow([shown(cell) for cell in line])
        yield out.getvalue()


def write_parquet(grid: Grid, out: BinaryIO) -> Generator[None, None, None]:
    """Write the columns of the CSV as Parquet, some thousand lines with each step.

    Raises:
        NoParquet: pyarrow is not installed.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise NoParquet("Parquet needs pyarrow: pip install 'auditord[arrow]', or ask for CSV") from error
    names, found = columns(grid), lines(grid)
    counts = {measure.name for measure in grid.question.measures if not measure.unit}
    figures = {measure.name: arrow.float64() for measure in grid.question.measures}
    figures |= dict.fromkeys(counts, arrow.int64())
    schema = arrow.schema([(name, figures.get(name, arrow.string())) for name in names])
    with parquet.ParquetWriter(out, schema) as writer:
        while known := list(islice(found, _LINES_AT_ONCE)):
            batch = {name: [line[at] for line in known] for at, name in enumerate(names)}
            writer.write_table(arrow.table(batch, schema))
            yield
