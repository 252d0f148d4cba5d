"""Turn the store's sums into rows, bins and totals that add up, and lay out the bins as a time axis."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from auditord.reporting.measures import EFFICIENCY, MOST_EFFICIENT, UNKNOWN, Figure, Measure, Sums
from auditord.reporting.questions import SIZE, Question
from auditord_hookspecs.aggregates import Aggregates, CalendarUnit, Group, KeyValue, LakeSnapshot, nearest_float
from auditord_hookspecs.vocabulary import QUANTITIES
from auditord_hookspecs.zones import zone_named

Label: TypeAlias = str | None
"""A value that all records of a row have in common; None for records without one."""

Labels: TypeAlias = tuple[Label, ...]
"""The labels of a row: one for each group of the question."""

Cell: TypeAlias = tuple[Figure, ...]
"""One figure for each measure of the question."""

Vector: TypeAlias = Sequence[Any]  # Any: integers, fractions, a set of users
"""The sums behind figures, which can be added up; see :class:`Vectors`."""

_NOTHING: Final = Figure()

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)

_HEAD: Final = 3
"""The numbers of a vector before those of its components."""

_SUMS: Final = 4
"""The sums of each component in a vector."""

_ZERO: Final = frozenset([each.name for each in QUANTITIES.values() if each.absent_is_zero])
"""The quantities that are zero for a record without the component."""


@dataclass(frozen=True)
class Vectors:
    """Converts the sums of one question to vectors, and vectors to figures.

    A vector contains the number of records, their runtime, the set of their users (0 unless they are counted) and, for
    each component, the amount, amount times runtime, amount times score times runtime, and a positive number if it is
    known. The same follows for each of :attr:`parts`.
    """

    question: Question
    ticks_per_second: int

    @cached_property
    def names(self) -> Sequence[str]:
        """The names of the components."""
        return tuple(self.question.usage)

    @cached_property
    def parts(self) -> Sequence[tuple[str, ...]]:
        """The parts of the records that measures count: those with all of these components. All records come first."""
        return list(dict.fromkeys([(), *(measure.present for measure in self.question.measures)]))

    @cached_property
    def width(self) -> int:
        """The numbers of a vector for each part."""
        return _HEAD + _SUMS * len(self.names)

    @cached_property
    def nothing(self) -> Vector:
        """The sums over no records."""
        sums = [0] * (self.width - _HEAD)
        return [0, 0, frozenset[str]() if self.question.counts_users else 0, *sums] * len(self.parts)

    def by_labels(self, answer: Aggregates) -> "Mapping[Labels, Cells]":
        """Return the cells of an answer by row, unordered."""
        sums: defaultdict[Labels, defaultdict[date | None, list[Vector]]] = defaultdict(lambda: defaultdict(list))
        for group in answer.groups:
            values = iter(group.key)  # the user and the presence of components come last
            begin = next(values) if self.question.bin is not None else None
            labels = [_label_of(name, value) for name, value in zip(self.question.groups, values, strict=False)]
            sums[tuple(labels)][begin if isinstance(begin, date) else None].append(self.of(group))
        return {
            labels: Cells(self, {begin: added(vectors) for begin, vectors in by_bin.items()})
            for labels, by_bin in sums.items()
        }

    def of(self, group: Group) -> Vector:
        """Return the vector of a group of the answer."""
        found: list[Any] = [group.records, group.runtime, 0]
        behind = len(group.key) - len(self.question.present)
        if self.question.counts_users:
            user = group.key[behind - 1]
            found[2] = frozenset(() if user is None else (str(user),))
        for usage in group.usage:
            scored = [Fraction(sums.amount_runtime) for sums in usage.scores.values()]
            found += (usage.sums.amount, usage.sums.amount_runtime, scored[0] if scored else 0, int(usage.known))
        has = dict(zip(self.question.present, group.key[behind:], strict=True))
        blank = self.nothing[: self.width]
        return [number for part in self.parts for number in (found if all(map(has.get, part)) else blank)]

    def cell(self, vector: Vector) -> Cell:
        """Return the figures of a vector."""
        sums = {part: self._sums(vector, at * self.width) for at, part in enumerate(self.parts)}
        return tuple([measure.figure(sums[measure.present]) for measure in self.question.measures])

    def _sums(self, vector: Vector, begin: int) -> Sums:
        records, runtime, users, *rest = vector[begin : begin + self.width]
        amounts, products, scored, known = (dict(zip(self.names, rest[at::_SUMS], strict=True)) for at in range(_SUMS))
        unknown = {name for name, number in known.items() if vector[0] and not number and name not in _ZERO}
        intensity = self.question.co2_per_kwh or Fraction(0)
        count = len(users) if users else 0  # 0 stands for no set
        return Sums(records, runtime, amounts, products, scored, unknown, self.ticks_per_second, intensity, count)


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
            width = self._vectors.width
            for begin in range(0, len(sums), width):
                for at in range(begin + _HEAD, begin + width, _SUMS):
                    sums[at + 3] = int(bool(sums[at] or sums[at + 1]))  # differences of flags mean nothing
        return Cells(self._vectors, {begin: sums for begin, sums in left.items() if sums[0] > 0})


class Row(msgspec.Struct, frozen=True):
    """The usage of one site, group, user or other value of the question's groups.

    Args:
        labels: one for each group.
        cells: by bin; bins without records are missing.
        total: over all bins.
    """

    labels: Labels
    cells: Cells
    total: Cell

    @property
    def label(self) -> Label:
        """The label of the first group; None without groups."""
        return self.labels[0] if self.labels else None

    @property
    def name(self) -> str:
        """The labels as people read them; empty without groups."""
        return " · ".join([each or "(none)" for each in self.labels])


class Report(msgspec.Struct, frozen=True):
    """All rows, the largest first.

    Args:
        bins: first days, without gaps; none if the question has no bin.
        rows: ordered by the first measure; one row without labels if the question has no group.
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
        return self.rows[:most], Row((), cells, cells.total()), len(self.rows[most:]) + count

    @property
    def whole(self) -> Row:
        """All rows together, as one row without labels."""
        return Row((), self.totals, self.total)

    @property
    def row_count(self) -> int:
        """The number of rows, including the combined ones."""
        return len(self.rows) + (0 if self.others is None else self.others[1])

    def shorten(self, most: int) -> "Report":
        """Return the report with its largest rows, and all others combined into one row."""
        rows, rest, count = self.largest(most)
        return replace(self, rows=rows, others=None if rest is None else (rest, count))


