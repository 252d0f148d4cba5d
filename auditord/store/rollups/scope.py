"""The part of a query for sums that roll-ups answer.

That is whole days of UTC of stop times, for queries that ask for nothing which cells do not tell apart: grouped by
site, group, user, scores and periods of the stop time, with conditions on sites, groups and users, without a window.
Instead of users, it may be one of the keys with cells of their own, from the day on up to which these are filled. Of
a range of stop times that does not begin and end with days, as a month of another time zone, the days within are read
from roll-ups, and both edges from the records; so are the days that belong to two periods of such a zone, unless there
are cells by its days (:mod:`auditord.store.rollups.zone_keys`).

The archive: records that have moved there stay in the roll-ups. So with a :class:`Scope`, the archive is only asked for
what roll-ups do not answer: the queries of :meth:`Scope.edges`, and records with ``more``. That is what the statement
of ``compile_aggregate(query, dialect, scope)`` reads where the tables of roll-ups are empty. If there is no scope, or
:class:`auditord.store.aggregates.NotRolledUp` is raised while the rows are put together, the whole query has to be
answered from the records and from the archive.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from auditord.database.instants import from_micros, to_micros
from auditord.store.aggregates import NotRolledUp
from auditord.store.rollups.cells import (
    END,
    FIRST_DAY,
    GROUPED_KEYS,
    Level,
    RolledKey,
)
from auditord.store.rollups.deltas import CORES, CORES_KEY, CPU_TIME, MICROS_PER_DAY
from auditord.store.rollups.segments import SIZES, Segment, segments, segments_of_dates
from auditord.store.rollups.split_days import split_days
from auditord.store.rollups.zone_keys import is_of_zone, key_of_zone
from auditord.store.work import Work, ask
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    ExceedsRuntime,
    MetaValue,
    ScoreValue,
)
from auditord_hookspecs.query import (
    AllOf,
    AnyOf,
    Comparison,
    Condition,
    IsOpen,
    Leaf,
    MetaAbsent,
    MetaContains,
    MetaContainsAny,
    MetaLacks,
    TimeCompares,
    TimeField,
    fold,
)
from auditord_hookspecs.zones import clock_changes

_USER_KEY: Final = "user_id"
_ABOUT_META: Final = (MetaContains, MetaContainsAny, MetaLacks, MetaAbsent)
_SHORT_UNITS: Final = {CalendarUnit.DAY, CalendarUnit.WEEK}

_BY_USER: Final = {
    Level.DAY: Level.DAY_AND_USER,
    Level.MONTH: Level.MONTH_AND_USER,
    Level.YEAR: Level.YEAR_AND_USER,
}

MOST_SPLIT_DAYS: Final = 400
"""Split days of a scope: more of them would make its statement long."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a query that roll-ups answer.

    Args:
        query: the query.
        rest: its conditions without those on the stop time.
        begin: the first day since 1970, in UTC, that roll-ups answer.
        end: the day behind the last one.
        first: the first stop time that counts, in microseconds since 1970; None if there is none.
        last: the stop time behind the last one that counts.
        key: the key whose cells answer.
    """

    query: AggregateQuery
    rest: Condition
    begin: int
    end: int
    first: int | None
    last: int | None
    key: RolledKey | None = None

    def up_to(self, day: int) -> "Scope | None":
        """The scope if the cells are complete up to a day; None if that leaves no day."""
        end = min(self.end, day)
        return None if end <= self.begin else replace(self, end=end)

    @property
    def may_split(self) -> bool:
        """True if days may belong to two periods."""
        return any(self._zoned())

    @property
    def days(self) -> tuple[int, int, str | None]:
        """The arguments of :func:`scope_within` that make it again."""
        return self.begin, self.end, None if self.key is None else self.key.key

    def within(self, begin: int, end: int) -> "Scope | None":
        """The scope of the days that have cells, with a bounded number of split days; None if that leaves no day.

        The records of all other days are read one by one: hardly any is there.
        """
        begin, end = max(begin, self.begin), min(end, self.end)
        if end <= begin:
            return None
        narrow = replace(self, begin=begin, end=end)
        split = narrow.split_days()
        return narrow if len(split) <= MOST_SPLIT_DAYS else replace(narrow, begin=split[-MOST_SPLIT_DAYS])

    def segments(self) -> Sequence[Segment]:
        """The cells that answer it, as coarse as may be."""
        periods = [by for by in self.query.by if isinstance(by, CalendarPeriod)]
        of_zone = None if self.key is None else self.key.of_zone
        sizes = SIZES if all(by.unit is CalendarUnit.YEAR for by in periods) else SIZES[:2]
        if any(by.unit in _SHORT_UNITS or key_of_zone(by.zone) != of_zone for by in periods):
            sizes = SIZES[:1]
        cut = segments if of_zone is None else segments_of_dates
        return [replace(each, level=self._level(each.level)) for each in cut(self.begin, self.end, sizes)]

    def _level(self, size: int) -> int:
        if self.key is not None:
            return self.key.level(Level(size))
        return _BY_USER[Level(size)] if _asks_for_users(self.query, self.rest) else size

    def users(self) -> Sequence[str] | None:
        """Users of whom a record must have one, if the query says so; else None."""
        for condition in _each(self.rest):
            match condition:
                case MetaContains(key, value) if key == _USER_KEY:
                    return (value,)
                case MetaContainsAny(key, values) if key == _USER_KEY:
                    return values
                case _:
                    pass
        return None

    def edges(self) -> Iterator[AggregateQuery]:
        """Queries for the finished records that the cells do not answer for.

        No bound is there twice: SQLite looks an index up by the first that it reads, and passes over all the rest.
        """
        begin, end = self.begin * MICROS_PER_DAY, self.end * MICROS_PER_DAY
        if self.begin > FIRST_DAY and self.first != begin:
            yield self._only(_between(self.first, begin))
        if self.end < END and self.last != end:
            yield self._only(_between(end, self.last))
        if split := self.split_days():
            yield self._only(AnyOf(tuple(map(_on_day, split))))

    def outside(self) -> Iterator[Condition]:
        """Conditions of which one is true for each finished record that the cells do not answer for."""
        if self.begin > FIRST_DAY:
            yield _between(None, self.begin * MICROS_PER_DAY)
        if self.end < END:
            yield _between(self.end * MICROS_PER_DAY, None)
        yield from map(_on_day, self.split_days())

    def split_days(self) -> Sequence[int]:
        """The days whose records are in two periods of a time zone; see :func:`split_days`."""
        return split_days(frozenset(self._zoned()), self.begin, self.end)

    def _zoned(self) -> Iterator[CalendarPeriod]:
        """The periods whose days the cells do not tell apart."""
        return (by for by in _zoned(self.query) if self.key is None or key_of_zone(by.zone) not in self.key.parts)

    def _only(self, stopped: Condition) -> AggregateQuery:
        return replace(self.query, where=AllOf((self.rest, stopped)))


def scope_of(query: AggregateQuery, keys: Sequence[RolledKey] = ()) -> Scope | None:
    """The part of a query that complete roll-ups answer; None if they answer nothing of it.

    Args:
        query: the query.
        keys: those with cells of their own, of which one answers.
    """
    if query.window is not None:
        return None
    times: list[TimeCompares] = []
    others: list[Condition] = []
    for condition in _each(query.where):
        if isinstance(condition, TimeCompares) and condition.field is TimeField.STOP:
            times.append(condition)
        else:
            others.append(condition)
    rest = AllOf(tuple(others))
    wanted = {key_of_zone(by.zone) for by in _zoned(query)}
    of_zones = [key for key in keys if not wanted.isdisjoint(key.parts) and key.filled_from == FIRST_DAY]
    of_zones.sort(key=lambda key: len(key.parts))  # the fewest cells
    for key in (*of_zones, None, *keys):
        if _are_grouped(query, rest, key):
            first, last = _range(times)
            begin = FIRST_DAY if first is None else -(-first // MICROS_PER_DAY)
            end = END if last is None else last // MICROS_PER_DAY
            begin = begin if key is None else max(begin, key.filled_from)
            return Scope(query, rest, begin, end, first, last, key).up_to(END)
    return None


def scope_within(query: AggregateQuery, begin: int, end: int, key: str | None) -> Scope | None:
    """The scope of a query that it was answered with: of these days, by the cells of a key."""
    scope = scope_of(query, [] if key is None else [RolledKey(0, key, FIRST_DAY)])
    return None if scope is None else replace(scope, begin=begin, end=end)


def require(scope: Scope | None) -> Work[None]:
    """Return if the cells of the scope's key have all that it asks for, in the transaction that reads them.

    Raises:
        NotRolledUp: they have not any more.
    """
    if scope is None or scope.key is None:
        return
    known = [RolledKey(*each) for each in (yield from ask("list_rolled_keys"))]
    found = [each for each in known if (each.number, each.key) == (scope.key.number, scope.key.key)]
    if not found or found[0].filled_from > scope.begin:
        raise NotRolledUp
    for (keys,) in (yield from ask("keys_of_rollup_changes", begin=scope.begin, end=scope.end)):
        if scope.key.key not in msgspec.json.decode(keys):
            raise NotRolledUp


def _each(condition: Condition) -> Iterator[Condition]:
    """The conditions that must all be true."""
    if isinstance(condition, AllOf):
        for each in condition.conditions:
            yield from _each(each)
    else:
        yield condition


def _range(times: Sequence[TimeCompares]) -> tuple[int | None, int | None]:
    """The first stop time that counts, and the one behind the last."""
    firsts: list[int] = []
    lasts: list[int] = []
    for each in times:
        moment = to_micros(each.moment)
        match each.comparison:
            case Comparison.GTE:
                firsts.append(moment)
            case Comparison.GT:
                firsts.append(moment + 1)
            case Comparison.LT:
                lasts.append(moment)
            case Comparison.LTE:
                lasts.append(moment + 1)
            case Comparison.EQUALS:
                firsts.append(moment)
                lasts.append(moment + 1)
    return max(firsts, default=None), min(lasts, default=None)


def _are_grouped(query: AggregateQuery, rest: Condition, key: RolledKey | None) -> bool:
    """Return whether cells, or those of a key, tell apart all that is asked for."""
    if key is not None and _asks_for_users(query, rest):
        return False
    parts = () if key is None else key.parts
    known = {*GROUPED_KEYS, *[part for part in parts if not is_of_zone(part)]}
    grouped = all(_is_grouped(each, known, parts) for each in query.by)
    return grouped and fold(rest, partial(_is_covered, known), all, all)


def _is_grouped(dimension: Dimension, known: Collection[str], parts: Collection[str]) -> bool:
    match dimension:
        case MetaValue(keys):
            return set(keys) <= set(known)
        case CalendarPeriod(unit, field, zone):
            has_days = not clock_changes(zone) or key_of_zone(zone) in parts
            return field is TimeField.STOP and (unit is not CalendarUnit.DAY or has_days)
        case ComponentPresent(component):
            return component == CPU_TIME
        case ComponentAmount(component):
            return component == CORES and CORES_KEY in known
        case ExceedsRuntime():
            return False
        case ScoreValue():
            return True


def _is_covered(known: Collection[str], condition: Leaf) -> bool:
    if isinstance(condition, _ABOUT_META):
        return condition.key in known
    return isinstance(condition, IsOpen)


def _asks_for_users(query: AggregateQuery, rest: Condition) -> bool:
    by_user = any(isinstance(by, MetaValue) and _USER_KEY in by.keys for by in query.by)
    return by_user or fold(rest, partial(_is_about_users), any, any)


def _is_about_users(condition: Leaf) -> bool:
    return isinstance(condition, _ABOUT_META) and condition.key == _USER_KEY


def _zoned(query: AggregateQuery) -> Iterator[CalendarPeriod]:
    """The periods of time zones whose days are not those of UTC."""
    return (by for by in query.by if isinstance(by, CalendarPeriod) and clock_changes(by.zone))


def _on_day(day: int) -> Condition:
    return _between(day * MICROS_PER_DAY, (day + 1) * MICROS_PER_DAY)


def _between(begin: int | None, end: int | None) -> Condition:
    """The condition that a record stopped from one instant on, and before another."""
    bounds = ((Comparison.GTE, begin), (Comparison.LT, end))
    return AllOf(
        tuple(TimeCompares(TimeField.STOP, each, from_micros(micros)) for each, micros in bounds if micros is not None)
    )
