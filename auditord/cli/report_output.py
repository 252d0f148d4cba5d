"""Reports on the terminal and in files: table, chart, CSV, JSON and Parquet."""

import io
import sys
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from typing import BinaryIO, Final, TypeAlias

from auditord.cli.report_figures import largest, period, shown
from auditord.cli.report_options import Answered
from auditord.cli.tables import Table, new_table, print_table
from auditord.reporting import Report, Row
from auditord.reporting.bins import parts_of
from auditord.reporting.grid import Grid, grid_of
from auditord.reporting.pledges import pledged
from auditord.reporting.report import zero
from auditord.reporting.workbook import write_xlsx
from auditord.reporting.writing import csv_pieces, json_pieces, text, write_parquet
from auditord_hookspecs.terminal import escaped, say, write

ReportOutput: TypeAlias = Callable[[Answered, int | None], None]

_COLUMNS: Final = 5


def write_table(answered: Answered, most: int | None) -> None:
    """Rows by bins for one measure; otherwise rows by measures."""
    report = answered.report
    measure = report.question.measures[0]
    single = len(report.question.measures) == 1
    table = _by_bins(report) if single and report.bins else _by_measures(report, most)
    for column in table.columns[1:]:
        column.right = True
    if not report.rows:
        say("no record stopped in this period", err=True)
        return
    print_table(table)
    unit = f"{measure.title} ({measure.unit})" if measure.unit else measure.title
    say(f"{unit if single else 'Totals are over all rows'}{period(report)}", err=True)
    _write_pledge(answered)


def _write_pledge(answered: Answered) -> None:
    question = answered.report.question
    amount = None if question.window is None else pledged(answered.pledges, question, question.window)
    if amount:
        share = 100 * (answered.report.total[0].value or Fraction(0)) / amount
        say(f"Pledge {text(amount)} {question.measures[0].unit}: {text(share, 1)} % used", err=True)


def _by_bins(report: Report) -> Table:
    """One line for each bin, so that a year fits 80 columns."""
    measure = report.question.measures[0]
    named = largest(report, _COLUMNS)
    totals = [Row(None, report.totals, report.total)] if len(report.rows) > 1 else []
    unit = report.question.bin
    table = new_table(unit.value if unit else "", *(escaped(name) for name, _ in named), *("total" for _ in totals))
    columns = [row for _, row in named] + totals
    nothing, parts = zero(report.question.measures), parts_of(report.question, report.bins)
    for begin in report.bins:
        name = f"{begin}, {parts[begin].text()}" if begin in parts else begin.isoformat()
        table.add_row(name, *(shown(row.cells.get(begin, nothing)[0], measure) for row in columns))
    table.add_row("total", *(shown(row.total[0], measure) for row in columns), bold=True)
    return table


def _by_measures(report: Report, most: int | None) -> Table:
    measures = report.question.measures
    titles = [f"{each.title} ({each.unit})" if each.unit == "%" else each.title for each in measures]
    table = new_table(report.question.by or "", *titles)
    for name, row in largest(report, len(report.rows) if most is None else most):
        table.add_row(name, *map(shown, row.total, measures))
    if len(report.rows) > 1:
        table.add_row("total", *map(shown, report.total, measures), bold=True)
    return table


def write_chart(answered: Answered, most: int | None) -> None:
    """Bars; see :func:`auditord.cli.report_chart.print_chart`."""
    if not answered.report.rows:
        say("no record stopped in this period", err=True)
        return
    from auditord.cli.report_chart import print_chart  # noqa: PLC0415 rich, for colours

    print_chart(answered.report, most)
    _write_pledge(answered)


def _write_text(pieces: Callable[[Grid], Iterator[str]], answered: Answered, _most: int | None) -> None:
    for piece in pieces(grid_of(answered.report)):
        write(piece)


def _write_file(
    form: str, steps: Callable[[Grid, BinaryIO], Iterator[None]], answered: Answered, _most: int | None
) -> None:
    """A file on standard output, unless that is a terminal."""
    if sys.stdout.isatty():
        say(f"{form} is not for a terminal: write > usage.{form}", err=True)
        raise SystemExit(2)
    out = io.BytesIO()
    for _ in steps(grid_of(answered.report), out):
        pass
    sys.stdout.buffer.write(out.getbuffer())


OUTPUTS: Final[Mapping[str, ReportOutput]] = {
    "table": write_table,
    "chart": write_chart,
    "csv": partial(_write_text, csv_pieces),
    "json": partial(_write_text, json_pieces),
    "parquet": partial(_write_file, "parquet", write_parquet),
    "xlsx": partial(_write_file, "xlsx", write_xlsx),
}
