"""The part of a query for sums that roll-ups answer.

That is whole days of UTC of stop times, for queries that ask for nothing which cells do not tell apart: grouped by
site, group, user, scores and periods of the stop time in UTC, with conditions on sites, groups and users, without a
window. Of a range of stop times that does not begin and end with days, as a month of another time zone, the days within
are read from roll-ups, and both edges from the records.

The archive: records that have moved there stay in the roll-ups. So with a :class:`Scope`, the archive is only asked for
what roll-ups do not answer: the queries of :meth:`Scope.edges`, and records with ``more``. That is what the statement
of ``compile_aggregate(query, dialect, scope)`` reads where the tables of roll-ups are empty. If there is no scope, or
:class:`auditord.store.aggregates.NotRolledUp` is raised while the rows are put together, the whole query has to be
answered from the records and from the archive.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from auditord.database.instants import from_micros, to_micros
from auditord.store.rollups.cells import END, FIRST_DAY, Level, first_of_month
from auditord.store.rollups.changes import MICROS_PER_DAY
from auditord.store.rows import META_COLUMNS, OLDER_KEYS
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    Dimension,
    MetaValue,
    ScoreValue,
)
from auditord_hookspecs.query import (
    AllOf,
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

_KEYS: Final = {*META_COLUMNS, *OLDER_KEYS}
_USER_KEY: Final = "user_id"
_ABOUT_META: Final = (MetaContains, MetaContainsAny, MetaLacks, MetaAbsent)
_SHORT_UNITS: Final = {CalendarUnit.DAY, CalendarUnit.WEEK}


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

    def segments(self) -> Sequence[Segment]:
        """The cells that answer it, as coarse as may be."""
        users = _asks_for_users(self.query, self.rest)
        days, months = (Level.DAY_AND_USER, Level.MONTH_AND_USER) if users else (Level.DAY, Level.MONTH)
        if any(isinstance(by, CalendarPeriod) and by.unit in _SHORT_UNITS for by in self.query.by):
            return [Segment(days, self.begin, self.end)]
        first = self.begin if self.begin == FIRST_DAY else _next_month(self.begin)
        last = self.end if self.end == END else first_of_month(self.end)
        if first >= last:
            return [Segment(days, self.begin, self.end)]
        segments = [Segment(days, self.begin, first), Segment(months, first, last), Segment(days, last, self.end)]
        return [segment for segment in segments if segment.begin < segment.end]

    def edges(self) -> Iterator[AggregateQuery]:
        """Queries for the finished records outside of these days."""
        begin, end = self.begin * MICROS_PER_DAY, self.end * MICROS_PER_DAY
        for outside in self.outside():
            is_asked = self.first != begin if outside.comparison is Comparison.LT else self.last != end
            if is_asked:
                yield replace(self.query, where=AllOf((self.query.where, outside)))

    def outside(self) -> Iterator[TimeCompares]:
        """Conditions of which one is true for each finished record outside of these days."""
        if self.begin > FIRST_DAY:
            yield TimeCompares(TimeField.STOP, Comparison.LT, from_micros(self.begin * MICROS_PER_DAY))
        if self.end < END:
            yield TimeCompares(TimeField.STOP, Comparison.GTE, from_micros(self.end * MICROS_PER_DAY))


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
        case CalendarPeriod(_, field, zone):
            return field is TimeField.STOP and not clock_changes(zone)
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


def _next_month(day: int) -> int:
    first = first_of_month(day)
    return day if first == day else first_of_month(first + 31)
