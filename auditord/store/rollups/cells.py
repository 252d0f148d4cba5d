"""The cells of roll-ups: sums of records by day and month of their stop times, in several sets.

All sets group records by site, by group of users, and by the presence of four components (Cores, Memory, GPU and
TotalCPU). The totals of the first three, such as CoreSeconds, are part of their products with runtimes. The first set
also groups by number of cores and, at two of its levels, by user. Each further set groups by one set key instead. A set
key is a meta key for all users together, a meta key by user (``users by outcome``, :func:`by_user`), or the dates of a
time zone together with a meta key or the number of cores, for all users together. Each set key has its own set, so the
numbers of their cells add up instead of multiplying.

Cells of days are always days of UTC. If a set key names a time zone, each cell also has a label: the date in the zone
minus the date in UTC, for the stop times of its records. The label is ``1`` or ``-1``, and missing if the dates are
equal. So a day of UTC can have two cells, one with a label and one without. Day plus label is the date in the zone.
Cells of months in such a set are those of the zone's dates.

A set key with a time zone has two parts, for example ``dates of Europe/Berlin 1f2e3d4c by queue``. The zone part ends
with a hash of the zone's clock changes, so hosts with different time zone data do not read each other's cells. The part
after ``by`` is the meta key. For the number of cores it is empty (:data:`CORES_KEY`), and the set key ends with ``by``
and a space.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final, LiteralString

import msgspec

from auditord.database.instants import MICROSECOND, from_micros, to_micros
from auditord.store.columns import CELL_META_COLUMNS, OLDER_KEYS
from auditord_hookspecs import CalendarPeriod, CalendarUnit
from auditord_hookspecs.zones import clock_changes

FIRST_DAY: Final = -719_162
"""The first day of the year 1. Days are counted from 1970-01-01, which is day 0."""

END: Final = 2_932_897
"""The first day of the year 10000, later than all stop times."""

MICROS_PER_DAY: Final = 86_400_000_000

PRESENCE: Final[Mapping[str, LiteralString]] = {"Cores": "1", "Memory": "2", "GPU": "4", "TotalCPU": "8"}
"""The bit that each component, or its total, sets in the column ``present`` of cells."""

CORES: Final = "Cores"

CORES_KEY: Final = ""
"""The part of a set key that stands for the number of cores. It cannot be a meta key, since none is empty."""

GROUPED_KEYS: Final = frozenset({*CELL_META_COLUMNS, *OLDER_KEYS})
"""The meta keys that need no set of their own: sites, groups and users, and the older names of these keys.

All sets group by site and group; only the levels with users of the first set group by user. Records with an older name
are in no cell.
"""

_ORDINAL_OF_1970: Final = date(1970, 1, 1).toordinal()


class Level(IntEnum):
    """The sizes of cells in the first set, with their values in the column ``level``.

    Cells of ``DAY`` and ``MONTH`` add up all users. Sets without users have only these two; see :meth:`CellSet.level`.
    """

    DAY_AND_USER = 0
    DAY = 1
    MONTH_AND_USER = 2
    MONTH = 3


LEVELS_PER_SET: Final = len(Level)
"""The number of levels that are reserved for each set."""


class CellSet(msgspec.Struct, frozen=True):
    """A set of cells, and the position up to which it has read the feed.

    Args:
        number: identifies the set, its levels and its consumer; 0 for the first set.
        key: the set key, in one of the forms that this module describes; None for the first set.
        filled_from: the first day of stop times whose records are in the cells.
        position: the position in the feed up to which the set's consumer has read.
    """

    number: int
    key: str | None
    filled_from: int = FIRST_DAY
    position: int = 0

    @property
    def consumer(self) -> str:
        """The name of the feed's consumer that fills this set."""
        return f"rollup:{self.number}"

    @property
    def has_users(self) -> bool:
        """True if two of the set's levels group by user."""
        return self.key is None or self.key.startswith(_USERS)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the set key: what this set groups by, in addition to site, group and user."""
        return (CORES_KEY,) if self.key is None else parts_of(self.key)

    @property
    def zone_part(self) -> str | None:
        """The part of the set key that names a time zone, or None.

        With a time zone, cells of months are months in that zone.
        """
        return self.parts[0] if self.key is not None and is_of_zone(self.key) else None

    def level(self, level: Level) -> int:
        """Return the value of the column ``level`` for this set's cells of one size."""
        return level + LEVELS_PER_SET * self.number


class Segment(msgspec.Struct, frozen=True):
    """A range of days whose cells of one size are read.

    Args:
        is_of_months: whether cells of months are read, not cells of days.
        begin: the first day.
        end: the day after the last one.
        first_date: the first date in the set's time zone; cells of earlier dates are left out.
        end_date: the date in the set's time zone after the last one; cells of this date and later ones are left out.
    """

    is_of_months: bool
    begin: int
    end: int
    first_date: int | None = None
    end_date: int | None = None

    def periods(self) -> Sequence[int]:
        """Return the first day of each period."""
        days = range(self.begin, self.end)
        return list(dict.fromkeys(map(first_of_month, days))) if self.is_of_months else list(days)


def segments(begin: int, end: int) -> Sequence[Segment]:
    """Split the days from ``begin`` to before ``end`` into whole months, and single days before and after them."""
    first = begin if begin in {FIRST_DAY, first_of_month(begin)} else first_of_month(first_of_month(begin) + 31)
    last = end if end == END else first_of_month(end)
    if first >= last:
        return [Segment(is_of_months=False, begin=begin, end=end)]
    before = [Segment(is_of_months=False, begin=begin, end=first)] if begin < first else []
    after = [Segment(is_of_months=False, begin=last, end=end)] if last < end else []
    return [*before, Segment(is_of_months=True, begin=first, end=last), *after]


