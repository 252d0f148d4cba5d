"""Keys that let the cells of the roll-ups tell the days of a time zone apart.

The value of a record under such a key is by how many days the date that the zone's clocks showed when it stopped is
ahead of that in UTC: 1, -1, or none where both are the same. So a day of UTC has two cells, with and without a value;
months and years are those of the dates.
A key names the clocks beside the zone: hosts that disagree about these do not read each other's cells.

Such a key alone has cells of all users together. With another key behind it, a meta key or that of the number of cores,
it has cells that tell both apart.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from auditord.database.instants import to_micros
from auditord_hookspecs.zones import clock_changes

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


def known(keys: Collection[str]) -> Sequence[str]:
    """The keys that this host can tell apart."""
    return [key for key in keys if not is_of_zone(key) or zone_of_key(key) is not None]
