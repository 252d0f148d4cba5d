"""Write reports as CSV, JSON, Parquet and XLSX, piece by piece.

A cell of a :class:`Report` takes half a kilobyte, since it can still be added up; a number in a :class:`Grid` takes a
twentieth of that. A :class:`Gathering` converts a long report to numbers, one part of its period after the other. In
XLSX, numbers are stored as numbers, and texts never as formulas.
"""

import json
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import date
from enum import Enum
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, TypeAlias

import msgspec

from auditord.reporting.measures import Figure
from auditord.reporting.questions import Question
from auditord.reporting.report import (
    Cell,
    Cells,
    Labels,
    Report,
    Vector,
    Vectors,
    added,
    bins_between,
    parts_of,
    place_of,
)
from auditord_hookspecs.aggregates import Aggregates, CalendarUnit
from auditord_hookspecs.errors import AuditordError
from auditord_hookspecs.spreadsheets import csv_line, no_formula

Number: TypeAlias = int | float | None
Numbers: TypeAlias = Sequence[Number]
"""One number for each measure."""

_MILLION: Final = 10**6
_MOST: Final = 10**300 * _MILLION
"""In millionths. Absurd scores have sums that no float has."""


class GridRow(msgspec.Struct, frozen=True):
    """The numbers of a row.

    Args:
        total: over all bins.
        cells: one for each bin of the grid, None if it has no records; only the total for a grid without bins.
    """

    labels: Labels
    total: Numbers
    cells: Sequence[Numbers | None]


class Grid(msgspec.Struct, frozen=True):
    """All numbers of a report.

    Args:
        bins: first days, without gaps; none if the question has no bin.
        rows: in their order; computed on iteration.
        totals: over all rows.
    """

    question: Question
    bins: Sequence[date]
    rows: Iterable[GridRow]
    totals: GridRow


def numbers(cell: Cell) -> Numbers:
    """Return the figures of a cell as in JSON."""
    return tuple(map(number, cell))


def number(figure: Figure) -> Number:
    """Return a figure as in JSON, with six decimals, at most 10^300; None for a ratio without a denominator."""
    value = figure.value
    if value is None:
        return None
    rounded = min(round(value * _MILLION), _MOST)  # a whole number of millionths
    return rounded // _MILLION if rounded % _MILLION == 0 else rounded / _MILLION


def grid_of(report: Report) -> Grid:
    """Return the numbers of a complete report."""
    places: Sequence[date | None] = report.bins or (None,)

    def row(labels: Labels, cells: Mapping[date | None, Cell], total: Cell) -> GridRow:
        return GridRow(labels, numbers(total), [numbers(cells[each]) if each in cells else None for each in places])

    rows = (row(each.labels, each.cells, each.total) for each in report.rows)
    return Grid(report.question, report.bins, rows, row((), report.totals, report.total))


class _Missing(Enum):
    """A cell without records; None is a ratio without a denominator."""

    CELL = "cell"