def segments_of_dates(begin: int, end: int) -> Sequence[Segment]:
    """Split days of UTC like :func:`segments`, for cells whose months are months in a time zone.

    A date in a zone differs from the date in UTC by one day at most. So all records of a month stopped within the
    range if the range contains the month and one more day of UTC on both sides.
    """
    first, last = (begin if begin == FIRST_DAY else begin + 1), (end if end == END else end - 1)
    months = next((each for each in segments(first, max(first, last)) if each.is_of_months), None)
    if months is None:
        return [Segment(is_of_months=False, begin=begin, end=end)]
    # Days before and after the months overlap them by one day of UTC, since that day can also have records with dates
    # outside the months. The date limit of a segment keeps records from being counted twice.
    days = list[Segment]()
    if begin < months.begin:
        days.append(Segment(is_of_months=False, begin=begin, end=months.begin + 1, end_date=months.begin))
    if months.end < end:
        days.append(Segment(is_of_months=False, begin=months.end - 1, end=end, first_date=months.end))
    return [*days, months]


def day_with_number(number: int) -> date:
    """Return the date of a day that is given as a number since 1970."""
    return date.fromordinal(number + _ORDINAL_OF_1970)


def number_of(day: date) -> int:
    """Return the number of days since 1970."""
    return day.toordinal() - _ORDINAL_OF_1970


@lru_cache(10_000)
def first_of_month(day: int) -> int:
    """Return the first day of the month that a day belongs to."""
    return number_of(day_with_number(day).replace(day=1))


def split_days(periods: Iterable[CalendarPeriod], begin: int, end: int) -> Sequence[int]:
    """Return the days of UTC that contain instants of two periods, according to the time zone of the periods.

    Cells that do not group by the zone's dates cannot divide the records of such a day. For example, a month in Berlin
    begins at 22:00 or 23:00 UTC on the last day of the month before. All other days lie within one period.
    """
    split = [_split_days(period.unit, period.zone) for period in periods]
    return sorted({day for days in split for day in days[bisect_left(days, begin) : bisect_left(days, end)]})


@lru_cache(maxsize=256)
def _split_days(unit: CalendarUnit, zone: str) -> Sequence[int]:
    """Return the split days of one kind of period, in order.

    Between two changes of the clocks, a period begins at midnight of its first date. At a change, the clocks can skip
    the midnight, or show it again.
    """
    changes, days = clock_changes(zone), set[int]()
    for at, change in enumerate(changes):
        begin, ahead = to_micros(change.moment), change.ahead // MICROSECOND
        end = to_micros(changes[at + 1].moment) if at + 1 < len(changes) else begin
        before = changes[at - 1].ahead // MICROSECOND if at else 0
        first, last = (unit.first_day(_date_at(each)) for each in (begin - 1 + before, begin + ahead))
        if first != last and begin % MICROS_PER_DAY:
            days.add(begin // MICROS_PER_DAY)
        day, last_date = unit.first_day(_date_at(begin + ahead)), _date_at(end - 1 + ahead)
        while (day := unit.next_first_day(day)) <= last_date:
            midnight = number_of(day) * MICROS_PER_DAY - ahead
            if midnight % MICROS_PER_DAY:
                days.add(midnight // MICROS_PER_DAY)
    return tuple(sorted(days))


def _date_at(micros: int) -> date:
    return day_with_number(micros // MICROS_PER_DAY)


def first_moment(day: int) -> datetime:
    """Return the instant at which a day of UTC begins."""
    return from_micros(day * MICROS_PER_DAY)


_USERS: Final = "users by "
_BEGIN: Final = "dates of "
_BY: Final = " by "


@lru_cache(64)
def key_of_zone(zone: str) -> str | None:
    """Return the zone part of a set key for a time zone, or None if the zone's dates are always those of UTC."""
    if not (changes := clock_changes(zone)):
        return None
    clocks = ";".join(f"{to_micros(each.moment)} {each.ahead}" for each in changes)
    return f"{_BEGIN}{zone} {blake2b(clocks.encode(), digest_size=4).hexdigest()}"


@lru_cache(64)
def zone_of_key(key: str) -> str | None:
    """Return the time zone of a set key, or None if it has none.

    Also return None if this host does not know the zone, or knows other clock changes than the hash says.
    """
    zone_part = parts_of(key)[0]
    zone = zone_part.removeprefix(_BEGIN).rpartition(" ")[0]
    try:
        return zone if is_of_zone(key) and key_of_zone(zone) == zone_part else None
    except ValueError:
        return None


def by_user(key: str) -> str:
    """Return the set key that groups by a meta key and by user."""
    return f"{_USERS}{key}"


def join_keys(zone_part: str, key: str) -> str:
    """Return the set key that groups by the dates of a zone and by a meta key or the number of cores."""
    return f"{zone_part}{_BY}{key}"


@lru_cache(1_000)
def parts_of(key: str) -> tuple[str, ...]:
    """Return the parts of a set key, the zone part first. Users are no part."""
    if not is_of_zone(key):
        return (key.removeprefix(_USERS),)
    zone_part, has_more, other = key.partition(_BY)
    return (zone_part, other) if has_more else (zone_part,)


def is_special(key: str) -> bool:
    """Return whether a meta key looks like a set key of another form, and therefore gets no cells."""
    return key.startswith((_BEGIN, _USERS))


def is_of_zone(key: str) -> bool:
    """Return whether a set key, or a part of one, names a time zone."""
    return key.startswith(_BEGIN)
