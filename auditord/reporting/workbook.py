"""Reports as workbooks for spreadsheets (XLSX): numbers are numbers, texts are never formulas."""

import io
from collections.abc import Iterator, Sequence
from datetime import date
from importlib import import_module
from typing import Any, Final, TypeAlias

from auditord.reporting.bins import parts_of
from auditord.reporting.report import Report, Row
from auditord.reporting.writing import columns, lines, number

Line: TypeAlias = Sequence[str | float | None]

_NUMBER: Final = "#,##0.00"
_COUNT: Final = "#,##0"
_WIDE: Final = 24
_USUAL: Final = 14


def as_xlsx(report: Report) -> bytes:
    """A sheet of the figures, of one measure with a column for each bin, and a sheet that says of what they are."""
    library = import_module("xlsxwriter")  # when it is asked for
    out = io.BytesIO()
    book = library.Workbook(out, {"in_memory": True})
    table = _by_bins(report) if len(report.question.measures) == 1 else _by_measures(report)
    _write(book, "Usage", table, counts=all(not measure.unit for measure in report.question.measures))
    _write(book, "About", _about(report), counts=True)
    book.close()
    return out.getvalue()


def _write(book: Any, name: str, table: Iterator[Line], *, counts: bool) -> None:  # Any: the library's
    sheet, bold = book.add_worksheet(name), book.add_format({"bold": True})
    figure = book.add_format({"num_format": _COUNT if counts else _NUMBER})
    sheet.set_column(0, 0, _WIDE)
    sheet.set_column(1, 1_000, _USUAL)
    sheet.freeze_panes(1, 1)
    for at, line in enumerate(table):
        for place, value in enumerate(line):
            if isinstance(value, str):
                sheet.write_string(at, place, value, None if at else bold)
            elif value is not None:
                sheet.write_number(at, place, value, figure)


def _by_bins(report: Report) -> Iterator[Line]:
    """A row for each label, with its total and each bin, and one for all."""
    parts = parts_of(report)
    named = (f"{begin} ({parts[begin]})" if begin in parts else begin.isoformat() for begin in report.bins)
    yield (report.question.by or "", "total", *named)
    for row in report.rows:
        yield ((row.label or "") if report.question.by else "all", *_figures(row, report.bins))
    if report.question.by:
        yield ("total", *_figures(Row(None, report.totals, report.total), report.bins))


def _figures(row: Row, bins: Sequence[date]) -> Iterator[float | None]:
    yield number(row.total[0])
    for begin in bins:
        cell = row.cells.get(begin)
        yield None if cell is None else number(cell[0])


def _by_measures(report: Report) -> Iterator[Line]:
    """The lines of CSV."""
    yield columns(report)
    yield from lines(report)


def _about(report: Report) -> Iterator[Line]:
    question, window = report.question, report.question.window
    yield ("measure", "unit")
    for measure in question.measures:
        unit = f"{measure.unit} ({question.score})" if measure.scored else measure.unit
        yield (measure.title, unit)
    if window is not None:
        yield ("from", f"{window.start:%Y-%m-%d %H:%M}")
        yield ("to, not included", f"{window.stop:%Y-%m-%d %H:%M}")
    yield ("time zone", question.zone)
    yield from question.filters
