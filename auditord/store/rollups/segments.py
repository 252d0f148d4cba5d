"""The cells that answer for some days: years in the middle, months around them, and days at both ends.

Days are those of UTC, unless cells of longer periods are of the dates of a zone
(:mod:`auditord.store.rollups.zone_keys`). Around such months, cells of days in UTC are told apart by the zone's dates.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from auditord.store.rollups.cells import END, FIRST_DAY, Level, first_of_month, first_of_year

Size: TypeAlias = tuple[Level, Callable[[int], int]]
"""The level of cells of all users together, and the first day of the period that a day is in."""

SIZES: Final[Sequence[Size]] = (
    (Level.DAY, lambda day: day),
    (Level.MONTH, first_of_month),
    (Level.YEAR, first_of_year),
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Cells of one level (with a CPU time): periods from ``begin`` on, before ``end``.

    If they are given, only with dates of the key's zone from ``first_date`` on, or before ``end_date``.
    """

    level: int
    begin: int
    end: int
    first_date: int | None = None
    end_date: int | None = None


def segments(begin: int, end: int, sizes: Sequence[Size]) -> Sequence[Segment]:
    """Days, in the middle of them months, and in the middle of these years."""
    (level, first_of), longer = sizes[-1], sizes[:-1]
    first = begin if begin == FIRST_DAY else _next(begin, first_of)
    last = end if end == END else first_of(end)
    if not longer:
        return [Segment(level, begin, end)]
    if first >= last:
        return segments(begin, end, longer)
    before = segments(begin, first, longer) if begin < first else ()
    after = segments(last, end, longer) if last < end else ()
    return [*before, Segment(level, first, last), *after]


def segments_of_dates(begin: int, end: int, sizes: Sequence[Size]) -> Sequence[Segment]:
    """The segments where longer periods than days are of the dates of a zone, which are a day off from UTC at most."""
    first, last = (begin if begin == FIRST_DAY else begin + 1), (end if end == END else end - 1)
    longer = [each for each in segments(first, max(first, last), sizes) if each.level != Level.DAY]
    return [*_around(begin, end, longer), *longer] if longer else segments(begin, end, sizes[:1])


def _around(begin: int, end: int, longer: Sequence[Segment]) -> Iterator[Segment]:
    first, last = longer[0].begin, longer[-1].end
    if begin < first:
        yield Segment(Level.DAY, begin, first + 1, end_date=first)
    if last < end:
        yield Segment(Level.DAY, last - 1, end, first_date=last)


def _next(day: int, first_of: Callable[[int], int]) -> int:
    """The first day of a period, of this one or of the next one."""
    first = first_of(day)
    return day if first == day else first_of(first + (366 if first_of is first_of_year else 31))
