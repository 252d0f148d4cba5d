"""Reports as bars on the terminal."""

from collections.abc import Mapping
from datetime import date
from fractions import Fraction
from typing import Final

from rich.console import Console
from rich.text import Text

from auditord.cli.report_figures import largest, period, shown
from auditord.reporting import Figure, Measure, Report
from auditord.reporting.bins import parts_of
from auditord_hookspecs.terminal import escaped

_ROWS: Final = 6
_WIDTH: Final = 100
_COLOURS: Final = ("blue", "yellow", "green", "red", "cyan", "magenta", "white")
_SHADES: Final = "█▓▒░#=+"
"""Beside the colours, so that rows can be told apart without them."""


def print_chart(report: Report, most: int | None) -> None:
    """Print bars: one for each bin, stacked by row; of a report without bins, one for each row."""
    measure = report.question.measures[0]
    console = Console(highlight=False, markup=False)
    console.width = min(console.width, _WIDTH)
    console.print(Text(f"{measure.title}{f' ({measure.unit})' if measure.unit else ''}{period(report)}", "bold"))
    if report.bins and not measure.ratio:
        _print_bins(console, report, measure)
    else:
        _print_rows(console, report, measure, most)


def _print_bins(console: Console, report: Report, measure: Measure) -> None:
    series = largest(report, _ROWS)
    sums = {begin: _value(report.totals, begin) for begin in report.bins}
    parts = {begin: f" ({part.text()})" for begin, part in parts_of(report.question, report.bins).items()}
    width = console.width - 26 - max(map(len, parts.values()), default=0)
    longest = max(sums.values()) or Fraction(1)
    for begin in report.bins:
        bar = Text(f"{begin.isoformat()}  ")
        reached, drawn = Fraction(0), 0
        for at, (_, row) in enumerate(series):
            reached += _value(row.cells, begin)
            until = round(width * reached / longest)
            bar.append(_SHADES[at] * (until - drawn), _COLOURS[at])
            drawn = max(drawn, until)
        bar.append(f" {shown(Figure(sums[begin]), measure)}{parts.get(begin, '')}")
        console.print(bar, overflow="crop", no_wrap=True)
    for at, (name, row) in enumerate(series):
        legend = Text(f"{_SHADES[at] * 2} ", _COLOURS[at]).append(f"{escaped(name)} ", "default")
        console.print(legend.append(shown(row.total[0], measure), "default"))


def _print_rows(console: Console, report: Report, measure: Measure, most: int | None) -> None:
    named = [(escaped(name), row) for name, row in largest(report, most or 20)]
    label = min(max(len(name) for name, _ in named), 24)
    longest = max(row.total[0].value or Fraction(0) for _, row in named) or Fraction(1)
    for name, row in named:
        length = max(round((console.width - label - 18) * (row.total[0].value or Fraction(0)) / longest), 0)
        line = Text(f"{name[:label]:<{label}}  ").append(_SHADES[0] * length, _COLOURS[0])
        console.print(line.append(f" {shown(row.total[0], measure)}", "default"), overflow="crop", no_wrap=True)


def _value(cells: Mapping[date | None, tuple[Figure, ...]], begin: date) -> Fraction:
    return (cells[begin][0].value or Fraction(0)) if begin in cells else Fraction(0)