class Gathering:
    """Collects the numbers of a report whose answers arrive for one part of its period after the other.

    Args:
        question: covers the whole period.
    """

    def __init__(self, question: Question) -> None:
        self._question = question
        self._vectors = Vectors(question, question.query().ticks_per_second)
        self._places: dict[date | None, int] = {}
        self._lines: dict[Labels, _Line] = {}
        self._totals = _Line()

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of rows and bins so far."""
        return len(self._lines), max(1, len(bins_between(self._question, self._places)))

    def add(self, answer: Aggregates) -> None:
        """Add the sums of some bins, which no other answer covers."""
        by_labels = self._vectors.by_labels(answer)
        totals = Cells.join(self._vectors, by_labels.values())
        for begin in totals:
            self._places[begin] = len(self._places)
        self._totals.add(totals, self._places)
        for labels, cells in by_labels.items():
            self._lines.setdefault(labels, _Line()).add(cells, self._places)

    def grid(self) -> Grid:
        """Return the numbers of all answers so far."""
        bins = bins_between(self._question, self._places)
        places = [self._places.get(begin) for begin in bins or (None,)]
        totals = {labels: self._total(line) for labels, line in self._lines.items()}
        ordered = sorted(totals, key=lambda labels: place_of(self._question, labels, totals[labels]))
        rows = (self._lines[labels].row(labels, numbers(totals[labels]), places) for labels in ordered)
        total = numbers(self._total(self._totals))
        return Grid(self._question, bins, rows, self._totals.row((), total, places))

    def _total(self, line: "_Line") -> Cell:
        return self._vectors.cell(added([self._vectors.nothing, *line.sums]))


class _Line:
    """A growing row: its numbers in the order in which its bins arrive, and the sums over all bins."""

    __slots__ = ("_numbers", "sums")

    def __init__(self) -> None:
        self._numbers: list[Number | _Missing] = []
        self.sums: tuple[Vector, ...] = ()

    def add(self, cells: Cells, places: Mapping[date | None, int]) -> None:
        for begin, cell in cells.items():
            known = numbers(cell)
            end = (places[begin] + 1) * len(known)
            self._numbers.extend([_Missing.CELL] * (end - len(self._numbers)))
            self._numbers[end - len(known) : end] = known
        self.sums = (added([*self.sums, cells.sum_up()]),)

    def row(self, labels: Labels, total: Numbers, places: Iterable[int | None]) -> GridRow:
        width, cells = len(total), list[Numbers | None]()
        for place in places:
            found = [] if place is None else self._numbers[place * width : (place + 1) * width]
            cells.append([each for each in found if each is not _Missing.CELL] or None)
        return GridRow(labels, total, cells)


_LINES_AT_ONCE: Final = 5_000
_PARTIAL: Final = "partial"
"""The column with the covered days of a bin, if the report covers it only in part."""


class NoParquet(AuditordError):
    """The library that writes Parquet is not installed.

    Remedy:
        pip install 'auditord[arrow]', or choose another format.
    """


def json_pieces(grid: Grid) -> Iterator[str]:
    """Yield a JSON object: the question, the rows with their bins, the totals."""
    question = grid.question
    names = [measure.name for measure in question.measures]

    def by_name(found: Numbers) -> dict[str, Number]:
        return dict(zip(names, found, strict=True))

    def by_bin(row: GridRow) -> dict[str, dict[str, Number]]:
        cells = zip(grid.bins, row.cells, strict=True) if grid.bins else ()
        return {begin.isoformat(): by_name(cell) for begin, cell in cells if cell is not None}

    asked = {
        "by": question.by,
        **({} if question.then is None else {"then": question.then}),
        "bin": None if question.bin is None else question.bin.value,
        "timezone": question.zone,
        "from": None if question.window is None else question.window.start.isoformat(),
        "to": None if question.window is None else question.window.stop.isoformat(),
        "units": {measure.name: measure.unit for measure in question.measures},
    }
    yield f'{_json(asked)[:-1]}, "rows": ['
    separator = "\n"
    for row in grid.rows:
        labels = dict(zip(("label", "then"), row.labels or (None,), strict=False))
        yield separator + _json({**labels, "total": by_name(row.total), "bins": by_bin(row)})
        separator = ",\n"
    partial = {
        begin.isoformat(): {
            name: day.isoformat() for name, day in (("from", part.first), ("to", part.last)) if day is not None
        }
        for begin, part in parts_of(question, grid.bins).items()
    }
    rest = {
        "total": by_name(grid.totals.total),
        "bins": by_bin(grid.totals),
        "partial": partial,
        "remarks": _remarks(grid),
    }
    yield f"\n], {_json(rest)[1:]}\n"


def _remarks(grid: Grid) -> list[str]:
    """Return why totals are empty."""
    measures = zip(grid.question.measures, grid.totals.total, strict=True)
    return [each.remark(grid.question.score) for each, total in measures if each.components and total is None]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def columns(grid: Grid) -> tuple[str, ...]:
    """Return the columns of :func:`lines`."""
    question = grid.question
    bins = () if question.bin is None else (question.bin.value,)
    partial = (_PARTIAL,) if _has_parts(grid) else ()
    return (*bins, *question.groups, *(measure.name for measure in question.measures), *partial)


def _has_parts(grid: Grid) -> bool:
    """Return whether bins may be partial; a report without bins, or by day, needs no column for that."""
    return grid.question.bin not in {None, CalendarUnit.DAY}


def lines(grid: Grid) -> Iterator[Sequence[str | Number]]:
    """Yield one line for each row and bin, in the order of the bins."""
    bins: Sequence[date | None] = grid.bins or (None,)
    parts = {begin: str(part) for begin, part in parts_of(grid.question, grid.bins).items()}
    has_parts = _has_parts(grid)
    for row in grid.rows:
        for begin, cell in zip(bins, row.cells, strict=True):
            if cell is not None:
                bin_ = [] if begin is None else [begin.isoformat()]
                partial = [parts.get(begin, "")] if begin is not None and has_parts else []
                yield (*bin_, *(label or "" for label in row.labels), *cell, *partial)


def csv_pieces(grid: Grid) -> Iterator[str]:
    """Yield CSV (RFC 4180) with a header; text that a spreadsheet would evaluate as a formula is escaped."""
    yield csv_line(map(no_formula, columns(grid)))
    for line in lines(grid):
        yield csv_line(map(no_formula, line))


def write_parquet(grid: Grid, out: BinaryIO) -> Generator[None, None, None]:
    """Write the columns of the CSV as Parquet, some thousand lines per step.

    Raises:
        NoParquet: pyarrow is not installed.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise NoParquet("Parquet needs pyarrow: pip install 'auditord[arrow]', or choose another format") from error
    names, found = columns(grid), lines(grid)
    counts = {measure.name for measure in grid.question.measures if not measure.unit}
    figures = {measure.name: arrow.float64() for measure in grid.question.measures}
    figures |= dict.fromkeys(counts, arrow.int64())
    schema = arrow.schema([(name, figures.get(name, arrow.string())) for name in names])
    with parquet.ParquetWriter(out, schema) as writer:
        while known := list(islice(found, _LINES_AT_ONCE)):
            batch = {name: [line[at] for line in known] for at, name in enumerate(names)}
            for name in figures.keys() - counts:  # the library refuses whole numbers that no float has exactly
                batch[name] = [None if cell is None else float(cell) for cell in batch[name]]
            writer.write_table(arrow.table(batch, schema))
            yield


