"""Reports as workbooks for spreadsheets (XLSX): numbers are numbers, texts are never formulas."""

from collections.abc import Generator, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, TypeAlias

from auditord.reporting.bins import parts_of
from auditord.reporting.grid import Grid, GridRow
from auditord.reporting.writing import columns, lines

Line: TypeAlias = Sequence[str | float | None]

MOST_COLUMNS: Final = 16_384
"""Of a sheet; the library silently drops cells beyond it."""

_NUMBER: Final = "#,##0.00"
_COUNT: Final = "#,##0"
_WIDE: Final = 24
_USUAL: Final = 14
_CELLS_AT_ONCE: Final = 2_000


def write_xlsx(grid: Grid, out: BinaryIO, folder: Path | None = None) -> Generator[None, None, None]:
    """Write a sheet of the figures, and one that says of what they are; some thousand cells with each step.

    The sheet has a column for each bin where there is one measure. No more than a line is in memory: the lines go into
    files, and are put together in the last step.

    Args:
        grid: the figures.
        out: the file.
        folder: where files for the lines are made; None for the system's temporary folder.
    """
    library = import_module("xlsxwriter")  # when it is asked for
    with TemporaryDirectory(dir=folder) as temporary:
        book = library.Workbook(out, {"constant_memory": True, "tmpdir": temporary})
        table = _by_bins(grid) if len(grid.question.measures) == 1 else _by_measures(grid)
        counts = all(not measure.unit for measure in grid.question.measures)
        try:
            yield from _write(book, "Usage", table, counts=counts)
            yield from _write(book, "About", _about(grid), counts=True)
            book.close()
        finally:
            for sheet in book.worksheets():
                sheet.row_data_fh.close()  # of lines that are not wanted any more


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
    """Yield a row for each label, with its total and each bin, and one for all."""
    parts = parts_of(grid.question, grid.bins)
    named = (f"{begin} ({parts[begin]})" if begin in parts else begin.isoformat() for begin in grid.bins)
    yield (grid.question.by or "", "total", *named)
    for row in grid.rows:
        yield ((row.label or "") if grid.question.by else "all", *_figures(grid, row))
    if grid.question.by:
        yield ("total", *_figures(grid, grid.totals))


def _figures(grid: Grid, row: GridRow) -> Iterator[float | None]:
    yield row.total[0]
    if grid.bins:
        yield from (None if cell is None else cell[0] for cell in row.cells)


def _by_measures(grid: Grid) -> Iterator[Line]:
    """Yield the lines of CSV."""
    yield columns(grid)
    yield from lines(grid)


def _about(grid: Grid) -> Iterator[Line]:
    question, window = grid.question, grid.question.window
    yield ("measure", "unit")
    for measure in question.measures:
        unit = f"{measure.unit} ({question.score})" if measure.scored else measure.unit
        yield (measure.title, unit)
    if window is not None:
        yield ("from", f"{window.start:%Y-%m-%d %H:%M}")
        yield ("to, not included", f"{window.stop:%Y-%m-%d %H:%M}")
    yield ("time zone", question.zone)
    yield from question.filters
