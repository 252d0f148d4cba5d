"""Cells of the roll-ups on all levels, made of the changes of days."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec

from auditord.store.rollups.changes import LOW_BITS, RECORD, AmountChange, CellChange, Ends, split, widened

FIRST_DAY: Final = -719_162
"""The year 1."""

END: Final = 2_932_897
"""The year 10000, behind all days."""

_ORDINAL_OF_1970: Final = date(1970, 1, 1).toordinal()

_USER_KEY: Final = "user_id"


class Level(IntEnum):
    """Cells of one size, as the column says it of records with a CPU time."""

    DAY_AND_USER = 0
    DAY = 1
    MONTH_AND_USER = 2
    MONTH = 3

    @property
    def without_cpu_time(self) -> int:
        """The number in the column for cells of the same size, of records without a CPU time."""
        return self + len(Level)


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
    """The change of one cell; see :data:`CellChange`.

    Of each component: records, amount, and both parts of amount times runtime. Stop times in ``gone_of_user`` are gone
    from cells of one user alone.
    """

    stops: Ends | None = None
    gone: Ends | None = None
    gone_of_user: Ends | None = None
    left_out: int = 0
    sums: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def add(self, change: CellChange) -> None:
        """Add a change."""
        _, _, first, last, gone_first, gone_last, left_out, amounts, is_of_user, _ = change
        if first is not None and last is not None:
            self.stops = widened(self.stops, first, last)
        if gone_first is not None and gone_last is not None:
            if is_of_user:
                self.gone_of_user = widened(self.gone_of_user, gone_first, gone_last)
            else:
                self.gone = widened(self.gone, gone_first, gone_last)
        self.left_out += left_out
        self._count(amounts)

    def merge(self, other: "Cell", *, same_user: bool) -> None:
        """Add all of another one."""
        self.stops = _united(self.stops, other.stops)
        self.gone = _united(self.gone, other.gone)
        if same_user:
            self.gone_of_user = _united(self.gone_of_user, other.gone_of_user)
        self.left_out += other.left_out
        self._count(
            (component, records, amount, high, low) for component, (records, amount, high, low) in other.sums.items()
        )

    def rows(self, level: Level, place: Place, labels: int) -> Iterator[CellRow]:
        """Its rows; none for a component of which nothing changes."""
        period, _, score_set, has_cpu_time = place
        number = level if has_cpu_time else level.without_cpu_time
        for component, (records, amount, high, low) in self.sums.items():
            stops, gone, left_out = None, None, 0
            if component == RECORD:
                stops, gone, left_out = self.stops, _united(self.gone, self.gone_of_user), self.left_out
            product = split((high << LOW_BITS) + low)
            if records or amount or any(product) or stops or gone or left_out:
                (first, last), (gone_first, gone_last) = stops or (None, None), gone or (None, None)
                sums = (records, amount, *product)
                known = (first, last, gone_first, gone_last)
                yield CellRow(number, period, labels, score_set, component, *sums, *known, left_out)

    def _count(self, amounts: Iterable[AmountChange]) -> None:
        sums = self.sums
        for component, records, amount, high, low in amounts:
            if (found := sums.get(component)) is None:
                sums[component] = [records, amount, high, low]
            else:
                found[0] += records
                found[1] += amount
                found[2] += high
                found[3] += low


CellsOfLevels: TypeAlias = dict[Level, dict[Place, Cell]]


class Cells:
    """Changes gathered by cell."""

    def __init__(self) -> None:
        self._days: dict[Place, Cell] = {}

    def add(self, day: int, changes: Iterable[CellChange]) -> None:
        """Take changes of a day up."""
        for change in changes:
            place = (day, change[0], change[1], change[9])
            if (cell := self._days.get(place)) is None:
                cell = self._days[place] = Cell()
            cell.add(change)

    def by_level(self) -> CellsOfLevels:
        """The cells of all levels."""
        months: dict[Place, Cell] = {}
        for place, cell in self._days.items():
            months.setdefault((first_of_month(place[0]), *place[1:]), Cell()).merge(cell, same_user=True)
        return {
            Level.DAY_AND_USER: self._days,
            Level.DAY: _without_users(self._days),
            Level.MONTH_AND_USER: months,
            Level.MONTH: _without_users(months),
        }


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


@lru_cache(50_000)
def label_row(labels: str) -> LabelRow:
    """The row of labels that are written as JSON."""
    meta = msgspec.json.decode(labels, type=dict[str, tuple[str, ...]])
    site, group, user = (meta.get(key, (None,))[0] for key in ("site_id", "group_id", _USER_KEY))
    return LabelRow(blake2b(labels.encode(), digest_size=16).hexdigest(), site, group, user, labels)


@lru_cache(50_000)
def _without_user(labels: str) -> str:
    meta = msgspec.json.decode(labels, type=dict[str, tuple[str, ...]])
    meta.pop(_USER_KEY, None)
    return msgspec.json.encode(meta).decode()


def _without_users(cells: dict[Place, Cell]) -> dict[Place, Cell]:
    merged: dict[Place, Cell] = {}
    for (period, labels, score_set, has_cpu_time), cell in cells.items():
        merged.setdefault((period, _without_user(labels), score_set, has_cpu_time), Cell()).merge(cell, same_user=False)
    return merged


def _united(ends: Ends | None, more: Ends | None) -> Ends | None:
    return ends if more is None else widened(ends, *more)
