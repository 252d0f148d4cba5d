"""The days of UTC that periods of time zones split, compared with a look at every day."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from zoneinfo import available_timezones

import pytest
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, sampled_from, tuples

from auditord.database.instants import EPOCH, MICROSECOND
from auditord.store.rollups.scope import split_days
from auditord_hookspecs import CalendarPeriod, CalendarUnit
from auditord_hookspecs.zones import clock_changes, day_of

LAST_DAY = 47_482
"""The first day of 2100."""
ZONES = ["Pacific/Apia", "Africa/Casablanca", "Asia/Gaza", "Africa/Monrovia", "America/St_Johns", "Europe/Berlin"]


def is_split(day: int, period: CalendarPeriod) -> bool:
    """Return whether a day of UTC has instants of two periods."""
    begin, end = (EPOCH + timedelta(days=each) for each in (day, day + 1))
    changes = [each.moment for each in clock_changes(period.zone) if begin < each.moment < end]
    moments: list[datetime] = [begin, end - MICROSECOND, *changes, *[each - MICROSECOND for each in changes]]
    return len({period.unit.first_day(day_of(each, period.zone)) for each in moments}) > 1


def naively(periods: Sequence[CalendarPeriod], begin: int, end: int) -> list[int]:
    known = range(max(begin, 0), min(end, LAST_DAY + 1))
    return [day for day in known if any(is_split(day, period) for period in periods)]


@pytest.mark.parametrize("zone", ZONES)
def test_around_changes_of_the_clocks(zone: str) -> None:
    near = {day + step for each in clock_changes(zone) for step in (-1, 0, 1) if (day := _day(each.moment)) >= 0}
    for unit in CalendarUnit:
        period = CalendarPeriod(unit, zone=zone)
        split = set(split_days([period], -100_000, 100_000))
        assert sorted(near & split) == [day for day in sorted(near) if is_split(day, period)]


def _day(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(days=1)


@given(
    lists(tuples(sampled_from(CalendarUnit), sampled_from(sorted(available_timezones()))), max_size=3),
    integers(-400, LAST_DAY + 400),
    integers(0, 800),
)
@settings(max_examples=60, deadline=None)
def test_in_any_range(periods: Sequence[tuple[CalendarUnit, str]], begin: int, length: int) -> None:
    asked = [CalendarPeriod(unit, zone=zone) for unit, zone in periods]
    assert split_days(asked, begin, begin + length) == naively(asked, begin, begin + length)


def test_no_range_is_walked_day_by_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Months of a zone not asked for yet: some steps for each of the 1,560 months, not for each of 47,482 days."""
    steps = list[object]()
    work = CalendarUnit.first_day

    def counted(unit: CalendarUnit, day: object) -> object:
        steps.append(day)
        return work(unit, day)  # type: ignore[arg-type]

    monkeypatch.setattr(CalendarUnit, "first_day", counted)
    assert len(split_days([CalendarPeriod(CalendarUnit.MONTH, zone="Indian/Chagos")], 0, LAST_DAY)) > 1_000
    assert len(steps) < 4_000