def make_report(question: Question, answer: Aggregates, most: int | None = None) -> Report:
    """Build the report from the store's sums. If it has more than ``most`` rows, the others are combined into one."""
    vectors = Vectors(question, answer.ticks_per_second)
    every = vectors.by_labels(answer)
    rows = [Row(labels, cells, cells.total()) for labels, cells in every.items()]
    rows.sort(key=lambda row: place_of(question, row.labels, row.total))
    totals = Cells.join(vectors, every.values())
    bins, total = bins_between(question, totals), totals.total()
    report = Report(question, bins, tuple(rows), totals, total, vectors, snapshot=answer.snapshot)
    return report if most is None else report.shorten(most)


def condense(rows: Report, named: Report, totals: Report, most: int) -> Report:
    """Return the bins of the largest rows, and all other rows as one: the totals minus the largest rows.

    Args:
        rows: all rows, without bins.
        named: the bins of the largest rows, and perhaps of others.
        totals: the bins of all rows together.
        most: the number of rows to keep.
    """
    found = {row.labels: row for row in named.rows}
    kept = [found[row.labels] for row in rows.rows[:most] if row.labels in found]
    rest = totals.totals.subtract([row.cells for row in kept])
    others = (Row((), rest, rest.total()), rows.row_count - len(kept))
    return replace(named, bins=totals.bins, rows=tuple(kept), totals=totals.totals, total=totals.total, others=others)


def remarks(question: Question, cells: Iterable[Cell]) -> list[str]:
    """Return a remark for each measure that has no value in one of the cells, since records lack a component."""
    found = list(cells)
    return [
        measure.remark(question.score)
        for at, measure in enumerate(question.measures)
        if measure.components and any(cell[at].value is None for cell in found)
    ]


def missing_labels(report: Report) -> Sequence[str]:
    """Return the meta keys of the groups that no record of the report has."""
    if report.others is not None:
        return ()  # a row that is not listed may have them
    question = report.question
    return [
        question.keys.key(name)
        for at, name in enumerate(question.groups)
        if name != SIZE and report.rows and all(row.labels[at] is None for row in report.rows)
    ]


def explain_empty(report: Report, *, is_filtered: bool) -> str | None:
    """Return why a report has nothing to show for its first measure; None if it has."""
    measure, value = report.question.measures[0], report.total[0].value
    matching = " that matches the filters" if is_filtered else ""
    if not report.rows:
        return f"No record{matching} stopped in this period."
    if value is None:
        needed = measure.needs(report.question.score)
        return f"{measure.title} is unknown: no record of this period{matching} has {needed}."
    return None if value else f"{measure.title} in this period: 0."


def has_implausible(report: Report) -> bool:
    """Return whether a row has an implausible efficiency, because CPU times are wrong."""
    at = next((at for at, measure in enumerate(report.question.measures) if measure.name == EFFICIENCY), None)
    return at is not None and any((row.total[at].value or 0) > MOST_EFFICIENT for row in report.rows)


def limits_of_size(label: str) -> tuple[int, int | None]:
    """Return the least and the most cores of a class of job sizes; None for no limit."""
    least, _, most = label.rstrip("+").partition("-")
    return int(least), None if label.endswith("+") else int(most or least)


