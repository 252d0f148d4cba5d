"""Cells of the roll-ups on all levels, made of the changes of days."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec

from auditord.store.rollups.deltas import LOW_BITS, RECORD, CellChange, Ends, split, widened
from auditord.store.rollups.zone_keys import days_ahead, is_of_zone, parts_of
from auditord.store.rows import META_COLUMNS, OLDER_KEYS

FIRST_DAY: Final = -719_162
"""The year 1."""

END: Final = 2_932_897
"""The year 10000, behind all days."""

_ORDINAL_OF_1970: Final = date(1970, 1, 1).toordinal()

GROUPED_KEYS: Final = frozenset({*META_COLUMNS, *OLDER_KEYS})
"""The keys that all cells tell apart, and older names of theirs, which no record in them has."""

_WITHOUT_USER: Final = ("site_id", "group_id")
_WITH_USER: Final = (*_WITHOUT_USER, "user_id")


class Level(IntEnum):
    """Cells of one size, as the column says it of records with a CPU time."""

    DAY_AND_USER = 0
    DAY = 1
    MONTH_AND_USER = 2
    MONTH = 3
    YEAR_AND_USER = 10
    YEAR = 11


WITHOUT_CPU_TIME: Final = 4
"""Added to a level: cells of the same size, of records without a CPU time."""

OF_A_KEY: Final = 32
"""Added to a level as often as the number of a key says: cells of the same size that tell its values apart."""


@dataclass(frozen=True, slots=True)
class RolledKey:
    """A meta key, :data:`CORES_KEY`, or a key of :mod:`auditord.store.rollups.zone_keys`, with cells of its own.

    Args:
        number: of its levels.
        key: the key.
        filled_from: the first day that is in its cells; so are all later ones.
    """

    number: int
    key: str
    filled_from: int

    @property
    def parts(self) -> tuple[str, ...]:
        """The keys that its cells tell apart."""
        return parts_of(self.key)

    @property
    def of_zone(self) -> str | None:
        """The part that is of the dates of a zone; months and years of the cells are of these dates."""
        return self.parts[0] if is_of_zone(self.key) else None

    def level(self, level: Level) -> int:
        """The level of its cells of one size."""
        return level + OF_A_KEY * self.number


class LabelRow(msgspec.Struct, frozen=True, gc=False):
    """Labels under the names of their columns."""

    digest: str
    site: str | None
    user_group: str | None
    user_name: str | None
    meta: str


class CellRow(msgspec.Struct, frozen=True, gc=False):
    """A change of a cell under the names of its columns."""

    level: int
    period: int
    labels: int
    score_set: int
    component: str
    records: int
    amount: int
    runtime_high: int
    runtime_low: int
    first_stop: int | None
    last_stop: int | None
    gone_first: int | None
    gone_last: int | None
    left_out: int


class CellKey(msgspec.Struct, frozen=True, gc=False):
    """The cell that a row is about."""

    level: int
    period: int
    labels: int
    score_set: int
    component: str


Place: TypeAlias = tuple[int, str, int, bool]
"""The period, the labels and the score set of a cell of one size, and whether its records have a CPU time."""


@dataclass(slots=True, eq=False)
class Cell:
    """The change of one cell; see :class:`CellChange`.

    Of each component: records, amount, and both parts of amount times runtime. Stop times in ``gone_of_user`` are gone
    from cells of one user alone, those in ``gone_of_key`` from cells of keys.
    """

    stops: Ends | None = None
    gone: Ends | None = None
    gone_of_user: Ends | None = None
    gone_of_key: Ends | None = None
    left_out: int = 0
    sums: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def add(self, change: CellChange) -> None:
        """Add a change."""
        if change.first_stop is not None and change.last_stop is not None:
            self.stops = widened(self.stops, change.first_stop, change.last_stop)
        if change.gone_first is not None and change.gone_last is not None:
            if change.is_of_user:
                self.gone_of_user = widened(self.gone_of_user, change.gone_first, change.gone_last)
            else:
                self.gone = widened(self.gone, change.gone_first, change.gone_last)
        if change.gone_first_of_key is not None and change.gone_last_of_key is not None:
            self.gone_of_key = widened(self.gone_of_key, change.gone_first_of_key, change.gone_last_of_key)
        self.left_out += change.left_out
        sums = self.sums
        for component, records, amount, high, low in change.amounts:
            if (found := sums.get(component)) is None:
                sums[component] = [records, amount, high, low]
            else:
                found[0] += records
                found[1] += amount
                found[2] += high
                found[3] += low

    def merge(self, other: "Cell") -> None:
        """Add all of another one, except for what is gone of a user or of a key alone."""
        if (stops := other.stops) is not None:
            self.stops = widened(self.stops, *stops)
        if (gone := other.gone) is not None:
            self.gone = widened(self.gone, *gone)
        self.left_out += other.left_out
        sums = self.sums
        for component, more in other.sums.items():  # in place: this is done for every cell of every level
            if (found := sums.get(component)) is None:
                sums[component] = more.copy()
            else:
                found[0] += more[0]
                found[1] += more[1]
                found[2] += more[2]
                found[3] += more[3]

    def rows(self, level: int, place: Place, labels: int) -> Iterator[CellRow]:
        """The rows of a change; none for a component of which nothing changes."""
        period, _, score_set, has_cpu_time = place
        number = level if has_cpu_time else level + WITHOUT_CPU_TIME
        for component, (records, amount, high, low) in self.sums.items():
            stops, gone, left_out = None, None, 0
            if component == RECORD:
                stops, gone, left_out = self.stops, self.gone, self.left_out
            product = split((high << LOW_BITS) + low)
            if records or amount or any(product) or stops or gone or left_out:
                (first, last), (gone_first, gone_last) = stops or (None, None), gone or (None, None)
                sums = (records, amount, *product)
                known = (first, last, gone_first, gone_last)
                yield CellRow(number, period, labels, score_set, component, *sums, *known, left_out)


Places: TypeAlias = dict[Place, Cell]
_Parts: TypeAlias = dict[Place, list[Cell]]
CellsOfLevels: TypeAlias = dict[int, Places]


class Cells:
    """Changes gathered by cell."""

    def __init__(self, keys: Sequence[RolledKey], *, alone: bool = False) -> None:
        self._keys = keys
        self._alone = alone
        self._days: Places = {}
        self.changes = 0
        self.missed: set[RolledKey] = set()
        """Keys that some changes do not tell apart: their cells would not be right any more."""

    @property
    def number(self) -> int:
        """The number of cells of days, with all that tells them apart."""
        return len(self._days)

    def add(self, day: int, changes: Sequence[CellChange], keys: Collection[str]) -> None:
        """Take changes of a day up, which tell keys apart."""
        self.missed.update(each for each in self._keys if day >= each.filled_from and each.key not in keys)
        self.changes += len(changes)
        for change in changes:
            place = (day, change.labels, change.score_set, change.has_cpu_time)
            if (cell := self._days.get(place)) is None:
                cell = self._days[place] = Cell()
            cell.add(change)

    def by_level(self) -> CellsOfLevels:
        """The cells of all levels."""
        levels: CellsOfLevels = {}
        if not self._alone:
            by_user = _grouped_by(self._days, _WITH_USER, lambda cell: _united(cell.gone, cell.gone_of_user))
            together = _grouped_by(self._days, _WITHOUT_USER, lambda cell: cell.gone)
            levels |= _sizes(by_user, Level.DAY_AND_USER, Level.MONTH_AND_USER, Level.YEAR_AND_USER)
            levels |= _sizes(together, Level.DAY, Level.MONTH, Level.YEAR)
        keys = [key for key in self._keys if key not in self.missed]
        grouped = (*_WITHOUT_USER, *dict.fromkeys([part for key in keys for part in key.parts]))
        days = _grouped_by(self._days, grouped, lambda cell: cell.gone_of_key) if keys else {}
        for key in keys:
            there = {place: cell for place, cell in days.items() if place[0] >= key.filled_from}
            of_key = _grouped_by(there, (*_WITHOUT_USER, *key.parts), lambda cell: cell.gone)
            day, month, year = (key.level(size) for size in (Level.DAY, Level.MONTH, Level.YEAR))
            levels |= _sizes(of_key, day, month, year, key.of_zone)
        return levels


def day_of(number: int) -> date:
    """The day with a number since 1970."""
    return date.fromordinal(number + _ORDINAL_OF_1970)


def number_of(day: date) -> int:
    """The number of a day since 1970."""
    return day.toordinal() - _ORDINAL_OF_1970


@lru_cache(10_000)
def first_of_month(day: int) -> int:
    """The number of the first day of a day's month."""
    return number_of(day_of(day).replace(day=1))


