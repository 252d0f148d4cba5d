"""The part of a query for sums that roll-ups answer.

That is whole days of UTC of stop times, for queries that ask for nothing which cells do not tell apart: grouped by
site, group, user, scores and periods of the stop time, with conditions on sites, groups and users, without a window. Of
a range of stop times that does not begin and end with days, as a month of another time zone, the days within are read
from roll-ups, and both edges from the records; so are the days that belong to two periods of such a zone.

The archive: records that have moved there stay in the roll-ups. So with a :class:`Scope`, the archive is only asked for
what roll-ups do not answer: the queries of :meth:`Scope.edges`, and records with ``more``. That is what the statement
of ``compile_aggregate(query, dialect, scope)`` reads where the tables of roll-ups are empty. If there is no scope, or
:class:`auditord.store.aggregates.NotRolledUp` is raised while the rows are put together, the whole query has to be
answered from the records and from the archive.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from typing import Final

from auditord.database.instants import MICROSECOND, from_micros, to_micros
from auditord.store.rollups.cells import END, FIRST_DAY, Level, first_of_month
from auditord.store.rollups.changes import CPU_TIME, MICROS_PER_DAY
from auditord.store.rows import META_COLUMNS, OLDER_KEYS
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    ComponentPresent,
    Dimension,
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
from auditord_hookspecs.zones import CHANGES_END, clock_changes, day_of

_KEYS: Final = {*META_COLUMNS, *OLDER_KEYS}
_USER_KEY: Final = "user_id"
_ABOUT_META: Final = (MetaContains, MetaContainsAny, MetaLacks, MetaAbsent)
_SHORT_UNITS: Final = {CalendarUnit.DAY, CalendarUnit.WEEK}

MOST_SPLIT_DAYS: Final = 400
"""Split days of a scope: more of them would make its statement long."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Cells of one level: periods from ``begin`` on, before ``end``."""

    level: Level
    begin: int
    end: int


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
    """

    query: AggregateQuery
    rest: Condition
    begin: int
    end: int
    first: int | None
    last: int | None

    def up_to(self, day: int) -> "Scope | None":
        """The same if the cells are complete up to a day; None if that leaves no day."""
        end = min(self.end, day)
        return None if end <= self.begin else replace(self, end=end)

    @property
    def may_split(self) -> bool:
        """True if days may belong to two periods."""
        return any(_zoned(self.query))

    def within(self, begin: int, end: int) -> "Scope | None":
        """The same of the days that have cells, with a bounded number of split days; None if that leaves no day.

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
        users = _asks_for_users(self.query, self.rest)
        days, months = (Level.DAY_AND_USER, Level.MONTH_AND_USER) if users else (Level.DAY, Level.MONTH)
        periods = [by for by in self.query.by if isinstance(by, CalendarPeriod)]
        if any(by.unit in _SHORT_UNITS or clock_changes(by.zone) for by in periods):
            return [Segment(days, self.begin, self.end)]
        first = self.begin if self.begin == FIRST_DAY else _next_month(self.begin)
        last = self.end if self.end == END else first_of_month(self.end)
        if first >= last:
            return [Segment(days, self.begin, self.end)]
        segments = [Segment(days, self.begin, first), Segment(months, first, last), Segment(days, last, self.end)]
        return [segment for segment in segments if segment.begin < segment.end]

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
        """The days whose records are in two periods of a time zone; see :func:`_split_days`."""
        return _split_days(frozenset(_zoned(self.query)), self.begin, self.end)

    def _only(self, stopped: Condition) -> AggregateQuery:
        return replace(self.query, where=AllOf((self.rest, stopped)))


def scope_of(query: AggregateQuery) -> Scope | None:
    """The part of a query that complete roll-ups answer; None if they answer nothing of it."""
    if query.window is not None or not all(map(_tells_apart, query.by)):
        return None
    times: list[TimeCompares] = []
    others: list[Condition] = []
    for condition in _each(query.where):
        if isinstance(condition, TimeCompares) and condition.field is TimeField.STOP:
            times.append(condition)
        else:
            others.append(condition)
    rest = AllOf(tuple(others))
    if not fold(rest, _is_covered, all, all):
        return None
    first, last = _range(times)
    begin = FIRST_DAY if first is None else -(-first // MICROS_PER_DAY)
    end = END if last is None else last // MICROS_PER_DAY
    return Scope(query, rest, begin, end, first, last).up_to(END)


def scope_within(query: AggregateQuery, begin: int, end: int) -> Scope | None:
    """The scope of a query that it was answered with: of these days."""
    scope = scope_of(query)
    return None if scope is None else replace(scope, begin=begin, end=end)


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


def _tells_apart(dimension: Dimension) -> bool:
    match dimension:
        case MetaValue(keys):
            return _KEYS.issuperset(keys)
        case CalendarPeriod(unit, field, zone):
            return field is TimeField.STOP and (unit is not CalendarUnit.DAY or not clock_changes(zone))
        case ComponentPresent(component):
            return component == CPU_TIME
        case _:
            return isinstance(dimension, ScoreValue)


def _is_covered(condition: Leaf) -> bool:
    if isinstance(condition, _ABOUT_META):
        return condition.key in _KEYS
    return isinstance(condition, IsOpen)


def _asks_for_users(query: AggregateQuery, rest: Condition) -> bool:
    by_user = any(isinstance(by, MetaValue) and _USER_KEY in by.keys for by in query.by)
    return by_user or fold(rest, partial(_is_about_users), any, any)


def _is_about_users(condition: Leaf) -> bool:
    return isinstance(condition, _ABOUT_META) and condition.key == _USER_KEY


def _zoned(query: AggregateQuery) -> Iterator[CalendarPeriod]:
    """The periods of time zones whose days are not those of UTC."""
    return (by for by in query.by if isinstance(by, CalendarPeriod) and clock_changes(by.zone))


@lru_cache(maxsize=64)
def _split_days(periods: Collection[CalendarPeriod], begin: int, end: int) -> Sequence[int]:
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


def _on_day(day: int) -> Condition:
    return _between(day * MICROS_PER_DAY, (day + 1) * MICROS_PER_DAY)


def _between(begin: int | None, end: int | None) -> Condition:
    """That a record stopped from one instant on, and before another."""
    bounds = ((Comparison.GTE, begin), (Comparison.LT, end))
    return AllOf(
        tuple(TimeCompares(TimeField.STOP, each, from_micros(micros)) for each, micros in bounds if micros is not None)
    )


def first_moment(day: int) -> datetime:
    """The begin of a day since 1970, in UTC."""
    return from_micros(day * MICROS_PER_DAY)


def _next_month(day: int) -> int:
    first = first_of_month(day)
    return day if first == day else first_of_month(first + 31)