def place_of(question: Question, labels: Labels, total: Cell) -> tuple[float, Sequence[str]]:
    """Return the sort key of a row: the largest comes first, but job sizes in their order."""
    if question.groups == (SIZE,):
        (label,) = labels
        return (-1 if label is None else limits_of_size(label)[0]), ()
    largest = -nearest_float(total[0].value or Fraction(0))  # comparing fractions takes ten times as long
    return largest, [label or "" for label in labels]


def zero(measures: Sequence[Measure]) -> Cell:
    """Return the figures of no records."""
    return tuple(UNKNOWN if measure.ratio else _NOTHING for measure in measures)


def _label_of(name: str, value: KeyValue) -> Label:
    """Return the label of a value; for job sizes the class of a number of cores: 1, 2, 3-4, 5-8 and so on."""
    if value is None or name != SIZE:
        return None if value is None else str(value)
    at = bisect_left(_SIZES, int(str(value)))
    if at == len(_SIZES):
        return f"{_SIZES[-1] + 1}+"
    least = _SIZES[at - 1] + 1 if at else 1
    return f"{least}" if least == _SIZES[at] else f"{least}-{_SIZES[at]}"


def added(vectors: Sequence[Vector]) -> Vector:
    """Return the sum of vectors."""
    if len(vectors) == 1:
        return vectors[0]
    return [
        frozenset[str]().union(*column) if isinstance(column[0], frozenset) else sum(column)
        for column in zip(*vectors, strict=True)
    ]


def bins_between(question: Question, cells: Iterable[date | None]) -> tuple[date, ...]:
    """Return all bins from the first to the last that has records, including empty ones."""
    if question.bin is None:
        return ()
    known = sorted(begin for begin in cells if begin is not None)
    found: list[date] = []
    while known and (not found or found[-1] < known[-1]):
        found.append(known[0] if not found else question.bin.next_first_day(found[-1]))
    return tuple(found)


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


def parts_of(question: Question, bins: Iterable[date]) -> dict[date, Part]:
    """Return the bins that a report covers only in part. Bins of one day are never partial."""
    unit, window, parts = question.bin, question.window, dict[date, Part]()
    if unit is None or unit is CalendarUnit.DAY or window is None:
        return parts
    zone = zone_named(question.zone)
    start, stop = (moment.astimezone(zone).replace(tzinfo=None) for moment in (window.start, window.stop))
    today = None if question.now is None else question.now.astimezone(zone).date()
    for begin in bins:
        end = unit.next_first_day(begin)
        first = start.date() if start > datetime.combine(begin, time.min) else None
        last = (stop - _MOMENT).date() if stop < datetime.combine(end, time.min) else None
        if today is not None and begin <= today < end - timedelta(days=1) and (last is None or today < last):
            last = today
        if first is not None or last is not None:
            parts[begin] = Part(first, last)
    return parts


def name_bin(begin: date, unit: CalendarUnit) -> str:
    """Return the name of a bin on an axis: 3 Nov, 2026-W45, Nov 2026, 2026 Q4 or 2026."""
    match unit:
        case CalendarUnit.DAY:
            return f"{begin.day} {begin:%b}"
        case CalendarUnit.WEEK:
            year, week, _ = begin.isocalendar()
            return f"{year}-W{week:02}"
        case CalendarUnit.MONTH:
            return f"{begin:%b %Y}"
        case CalendarUnit.QUARTER:
            return f"{begin.year} Q{(begin.month + 2) // 3}"
        case CalendarUnit.YEAR:
            return str(begin.year)


class TimeAxis(msgspec.Struct, frozen=True):
    """The bins of a report in order, as a chart and a table show them.

    Args:
        begins: their first days.
        ends: the days after their last ones.
        labels: their names, see :func:`name_bin`.
        titles: the same, with the days covered if the report covers only a part.
        partial: the places of bins that the report covers only in part.
    """

    begins: Sequence[date] = ()
    ends: Sequence[date] = ()
    labels: Sequence[str] = ()
    titles: Sequence[str] = ()
    partial: Sequence[int] = ()


def lay_out(question: Question, bins: Sequence[date]) -> TimeAxis:
    """Return the time axis for bins of a question; it is empty if the question has no bins."""
    if (unit := question.bin) is None:
        return TimeAxis()
    parts = parts_of(question, bins)
    labels = [name_bin(begin, unit) for begin in bins]
    titles = [
        f"{label}, {parts[begin].text()}" if begin in parts else label
        for begin, label in zip(bins, labels, strict=True)
    ]
    ends = [unit.next_first_day(begin) for begin in bins]
    return TimeAxis(bins, ends, labels, titles, [at for at, begin in enumerate(bins) if begin in parts])
