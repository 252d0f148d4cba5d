"""Turn the store's sums into rows, bins and totals that add up, and find bins that a report covers only in part."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from fractions import Fraction
from functools import cached_property
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from auditord.reporting.measures import EFFICIENCY, MOST_EFFICIENT, UNKNOWN, Exact, Figure, Measure, Sums
from auditord.reporting.questions import SIZE, Question
from auditord_hookspecs.aggregates import Aggregates, CalendarUnit, Group, LakeSnapshot, nearest_float
from auditord_hookspecs.vocabulary import QUANTITIES
from auditord_hookspecs.zones import zone_named

Label: TypeAlias = str | None
"""The value that all records of a row have in common; None for records without one."""

Cell: TypeAlias = tuple[Figure, ...]
"""One figure for each measure of the question."""

Vector: TypeAlias = Sequence[Exact]
"""The sums behind figures, which can be added up; see :class:`Vectors`."""

_NOTHING: Final = Figure()

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)

_SUMS: Final = 4
"""The sums of each component in a vector."""

_ZERO: Final = frozenset([each.name for each in QUANTITIES.values() if each.absent_is_zero])
"""The quantities that are zero for a record without the component."""


@dataclass(frozen=True)
class Vectors:
    """Converts the sums of one question to vectors, and vectors to figures.

    A vector contains the number of records, their runtime and, for each component, the amount, amount times runtime,
    amount times score times runtime, and a positive number if it is known. If a measure needs the CPU time, the same
    follows for the records that have both cores and a CPU time.
    """

    question: Question
    ticks_per_second: int

    @cached_property
    def names(self) -> Sequence[str]:
        """The names of the components."""
        return [usage.component for usage in self.question.query().usage]

    @cached_property
    def are_double(self) -> bool:
        """True if vectors also contain the sums over only the records with cores and a CPU time."""
        return self.question.needs_cpu_time

    @property
    def nothing(self) -> Vector:
        """The sums over no records."""
        return [0] * ((2 + _SUMS * len(self.names)) * (2 if self.are_double else 1))

    def by_label(self, answer: Aggregates) -> "Mapping[Label, Cells]":
        """Return the cells of an answer by row, unordered."""
        sums: defaultdict[Label, dict[date | None, Vector]] = defaultdict(dict)
        for group in answer.groups:
            begin, label, has_cpu_time = _key(self.question, group, has_presence=self.are_double)
            vector, by_bin = self.of(group, has_cpu_time=has_cpu_time), sums[label]
            by_bin[begin] = added([by_bin[begin], vector]) if begin in by_bin else vector
        return {label: Cells(self, by_bin) for label, by_bin in sums.items()}

    def of(self, group: Group, *, has_cpu_time: bool) -> Vector:
        """Return the vector of a group of the answer."""
        found: list[Exact] = [group.records, group.runtime]
        for usage in group.usage:
            scored = [Fraction(sums.amount_runtime) for sums in usage.scores.values()]
            found += (usage.sums.amount, usage.sums.amount_runtime, scored[0] if scored else 0, int(usage.known))
        if self.are_double:
            found += found if has_cpu_time else [0] * len(found)
        return found

    def cell(self, vector: Vector) -> Cell:
        """Return the figures of a vector."""
        every = self._sums(vector, has_records=vector[0] > 0)
        counted = self._sums(vector[len(vector) // 2 :], has_records=vector[0] > 0) if self.are_double else every
        return tuple(measure.figure(counted if measure.needs_cpu_time else every) for measure in self.question.measures)

    def _sums(self, vector: Vector, *, has_records: bool) -> Sums:
        amounts, products, scored, known = (
            dict(zip(self.names, vector[at::_SUMS][: len(self.names)], strict=True)) for at in range(2, 2 + _SUMS)
        )
        unknown = {name for name, number in known.items() if has_records and not number and name not in _ZERO}
        intensity = self.question.co2_per_kwh or Fraction(0)
        return Sums(vector[0], vector[1], amounts, products, scored, unknown, self.ticks_per_second, intensity)


class Cells(Mapping[date | None, Cell]):
    """Cells by bin, computed from their sums on access: most cells of a long report are never shown."""

    def __init__(self, vectors: Vectors, sums: Mapping[date | None, Vector]) -> None:
        self._vectors = vectors
        self._sums = sums
        self._known: dict[date | None, Cell] = {}

    def __getitem__(self, begin: date | None) -> Cell:
        if begin not in self._known:
            self._known[begin] = self._vectors.cell(self._sums[begin])
        return self._known[begin]

    def __iter__(self) -> Iterator[date | None]:
        return iter(self._sums)

    def __len__(self) -> int:
        return len(self._sums)

    def __contains__(self, begin: object) -> bool:
        return begin in self._sums

    def total(self) -> Cell:
        """Return the figures over all bins."""
        return self._vectors.cell(self.sum_up())

    def sum_up(self) -> Vector:
        """Return the sums over all bins."""
        return added([self._vectors.nothing, *self._sums.values()])

    @staticmethod
    def join(vectors: Vectors, several: Iterable["Cells"]) -> "Cells":
        """Return the sums of the cells of several rows."""
        by_bin: defaultdict[date | None, list[Vector]] = defaultdict(list)
        for each in several:
            for begin, sums in each._sums.items():  # noqa: SLF001 of its own class
                by_bin[begin].append(sums)
        return Cells(vectors, {begin: added(sums) for begin, sums in by_bin.items()})

    def subtract(self, several: Iterable["Cells"]) -> "Cells":
        """Return the sums minus the cells of several rows."""
        known = Cells.join(self._vectors, several)._sums  # noqa: SLF001 of its own class
        left = {
            begin: [number - other for number, other in zip(sums, known.get(begin, self._vectors.nothing), strict=True)]
            for begin, sums in self._sums.items()
        }
        for sums in left.values():
            for begin in (0, len(sums) // 2) if self._vectors.are_double else (0,):
                for at in range(begin + 2, begin + 2 + _SUMS * len(self._vectors.names), _SUMS):
                    sums[at + 3] = int(bool(sums[at] or sums[at + 1]))  # differences of flags mean nothing
        return Cells(self._vectors, {begin: sums for begin, sums in left.items() if sums[0] > 0})


class Row(msgspec.Struct, frozen=True):
    """The usage of one site, group, user or other value of the question's dimension.

    Args:
        cells: by bin; bins without records are missing.
        total: over all bins.
    """

    label: Label
    cells: Cells
    total: Cell


class Report(msgspec.Struct, frozen=True):
    """All rows, the largest first.

    Args:
        bins: first days, without gaps; none if the question has no bin.
        rows: ordered by the first measure; one row with the label None if the question has no group.
        totals: over all rows, by bin.
        total: over all rows and bins.
        vectors: converts the sums behind the figures.
        others: the rows that are combined into one, and their number.
        snapshot: the lake's snapshot, if the lake was queried.
    """

    question: Question
    bins: tuple[date, ...]
    rows: tuple[Row, ...]
    totals: Cells
    total: Cell
    vectors: Vectors
    others: tuple[Row, int] | None = None
    snapshot: LakeSnapshot | None = None

    def largest(self, most: int) -> tuple[tuple[Row, ...], Row | None, int]:
        """Return the largest rows, the sum of all others as one row, and the number of others."""
        row, count = self.others or (None, 0)
        rest = [*self.rows[most:], *([] if row is None else [row])]
        if not rest:
            return self.rows, None, 0
        cells = Cells.join(self.vectors, [row.cells for row in rest])
        return self.rows[:most], Row(None, cells, cells.total()), len(self.rows[most:]) + count

    @property
    def row_count(self) -> int:
        """The number of rows, including the combined ones."""
        return len(self.rows) + (0 if self.others is None else self.others[1])

    def shorten(self, most: int) -> "Report":
        """Return the report with its largest rows, and all others combined into one row."""
        rows, rest, count = self.largest(most)
        return replace(self, rows=rows, others=None if rest is None else (rest, count))


def make_report(question: Question, answer: Aggregates) -> Report:
    """Build the report from the store's sums."""
    vectors = Vectors(question, answer.ticks_per_second)
    every = vectors.by_label(answer)
    rows = [Row(label, cells, cells.total()) for label, cells in every.items()]
    rows.sort(key=lambda row: place_of(question, row.label, row.total))
    totals = Cells.join(vectors, every.values())
    bins, total = bins_between(question, totals), totals.total()
    return Report(question, bins, tuple(rows), totals, total, vectors, snapshot=answer.snapshot)


