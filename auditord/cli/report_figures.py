"""Figures and rows of a report as people read them, in tables and charts."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from auditord.reporting import Figure, Measure, Report, Row
from auditord.reporting.writing import text

_NO_LABEL: Final = "(none)"
_ALL: Final = "all"
_WITHOUT_DIGITS: Final = 1_000


def shown(figure: Figure, measure: Measure) -> str:
    """A figure for people."""
    value = figure.value
    return "-" if value is None else text(value, _digits(value, measure))


def _digits(value: Fraction, measure: Measure) -> int:
    """Digits behind the point: what a glance takes in, and never a zero for something."""
    if not measure.unit or abs(value) >= _WITHOUT_DIGITS or not value:
        return 0
    return 1 if abs(value) >= 1 else 3


def largest(report: Report, most: int) -> Sequence[tuple[str, Row]]:
    """The largest rows with their names, at most ``most`` of them, and one row that sums up the others."""
    rows, rest, count = report.largest(most)
    named = [(_ALL if report.question.by is None else row.label or _NO_LABEL, row) for row in rows]
    return named if rest is None else [*named, (f"{count} more", rest)]


def period(report: Report) -> str:
    """The period of a report, behind a comma."""
    window = report.question.window
    span = "" if window is None else f", {window.start:%Y-%m-%d %H:%M} to {window.stop:%Y-%m-%d %H:%M}"
    return f"{span} {report.question.zone}" if span else ""
