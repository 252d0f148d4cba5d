"""The cells of roll-ups: sums by day and month, in sets that tell different things apart.

The first set tells sites, groups, users and numbers of cores apart. Each further set tells the values of one key
apart, of all users together: a meta key, or the days of a time zone with a meta key or the number of cores. So the
cells of several keys add up instead of multiplying.

The value of a record under the key of a time zone is by how many days the date that the zone's clocks showed when it
stopped is ahead of that in UTC: 1, -1, or none where both are the same. So a day of UTC has two cells, with and without
a value; months and years are those of the dates. A key names the clocks beside the zone: hosts that disagree about
these do not read each other's cells. With another key behind it, it has cells that tell both apart.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import date, datetime
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from auditord.database.instants import MICROSECOND, from_micros, to_micros
from auditord.store.columns import CELL_META_COLUMNS, OLDER_KEYS
from auditord_hookspecs import CalendarPeriod
from auditord_hookspecs.zones import CHANGES_END, clock_changes, day_of

FIRST_DAY: Final = -719_162
"""The year 1. Days are numbers since 1970."""

END: Final = 2_932_897
"""The year 10000, behind all days."""

MICROS_PER_DAY: Final = 86_400_000_000

CPU_TIME: Final = "TotalCPU"
"""The component by whose presence cells are told apart: an efficiency is that of the records that have it."""

CORES: Final = "Cores"

CORES_KEY: Final = ""
"""Stands for the number of cores among the keys that have cells; no meta key is empty."""

GROUPED_KEYS: Final = frozenset({*CELL_META_COLUMNS, *OLDER_KEYS})
"""The keys that all cells tell apart, and older names of theirs, which no record in them has."""

_ORDINAL_OF_1970: Final = date(1970, 1, 1).toordinal()


class Level(IntEnum):
    """Cells of one size in the first set, as the column says it."""

    DAY_AND_USER = 0
    DAY = 1
    MONTH_AND_USER = 2
    MONTH = 3


LEVELS: Final = len(Level)
"""Added to a level as often as the number of a set says."""


class CellSet(msgspec.Struct, frozen=True):
    """A set of cells, and how far it has read the feed.

    Args:
        number: of the set; of its levels and its consumer.
        key: a meta key, or a key of :mod:`auditord.store.rollups.cells`; None for the first set.
        filled_from: the first day of stop times whose records are in the cells.
        position: of its consumer.
    """

    number: int
    key: str | None
    filled_from: int = FIRST_DAY
    position: int = 0

    @property
    def consumer(self) -> str:
        """The name of its consumer."""
        return f"rollup:{self.number}"

    @property
    def parts(self) -> tuple[str, ...]:
        """The keys that its cells tell apart."""
        return (CORES_KEY,) if self.key is None else parts_of(self.key)

    @property
    def of_zone(self) -> str | None:
        """The part that is of the dates of a zone; months of the cells are of these dates."""
        return self.parts[0] if self.key is not None and is_of_zone(self.key) else None

    def level(self, level: Level) -> int:
        """The level of its cells of one size."""
        return level + LEVELS * self.number


class Segment(msgspec.Struct, frozen=True):
    """Cells of one size: periods from ``begin`` on, before ``end``.

    If they are given, only with dates of the key's zone from ``first_date`` on, or before ``end_date``.
    """

    is_of_months: bool
    begin: int
    end: int
    first_date: int | None = None
    end_date: int | None = None

    def periods(self) -> Sequence[int]:
        """The first day of each period."""
        days = range(self.begin, self.end)
        return list(dict.fromkeys(map(first_of_month, days))) if self.is_of_months else list(days)


def segments(begin: int, end: int) -> Sequence[Segment]:
    """Whole months, and days at both ends."""
    first = begin if begin == FIRST_DAY else _next_month(begin)
    last = end if end == END else first_of_month(end)
    if first >= last:
        return [Segment(is_of_months=False, begin=begin, end=end)]
    before = [Segment(is_of_months=False, begin=begin, end=first)] if begin < first else []
    after = [Segment(is_of_months=False, begin=last, end=end)] if last < end else []
    return [*before, Segment(is_of_months=True, begin=first, end=last), *after]


def segments_of_dates(begin: int, end: int) -> Sequence[Segment]:
    """The same where months are of the dates of a zone, which are a day off from UTC at most."""
    first, last = (begin if begin == FIRST_DAY else begin + 1), (end if end == END else end - 1)
    months = next((each for each in segments(first, max(first, last)) if each.is_of_months), None)
    if months is None:
        return [Segment(is_of_months=False, begin=begin, end=end)]
    return [*_around(begin, end, months), months]


def _around(begin: int, end: int, months: Segment) -> Iterator[Segment]:
    if begin < months.begin:
        yield Segment(is_of_months=False, begin=begin, end=months.begin + 1, end_date=months.begin)
    if months.end < end:
        yield Segment(is_of_months=False, begin=months.end - 1, end=end, first_date=months.end)


def day_with_number(number: int) -> date:
    """The day with a number since 1970."""
    return date.fromordinal(number + _ORDINAL_OF_1970)


def number_of(day: date) -> int:
    """The number of a day since 1970."""
    return day.toordinal() - _ORDINAL_OF_1970


@lru_cache(10_000)
def first_of_month(day: int) -> int:
    """The number of the first day of a day's month."""
    return number_of(day_with_number(day).replace(day=1))


