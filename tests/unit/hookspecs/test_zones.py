"""Clock changes of time zones, compared with the offsets of every day."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from auditord_hookspecs.zones import CHANGES_END, clock_changes, day_of

DAY = timedelta(days=1)
FIRST = datetime(1970, 1, 1, tzinfo=UTC)
ODD = ["Pacific/Apia", "Africa/Casablanca", "Asia/Gaza", "Africa/Monrovia", "America/Scoresbysund", "Europe/Dublin"]


def offsets(zone: str) -> Iterator[tuple[datetime, timedelta | None]]:
    """Yield each instant at which a day of UTC begins, and the offset of the clocks."""
    moment = FIRST
    while moment < CHANGES_END:
        yield moment, moment.astimezone(ZoneInfo(zone)).utcoffset()
        moment += DAY


def changes_by_day(zone: str) -> list[tuple[datetime, timedelta | None]]:
    """Return the days that begin with another offset than the day before, and this offset."""
    found: list[tuple[datetime, timedelta | None]] = []
    known: timedelta | None = timedelta(0)
    for moment, ahead in offsets(zone):
        if ahead != known:
            found.append((moment, ahead))
            known = ahead
    return found


@pytest.mark.parametrize("zone", [*ODD, *sorted(available_timezones())[::60]])
def test_changes_are_those_that_a_look_at_every_day_finds(zone: str) -> None:
    changes = [each for each in clock_changes(zone) if each.moment < CHANGES_END]
    midnights = [-((FIRST - each.moment) // DAY) for each in changes]
    assert [(FIRST + day * DAY, each.ahead) for day, each in zip(midnights, changes, strict=True)] == changes_by_day(
        zone
    )
    for each in changes[1:]:
        local = [moment.astimezone(ZoneInfo(zone)).utcoffset() for moment in (each.moment, each.moment - DAY / 86_400)]
        assert local[0] == each.ahead != local[1]


def test_the_clocks_of_a_zone_skip_a_day() -> None:
    """Samoa crossed the date line: no instant was on 30 December 2011."""
    change = datetime(2011, 12, 30, 10, tzinfo=UTC)
    days = [day_of(change + step, "Pacific/Apia").isoformat() for step in (timedelta(seconds=-1), timedelta(0))]
    assert days == ["2011-12-29", "2011-12-31"]
