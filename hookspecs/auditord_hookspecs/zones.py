"""Named time zones, such as Europe/Berlin, and their calendar days.

Clock changes are read from this host's zone database and passed to the store's database with each query, so that every
store uses the same days. They cover 1970 to 2100. Earlier and later days are those of UTC.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

UTC_NAME: Final = "UTC"

_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
CHANGES_END: Final = datetime(2100, 1, 1, tzinfo=UTC)
"""The end of the clock changes; from here on, all zones use UTC."""
_STEP: Final = timedelta(days=1)
_DAYS: Final = range(_FIRST.toordinal(), CHANGES_END.toordinal())
_SECOND: Final = timedelta(seconds=1)
_NOTHING: Final = timedelta(0)


class ClockChange(msgspec.Struct, frozen=True):
    """A change of a zone's clocks.

    Args:
        moment: when the change takes effect.
        ahead: the offset from UTC, negative west of it.
    """

    moment: datetime
    ahead: timedelta


def zone_named(name: str) -> tzinfo:
    """Return the zone with this name.

    Raises:
        ValueError: this host does not have the zone.
    """
    if name == UTC_NAME:  # also on hosts without a zone database
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        text = f"'{name[:60]}' is not a time zone that this host knows (such as UTC or Europe/Berlin; package tzdata)"
        raise ValueError(text) from error


def zone_name(moment: datetime) -> str:
    """Return the name of an instant's zone, or ``UTC`` if it has no named zone."""
    return str(getattr(moment.tzinfo, "key", UTC_NAME))


@lru_cache(maxsize=128)
def clock_changes(name: str) -> Sequence[ClockChange]:
    """Return the clock changes of a zone, earliest first; empty for zones that always use UTC.

    Raises:
        ValueError: this host does not have the zone.
    """
    zone, known, changes = zone_named(name), _NOTHING, list[ClockChange]()
    for begin, end in _restless(zone) if zone is not UTC else ():
        moment = begin
        while moment < end:
            if (ahead := _ahead(zone, moment)) != known:
                known = ahead
                changes.append(ClockChange(moment if moment == _FIRST else _begin(zone, moment - _STEP, moment), ahead))
            moment += _STEP
    if known:
        changes.append(ClockChange(CHANGES_END, _NOTHING))
    return tuple(changes)


def day_of(moment: datetime, name: str) -> date:
    """Return the calendar day of an instant in a zone."""
    changes = clock_changes(name)
    at = bisect_right(changes, moment, key=lambda change: change.moment)
    return (moment.astimezone(UTC) + (changes[at - 1].ahead if at else _NOTHING)).date()


def _restless(zone: tzinfo) -> Iterator[tuple[datetime, datetime]]:
    """Yield the first day, and then the spans of days in which a zone's clocks change.

    Looking up a local time takes 30 ns, and converting an instant 20 times as long.
    """
    yield _FIRST, _FIRST + _STEP
    end = 1
    for day, (ahead, next_ahead) in enumerate(pairwise(map(zone.utcoffset, map(datetime.fromordinal, _DAYS)))):
        if ahead is not next_ahead and ahead != next_ahead:
            # A local time is at most a day from the instant that is written like it.
            begin, end = max(end, day - 1), min(day + 4, len(_DAYS))
            yield _FIRST + begin * _STEP, _FIRST + end * _STEP


def _begin(zone: tzinfo, earlier: datetime, later: datetime) -> datetime:
    """Return the second at which the zone changes to the offset of the later instant."""
    shown = _ahead(zone, later)
    while later - earlier > _SECOND:
        middle = earlier + (later - earlier) // _SECOND // 2 * _SECOND
        if _ahead(zone, middle) == shown:
            later = middle
        else:
            earlier = middle
    return later


def _ahead(zone: tzinfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or _NOTHING
