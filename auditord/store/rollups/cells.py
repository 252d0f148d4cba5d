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

from collections.abc import Mapping, Sequence
from datetime import date
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from itertools import starmap
from typing import Final, LiteralString

import msgspec

from auditord.database.instants import to_micros
from auditord.store.columns import CELL_META_COLUMNS, OLDER_KEYS
from auditord.store.work import Work, ask
from auditord_hookspecs.zones import clock_changes

FIRST_DAY: Final = -719_162
"""The first day of the year 1. Days are counted from 1970-01-01, which is day 0."""

END: Final = 2_932_897
"""The first day of the year 10000, later than all stop times."""

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


def list_sets() -> Work[Sequence[CellSet]]:
    """Return all sets of cells, the first set first."""
    return list(starmap(CellSet, (yield from ask("list_rolled_keys"))))


def days_with_cells() -> Work[tuple[int, int]]:
    """Return the first day that has cells and the day after the last one, or the same day twice without cells."""
    ((first, last),) = yield from ask("days_of_rollups")
    return (0, 0) if first is None else (int(first), int(last) + 1)


def day_with_number(number: int) -> date:
    """Return the date of a day that is given as a number since 1970."""
    return date.fromordinal(number + _ORDINAL_OF_1970)


def number_of(day: date) -> int:
    """Return the number of days since 1970."""
    return day.toordinal() - _ORDINAL_OF_1970


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