Line: TypeAlias = Sequence[str | float | None]

_MOST_COLUMNS: Final = 16_384
"""The maximum number of columns of a sheet. The library silently drops cells beyond it."""

_NUMBER: Final = "#,##0.00"
_COUNT: Final = "#,##0"
_WIDE: Final = 24
_USUAL: Final = 14
_CELLS_AT_ONCE: Final = 2_000


def write_xlsx(grid: Grid, out: BinaryIO, folder: Path | None = None) -> Generator[None, None, None]:
    """Write a sheet with the figures and one that describes them, some thousand cells per step.

    With one measure, the sheet has a column for each bin, unless these are too many. Only one line is in memory: the
    lines go to temporary files, which the last step joins.

    Args:
        grid: the figures.
        out: the file.
        folder: the folder for the temporary files; None for the system's.
    """
    has_columns = len(grid.question.measures) == 1 and 3 + len(grid.bins) <= _MOST_COLUMNS
    table = _by_bins(grid) if has_columns else chain([columns(grid)], lines(grid))
    question, window = grid.question, grid.question.window
    about: list[Line] = [("measure", "unit")]
    about += [
        (each.title, f"{each.unit} ({question.score})" if each.scored else each.unit) for each in question.measures
    ]
    if window is not None:
        about.append(("from", f"{window.start:%Y-%m-%d %H:%M}"))
        about.append(("to, not included", f"{window.stop:%Y-%m-%d %H:%M}"))
    about += [("time zone", question.zone), *(("remark", remark) for remark in _remarks(grid)), *question.filters]
    counts = all(not measure.unit for measure in question.measures)
    return write_sheets({"Usage": table, "About": iter(about)}, out, folder, {"About", *(["Usage"] if counts else [])})


def write_sheets(
    sheets: Mapping[str, Iterator[Line]], out: BinaryIO, folder: Path | None, of_counts: Collection[str] = ()
) -> Generator[None, None, None]:
    """Write sheets with a heading each, some thousand cells per step; those ``of_counts`` have no decimals."""
    library = import_module("xlsxwriter")  # only if needed
    with TemporaryDirectory(dir=folder) as temporary:
        book = library.Workbook(out, {"constant_memory": True, "tmpdir": temporary})
        try:
            for name, table in sheets.items():
                yield from _write(book, name, table, counts=name in of_counts)
            book.close()
        finally:
            for sheet in book.worksheets():
                sheet.row_data_fh.close()  # the temporary file, if writing was abandoned


def _write(book: Any, name: str, table: Iterator[Line], *, counts: bool) -> Iterator[None]:  # Any: the library's
    sheet, bold = book.add_worksheet(name), book.add_format({"bold": True})
    figure = book.add_format({"num_format": _COUNT if counts else _NUMBER})
    sheet.set_column(0, 0, _WIDE)
    sheet.set_column(1, 1_000, _USUAL)
    sheet.freeze_panes(1, 1)
    written = 0
    for at, line in enumerate(table):
        for place, value in enumerate(line):
            if isinstance(value, str):
                sheet.write_string(at, place, value, None if at else bold)
            elif value is not None:
                sheet.write_number(at, place, value, figure)
        written += len(line)
        if written >= _CELLS_AT_ONCE:
            written = 0
            yield


def _by_bins(grid: Grid) -> Iterator[Line]:
    """Yield a row for each label, with its total and each bin, and a row of totals."""
    parts = parts_of(grid.question, grid.bins)
    named = (f"{begin} ({parts[begin]})" if begin in parts else begin.isoformat() for begin in grid.bins)
    groups = grid.question.groups
    yield (*(groups or ("",)), "total", *named)
    for row in grid.rows:
        yield (*([label or "" for label in row.labels] or ["all"]), *_figures(grid, row))
    if groups:
        yield ("total", *[""] * (len(groups) - 1), *_figures(grid, grid.totals))


def _figures(grid: Grid, row: GridRow) -> Iterator[float | None]:
    yield row.total[0]
    if grid.bins:
        yield from (None if cell is None else cell[0] for cell in row.cells)