def condense(rows: Report, named: Report, totals: Report, most: int) -> Report:
    """Return the bins of the largest rows, and all other rows as one: the totals minus the largest rows.

    Args:
        rows: all rows, without bins.
        named: the bins of the largest rows, and perhaps of others.
        totals: the bins of all rows together.
        most: the number of rows to keep.
    """
    found = {row.label: row for row in named.rows}
    kept = [found[row.label] for row in rows.rows[:most] if row.label in found]
    rest = totals.totals.subtract([row.cells for row in kept])
    others = (Row(None, rest, rest.total()), rows.row_count - len(kept))
    return replace(named, bins=totals.bins, rows=tuple(kept), totals=totals.totals, total=totals.total, others=others)


def remarks(question: Question, cells: Iterable[Cell]) -> list[str]:
    """Return a remark for each measure that has no value in one of the cells, since records lack a component."""
    found = list(cells)
    return [
        measure.remark(question.score)
        for at, measure in enumerate(question.measures)
        if measure.components and any(cell[at].value is None for cell in found)
    ]


def has_implausible(report: Report) -> bool:
    """Return whether a row has an implausible efficiency, because CPU times are wrong."""
    at = next((at for at, measure in enumerate(report.question.measures) if measure.name == EFFICIENCY), None)
    return at is not None and any((row.total[at].value or 0) > MOST_EFFICIENT for row in report.rows)