@lru_cache(10_000)
def first_of_year(day: int) -> int:
    """The number of the first day of a day's year."""
    return number_of(day_of(day).replace(month=1, day=1))


@lru_cache(50_000)
def label_row(labels: str) -> LabelRow:
    """The row of labels that are written as JSON."""
    meta = msgspec.json.decode(labels, type=dict[str, tuple[str, ...]])
    site, group, user = (meta.get(key, (None,))[0] for key in _WITH_USER)
    return LabelRow(blake2b(labels.encode(), digest_size=16).hexdigest(), site, group, user, labels)


@lru_cache(100_000)
def _only(labels: str, keys: tuple[str, ...]) -> str:
    meta = msgspec.json.decode(labels, type=dict[str, tuple[str, ...]])
    return msgspec.json.encode({key: meta[key] for key in keys if key in meta}).decode()


def _grouped_by(cells: Places, keys: tuple[str, ...], gone_of: Callable[[Cell], Ends | None]) -> Places:
    """Cells that only some keys tell apart."""
    parts: _Parts = {}
    texts = {labels: _only(labels, keys) for labels in {labels for _, labels, _, _ in cells}}
    for (period, labels, score_set, has_cpu_time), cell in cells.items():
        gone = gone_of(cell)
        part = cell if gone is cell.gone else replace(cell, gone=gone)
        parts.setdefault((period, texts[labels], score_set, has_cpu_time), []).append(part)
    return _merged(parts)


def _sizes(days: Places, day: int, month: int, year: int, of_zone: str | None = None) -> CellsOfLevels:
    """Cells of days, and those of months and years that they are in, by level."""
    months = _in_periods(days, first_of_month, of_zone)
    return {day: days, month: months, year: _in_periods(months, first_of_year)}


def _in_periods(cells: Places, first_of: Callable[[int], int], of_zone: str | None = None) -> Places:
    """Cells of longer periods: of UTC, or of the dates of a zone."""
    parts: _Parts = {}
    for (period, labels, score_set, has_cpu_time), cell in cells.items():
        date = period if of_zone is None else period + days_ahead(labels, of_zone)
        parts.setdefault((first_of(date), labels, score_set, has_cpu_time), []).append(cell)
    return _merged(parts)


def _merged(parts: _Parts) -> Places:
    """One cell of each place; where it has one part, as many have, it is that part itself."""
    return {place: cells[0] if len(cells) == 1 else _sum(cells) for place, cells in parts.items()}


def _sum(cells: Sequence[Cell]) -> Cell:
    whole = Cell()
    for cell in cells:
        whole.merge(cell)
    return whole


def _united(ends: Ends | None, more: Ends | None) -> Ends | None:
    return ends if more is None else widened(ends, *more)
