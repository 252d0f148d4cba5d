"""Keys that let the cells of the roll-ups tell the days of a time zone apart.

The value of a record under such a key is by how many days the date that the zone's clocks showed when it stopped is
ahead of that in UTC: 1, -1, or none where both are the same. So a day of UTC has two cells, with and without a value.
A key names the clocks beside the zone: hosts that disagree about these do not read each other's cells.
"""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from auditord.database.instants import MICROSECOND, to_micros
from auditord.store.rollups.deltas import MICROS_PER_DAY
from auditord_hookspecs.zones import ClockChange, clock_changes

_BEGIN: Final = "days of "

Values = tuple[str, ...]
"""The values of a record under a key."""

_VALUES: Final[dict[int, Values | None]] = {days: (str(days),) if days else None for days in (-1, 0, 1)}


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
    zone = key.removeprefix(_BEGIN).rpartition(" ")[0]
    try:
        return zone if is_of_zone(key) and key_of_zone(zone) == key else None
    except ValueError:
        return None


def is_of_zone(key: str) -> bool:
    """Tell if a key is about days of some zone. A meta key that reads like one gets no cells."""
    return key.startswith(_BEGIN)


def known(keys: Collection[str]) -> Sequence[str]:
    """The keys that this host can tell apart."""
    return [key for key in keys if not is_of_zone(key) or zone_of_key(key) is not None]


class ZoneDays:
    """The dates of a zone.

    Args:
        zone: its name.
    """

    def __init__(self, zone: str) -> None:
        changes: Sequence[ClockChange] = clock_changes(zone)
        self._moments = [to_micros(each.moment) for each in changes]
        self._ahead = [0, *(each.ahead // MICROSECOND for each in changes)]

    def values(self, moment: int) -> Values | None:
        """The values of a record that stopped then, in microseconds since 1970."""
        ahead = self._ahead[bisect_right(self._moments, moment)]
        return _VALUES[(moment % MICROS_PER_DAY + ahead) // MICROS_PER_DAY]


zone_days: Final = lru_cache(64)(ZoneDays)
"""The dates of a zone by its name."""