def place_of(question: Question, label: Label, total: Cell) -> tuple[float, str]:
    """Return the sort key of a row: the largest comes first, but job sizes in their order."""
    if question.by == SIZE:
        smallest = -1 if label is None else int(label.rstrip("+").split("-")[0])
        return smallest, ""
    return -nearest_float(total[0].value or Fraction(0)), label or ""  # comparing fractions takes ten times as long


def zero(measures: Sequence[Measure]) -> Cell:
    """Return the figures of no records."""
    return tuple(UNKNOWN if measure.ratio else _NOTHING for measure in measures)


def _key(question: Question, group: Group, *, has_presence: bool) -> tuple[date | None, Label, bool]:
    values = list(group.key)
    counts = all([values.pop(), values.pop()]) if has_presence else True
    value = values.pop() if question.by is not None else None
    begin = values.pop() if question.bin is not None else None
    if question.by == SIZE and value is not None:
        value = _size_class(int(str(value)))
    return (begin if isinstance(begin, date) else None), (None if value is None else str(value)), counts


def added(vectors: Sequence[Vector]) -> Vector:
    """Return the sum of vectors."""
    return vectors[0] if len(vectors) == 1 else [sum(column) for column in zip(*vectors, strict=True)]


def bins_between(question: Question, cells: Iterable[date | None]) -> tuple[date, ...]:
    """Return all bins from the first to the last that has records, including empty ones."""
    if question.bin is None:
        return ()
    known = sorted(begin for begin in cells if begin is not None)
    found: list[date] = []
    while known and (not found or found[-1] < known[-1]):
        found.append(known[0] if not found else question.bin.next_first_day(found[-1]))
    return tuple(found)


def _size_class(cores: int) -> str:
    """Return the class of a number of cores: 1, 2, 3-4, 5-8 and so on."""
    before = 0
    for limit in _SIZES:
        if cores <= limit:
            return str(limit) if before + 1 >= limit else f"{before + 1}-{limit}"
        before = limit
    return f"{_SIZES[-1] + 1}+"


_MOMENT = timedelta(microseconds=1)


class Part(msgspec.Struct, frozen=True):
    """The days of a bin that a report covers.

    Args:
        first: None if the report covers the bin from its beginning.
        last: None if the report covers the bin to its end.
    """

    first: date | None
    last: date | None

    def __str__(self) -> str:
        return self.text(iso=True)

    def text(self, *, iso: bool = False) -> str:
        """Return the days in words, such as ``from 29 Oct``; in ISO 8601, ``from 2026-10-29``."""
        first, last = (
            None if day is None else day.isoformat() if iso else f"{day.day} {day:%b}"
            for day in (self.first, self.last)
        )
        if first is not None and last is not None:
            return first if first == last else f"{first} to {last}"
        return f"to {last}" if first is None else f"from {first}"


def part_of(question: Question, begin: date) -> Part | None:
    """Return the days that a report covers of the bin that begins on this day; None if it covers all of them.

    Bins of one day are never partial.
    """
    unit, window = question.bin, question.window
    if unit is None or unit is CalendarUnit.DAY or window is None:
        return None
    zone, end = zone_named(question.zone), unit.next_first_day(begin)
    start, stop = (moment.astimezone(zone).replace(tzinfo=None) for moment in (window.start, window.stop))
    first = start.date() if start > datetime.combine(begin, time.min) else None
    last = (stop - _MOMENT).date() if stop < datetime.combine(end, time.min) else None
    if question.now is not None:
        today = question.now.astimezone(zone).date()
        if begin <= today < end - timedelta(days=1) and (last is None or today < last):
            last = today
    return None if first is last is None else Part(first, last)


def parts_of(question: Question, bins: Iterable[date]) -> dict[date, Part]:
    """Return the bins that a report covers only in part."""
    found = ((begin, part_of(question, begin)) for begin in bins)
    return {begin: part for begin, part in found if part is not None}
