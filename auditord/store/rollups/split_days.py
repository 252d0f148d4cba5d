"""Days of UTC that belong to two periods of a time zone; roll-ups do not tell their records apart."""

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import lru_cache

from auditord.database.instants import MICROSECOND, from_micros, to_micros
from auditord.store.rollups.deltas import MICROS_PER_DAY
from auditord_hookspecs import CalendarPeriod
from auditord_hookspecs.zones import CHANGES_END, clock_changes, day_of


@lru_cache(maxsize=64)
def split_days(periods: Collection[CalendarPeriod], begin: int, end: int) -> Sequence[int]:
    """The days of UTC that belong to more than one period; cells do not tell their records apart.

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
