"""The figures of a report as files have them: numbers, by row and bin.

A cell of a :class:`Report` weighs half a kilobyte, since it can still be added up; a number weighs a twentieth of that.
A :class:`Gathering` turns a long report into numbers one part of its period after the other.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from auditord.reporting.measures import Figure
from auditord.reporting.questions import Question
from auditord.reporting.report import (
    Cell,
    Cells,
    Label,
    Report,
    Vector,
    Vectors,
    added,
    bins_between,
    place_of,
)
from auditord_hookspecs.aggregates import Aggregates

Number: TypeAlias = int | float | None
Numbers: TypeAlias = Sequence[Number]
"""One number for each measure."""

_MILLION: Final = 10**6


class GridRow(msgspec.Struct, frozen=True):
    """The numbers of a row.

    Args:
        label: which row it is.
        total: over all bins.
        cells: one for each bin of the grid, None where the row has no records; of a grid without bins, the total alone.
    """

    label: Label
    total: Numbers
    cells: Sequence[Numbers | None]


class Grid(msgspec.Struct, frozen=True):
    """All numbers of a report.

    Args:
        question: that was asked.
        bins: first days, without gaps; none if the question has no bin.
        rows: in their order; made when they are asked for.
        totals: over all rows, as a row of its own.
    """

    question: Question
    bins: Sequence[date]
    rows: Iterable[GridRow]
    totals: GridRow


def numbers(cell: Cell) -> Numbers:
    """Return the figures of a cell as in JSON."""
    return tuple(map(number, cell))


def number(figure: Figure) -> Number:
    """Return a figure as in JSON, with six decimals; None for a ratio without a denominator."""
    value = figure.value
    if value is None:
        return None
    rounded = round(value * _MILLION)  # a whole number of millionths
    return rounded // _MILLION if rounded % _MILLION == 0 else rounded / _MILLION


def grid_of(report: Report) -> Grid:
    """Return the numbers of a complete report."""
    places: Sequence[date | None] = report.bins or (None,)

    def row(label: Label, cells: Mapping[date | None, Cell], total: Cell) -> GridRow:
        return GridRow(label, numbers(total), [numbers(cells[each]) if each in cells else None for each in places])

    rows = (row(each.label, each.cells, each.total) for each in report.rows)
    return Grid(report.question, report.bins, rows, row(None, report.totals, report.total))


class _Missing(Enum):
    """In the place of a cell without records; None is the ratio of nothing."""

    CELL = "cell"


class Gathering:
    """The numbers of a report whose answers come in for one part of its period after the other.

    Args:
        question: about the whole period.
    """

    def __init__(self, question: Question) -> None:
        self._question = question
        self._vectors = Vectors(question, question.query().ticks_per_second)
        self._places: dict[date | None, int] = {}
        self._lines: dict[Label, _Line] = {}
        self._totals = _Line()

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of rows and bins until now."""
        return len(self._lines), max(1, len(bins_between(self._question, self._places)))

    def add(self, answer: Aggregates) -> None:
        """Add the sums of some bins; no other answer covers these bins."""
        by_label = self._vectors.by_label(answer)
        totals = Cells.joined(self._vectors, by_label.values())
        for begin in totals:
            self._places[begin] = len(self._places)
        self._totals.add(totals, self._places)
        for label, cells in by_label.items():
            self._lines.setdefault(label, _Line()).add(cells, self._places)

    def grid(self) -> Grid:
        """Return all that came in."""
        bins = bins_between(self._question, self._places)
        places = [self._places.get(begin) for begin in bins or (None,)]
        totals = {label: self._total(line) for label, line in self._lines.items()}
        ordered = sorted(totals, key=lambda label: place_of(self._question, label, totals[label]))
        rows = (self._lines[label].row(label, numbers(totals[label]), places) for label in ordered)
        total = numbers(self._total(self._totals))
        return Grid(self._question, bins, rows, self._totals.row(None, total, places))

    def _total(self, line: "_Line") -> Cell:
        return self._vectors.cell(added([self._vectors.nothing, *line.sums]))


class _Line:
    """A row as it grows: its numbers in the order in which its bins came in, and the sums over all of them."""

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
        self.sums = (added([*self.sums, cells.summed()]),)

    def row(self, label: Label, total: Numbers, places: Iterable[int | None]) -> GridRow:
        return GridRow(label, total, [None if place is None else self._cell(place, len(total)) for place in places])

    def _cell(self, place: int, width: int) -> Numbers | None:
        found = self._numbers[place * width : (place + 1) * width]
        known = [each for each in found if each is not _Missing.CELL]
        return known or None
