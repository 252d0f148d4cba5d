"""The answer to a question for usage: rows, bins and totals, which add up."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from functools import reduce
from typing import Final, TypeAlias

from auditord.reporting.measures import Figure, Measure, Sums
from auditord.reporting.questions import SIZE, Question
from auditord_hookspecs.aggregates import Aggregates, CalendarUnit, Group

Label: TypeAlias = str | None
"""The value that a row is about; None for records that have none."""

Cell: TypeAlias = tuple[Figure, ...]
"""One figure for each measure of the question."""

_NOTHING: Final = Figure()
_NO_RATIO: Final = Figure(base=Fraction(0))

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)

_LONGER_THAN: Final[Mapping[CalendarUnit, int]] = {
    CalendarUnit.DAY: 1,
    CalendarUnit.WEEK: 7,
    CalendarUnit.MONTH: 31,
    CalendarUnit.QUARTER: 92,
    CalendarUnit.YEAR: 366,
}
"""Days that lead from the first day of any bin into the next one."""


@dataclass(frozen=True, slots=True)
class Row:
    """The usage of one site, group, user or whatever the question groups by.

    Args:
        label: which.
        cells: by bin; a bin without records is not there.
        total: over all bins.
    """

    label: Label
    cells: Mapping[date | None, Cell]
    total: Cell


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, the largest first.

    Args:
        question: that was asked.
        bins: first days, without gaps; none if the question has no bin.
        rows: ordered by the first measure; of one row with the label None if the question has no group.
        totals: over all rows, by bin.
        total: over everything.
    """

    question: Question
    bins: tuple[date, ...]
    rows: tuple[Row, ...]
    totals: Mapping[date | None, Cell]
    total: Cell

    def largest(self, most: int) -> tuple[tuple[Row, ...], Row | None, int]:
        """The first rows, all others as one row, and how many these are."""
        if len(self.rows) <= most:
            return self.rows, None, 0
        rest = self.rows[most:]
        return self.rows[:most], _joined(rest, self.question.measures), len(rest)


def make_report(question: Question, answer: Aggregates) -> Report:
    """Put the store's sums together."""
    measures = question.measures
    names = [usage.component for usage in question.query().usage]
    cells: defaultdict[Label, dict[date | None, Cell]] = defaultdict(dict)
    for group in answer.groups:
        begin, label, counts = _key(question, group)
        sums = Sums(
            group.records,
            group.runtime,
            dict(zip(names, group.usage, strict=True)),
            answer.ticks_per_second,
            question.co2_per_kwh or Fraction(0),
        )
        cell = _cell(measures, sums, with_cpu_time=counts)
        known = cells[label].get(begin)
        cells[label][begin] = cell if known is None else _added(known, cell)
    rows = [Row(label, by_bin, _sum(list(by_bin.values()), measures)) for label, by_bin in cells.items()]
    if question.by == SIZE:
        rows.sort(key=lambda row: _smallest(row.label))
    else:
        rows.sort(key=lambda row: (-(row.total[0].value or 0), row.label or ""))
    every = _joined(rows, measures)
    return Report(question, _bins(question, every.cells), tuple(rows), every.cells, every.total)


def zero(measures: Sequence[Measure]) -> Cell:
    """The figures of no records."""
    return tuple(map(_nothing, measures))


def _nothing(measure: Measure) -> Figure:
    return _NO_RATIO if measure.ratio else _NOTHING


def following(first: date, unit: CalendarUnit) -> date:
    """The first day of the next bin."""
    return unit.first_day(first + timedelta(days=_LONGER_THAN[unit]))


def _key(question: Question, group: Group) -> tuple[date | None, Label, bool]:
    values = list(group.key)
    counts = bool(values.pop()) if question.needs_cpu_time else True
    value = values.pop() if question.by is not None else None
    begin = values.pop() if question.bin is not None else None
    if question.by == SIZE and value is not None:
        value = _size_class(int(str(value)))
    return (begin if isinstance(begin, date) else None), (None if value is None else str(value)), counts


def _cell(measures: Sequence[Measure], sums: Sums, *, with_cpu_time: bool) -> Cell:
    return tuple(
        measure.compute(sums) if with_cpu_time or not measure.needs_cpu_time else _nothing(measure)
        for measure in measures
    )


def _added(one: Cell, other: Cell) -> Cell:
    return tuple(first + second for first, second in zip(one, other, strict=True))


def _sum(cells: Sequence[Cell], measures: Sequence[Measure]) -> Cell:
    return reduce(_added, cells) if cells else zero(measures)


def _joined(rows: Sequence[Row], measures: Sequence[Measure]) -> Row:
    cells: dict[date | None, Cell] = {}
    for row in rows:
        for begin, cell in row.cells.items():
            known = cells.get(begin)
            cells[begin] = cell if known is None else _added(known, cell)
    return Row(None, cells, _sum(list(cells.values()), measures))


def _bins(question: Question, cells: Mapping[date | None, Cell]) -> tuple[date, ...]:
    """From the first bin that has records to the last, those without any included."""
    if question.bin is None:
        return ()
    known = sorted(begin for begin in cells if begin is not None)
    found: list[date] = []
    while known and (not found or found[-1] < known[-1]):
        found.append(known[0] if not found else following(found[-1], question.bin))
    return tuple(found)


def _size_class(cores: int) -> str:
    """The class of a number of cores: 1, 2, 3-4, 5-8 and so on."""
    before = 0
    for limit in _SIZES:
        if cores <= limit:
            return str(limit) if before + 1 >= limit else f"{before + 1}-{limit}"
        before = limit
    return f"{_SIZES[-1] + 1}+"


def _smallest(label: Label) -> int:
    return -1 if label is None else int(label.rstrip("+").split("-")[0])