def _next_month(day: int) -> int:
    """The first day of a month, of this one or of the next one."""
    first = first_of_month(day)
    return day if first == day else first_of_month(first + 31)


@lru_cache(maxsize=64)
def split_days(periods: Collection[CalendarPeriod], begin: int, end: int) -> Sequence[int]:
    """The days of UTC that belong to more than one period of a time zone; cells do not tell their records apart.

    A month in Berlin begins at 22 or 23 o'clock of a day in UTC; the other days lie within one month.
    """
    if not periods:
        return ()
    known = range(max(begin, 0), min(end, to_micros(CHANGES_END) // MICROS_PER_DAY + 1))
    return tuple([day for day in known if any(_is_split(day, period) for period in periods)])


def _is_split(day: int, period: CalendarPeriod) -> bool:
    begin, end = first_moment(day), first_moment(day + 1)
    changes = [each.moment for each in clock_changes(period.zone) if begin < each.moment < end]
    moments = [begin, end - MICROSECOND, *changes, *[each - MICROSECOND for each in changes]]
    return len({period.unit.first_day(day_of(each, period.zone)) for each in moments}) > 1


def first_moment(day: int) -> datetime:
    """The begin of a day since 1970, in UTC."""
    return from_micros(day * MICROS_PER_DAY)


_BEGIN: Final = "dates of "
_BY: Final = " by "


@lru_cache(64)
def key_of_zone(zone: str) -> str | None:
    """The key of a zone; None for one whose days are those of UTC."""
    if not (changes := clock_changes(zone)):
        return None
    clocks = ";".join(f"{to_micros(each.moment)} {each.ahead}" for each in changes)
    return f"{_BEGIN}{zone} {blake2b(clocks.encode(), digest_size=4).hexdigest()}"


@lru_cache(64)
def zone_of_key(key: str) -> str | None:
    """The zone of a key; None for a meta key, and where the clocks of this host are others."""
    of_zone = parts_of(key)[0]
    zone = of_zone.removeprefix(_BEGIN).rpartition(" ")[0]
    try:
        return zone if is_of_zone(key) and key_of_zone(zone) == of_zone else None
    except ValueError:
        return None


def beside(of_zone: str, key: str) -> str:
    """The key of a zone with another one behind it."""
    return f"{of_zone}{_BY}{key}"


@lru_cache(1_000)
def parts_of(key: str) -> tuple[str, ...]:
    """The keys that a key consists of, that of the zone first."""
    if not is_of_zone(key):
        return (key,)
    of_zone, has_more, other = key.partition(_BY)
    return (of_zone, other) if has_more else (of_zone,)


def is_of_zone(key: str) -> bool:
    """Tell if a key is about days of some zone. A meta key that reads like one gets no cells."""
    return key.startswith(_BEGIN)
