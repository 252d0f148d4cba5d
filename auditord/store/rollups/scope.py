"""The part of a query for sums that roll-ups answer.

Roll-ups answer for whole UTC days of stop times, if the cells distinguish everything that the query asks for: grouping
by site, group, user, scores and periods of the stop time, conditions on sites, groups and users, and no window. Instead
of users, or beside them, the query can use one of the keys that have cells of their own. If a range of stop times does
not begin and end with a UTC day, such as a month in another time zone, the days within it are read from roll-ups, and
both edges from the records. Days that belong to two periods of such a zone are also read from the records, unless there
are cells by the zone's days (:mod:`auditord.store.rollups.cells`).

A current sum is that of the cells, plus versions after the position of their consumer, minus versions in the cells that
were removed after it. All are read from one state of the database.

Released records, which only the lake has, stay in the cells. So with a :class:`Scope`, the lake is only queried for
the rest: the queries of :meth:`Scope.edges`, and records with ``more``. If there is no scope, or the cells turn out not
to suffice (:class:`auditord.store.aggregates.NotRolledUp`), the whole query is answered from the records and the lake.

Roll-ups also show which users have few records. Lists of these records are found by user and sorted. Otherwise, the
index of the order is scanned, which fetches every record to see its user until the limit is reached. That is soon for
users with many records.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import date
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from auditord.database.instants import from_micros, to_micros
from auditord.store.conditions import can_be_there
from auditord.store.feed import end_of_feed
from auditord.store.rollups.cells import (
    CORES,
    CORES_KEY,
    END,
    FIRST_DAY,
    GROUPED_KEYS,
    MICROS_PER_DAY,
    PRESENCE,
    CellSet,
    Level,
    Segment,
    is_of_zone,
    key_of_zone,
    number_of,
    segments,
    segments_of_dates,
    split_days,
)
from auditord.store.rollups.folding import days_with_cells, list_sets
from auditord.store.work import Work, as_json, ask, compute
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    ExceedsRuntime,
    MetaValue,
    RecordQuery,
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
from auditord_hookspecs.vocabulary import HELD
from auditord_hookspecs.zones import clock_changes

_USER_KEY: Final = "user_id"
_ABOUT_META: Final = (MetaContains, MetaContainsAny, MetaLacks, MetaAbsent)
_LOWER: Final = {Comparison.GT, Comparison.GTE}
_UPPER: Final = {Comparison.LT, Comparison.LTE}
_SHORT_UNITS: Final = {CalendarUnit.DAY, CalendarUnit.WEEK}

_FIRST_SET: Final = CellSet(0, None)

_FAR_BEHIND: Final = 50_000
"""The number of positions after the cells' own above which records are found by time instead of by position."""

MOST_SPLIT_DAYS: Final = 400
"""The maximum number of split days in a scope, since each makes the statement longer."""


class Scope(msgspec.Struct, frozen=True):
    """The part of a query that roll-ups answer.

    Args:
        query: the query.
        rest: its conditions except those on the stop time.
        begin: the first UTC day that roll-ups answer for, as a number since 1970.
        end: the day after the last one.
        first: the lower bound of the query's stop times, in microseconds since 1970; None if it has none.
        last: the upper bound, which is exclusive.
        cells: the set of cells that is read.
    """

    query: AggregateQuery
    rest: Condition
    begin: int
    end: int
    first: int | None
    last: int | None
    cells: CellSet = _FIRST_SET

    @property
    def days(self) -> tuple[int, int, str | None]:
        """The arguments by which :func:`scope_within` recreates this scope."""
        return self.begin, self.end, self.cells.key

    def within(self, begin: int, end: int) -> "Scope | None":
        """Narrow the scope to days that have cells, and bound the number of split days. Return None if no day is left.

        The few records of all other days are read one by one.
        """
        begin, end = max(begin, self.begin), min(end, self.end)
        if end <= begin:
            return None
        narrow = replace(self, begin=begin, end=end)
        split = narrow.split_days()
        return narrow if len(split) <= MOST_SPLIT_DAYS else replace(narrow, begin=split[-MOST_SPLIT_DAYS])

    def segments(self) -> Sequence[Segment]:
        """Return the cells to read: those of months and days, or only those of days."""
        periods = [by for by in self.query.by if isinstance(by, CalendarPeriod)]
        zone_part = self.cells.zone_part
        if any(by.unit in _SHORT_UNITS or key_of_zone(by.zone) != zone_part for by in periods):
            return [Segment(is_of_months=False, begin=self.begin, end=self.end)]
        return (segments if zone_part is None else segments_of_dates)(self.begin, self.end)

    def level(self, segment: Segment) -> int:
        if self.cells.has_users and _asks_for_users(self.query, self.rest):
            return self.cells.level(Level.MONTH_AND_USER if segment.is_of_months else Level.DAY_AND_USER)
        return self.cells.level(Level.MONTH if segment.is_of_months else Level.DAY)

    def users(self) -> Sequence[str] | None:
        """Return the users to which the query is restricted, or None."""
        for condition in _conjuncts(self.rest):
            match condition:
                case MetaContains(key, value) if key == _USER_KEY:
                    return (value,)
                case MetaContainsAny(key, values) if key == _USER_KEY:
                    return values
                case _:
                    pass
        return None

    def edges(self) -> Iterator[AggregateQuery]:
        """Yield queries for the finished records that the cells do not cover.

        Each bound occurs once: SQLite only uses the first for an index lookup, and scans all that follow it.
        """
        begin, end = self.begin * MICROS_PER_DAY, self.end * MICROS_PER_DAY
        if self.begin > FIRST_DAY and self.first != begin:
            yield self._only(_between(self.first, begin))
        if self.end < END and self.last != end:
            yield self._only(_between(end, self.last))
        if split := self.split_days():
            yield self._only(AnyOf(tuple(map(_on_day, split))))

    def outside(self) -> Iterator[Condition]:
        """Yield conditions: for each finished record that the cells do not cover, exactly one is true."""
        if self.begin > FIRST_DAY:
            yield _between(None, self.begin * MICROS_PER_DAY)
        if self.end < END:
            yield _between(self.end * MICROS_PER_DAY, None)
        yield from map(_on_day, self.split_days())

    def split_days(self) -> Sequence[int]:
        """Return the days whose records fall into two periods of a time zone; see :func:`split_days`."""
        return split_days(self.periods_in_zones(), self.begin, self.end)

    def periods_in_zones(self) -> Iterator[CalendarPeriod]:
        """Return the periods whose days the cells do not distinguish."""
        return (by for by in _periods_in_zones(self.query) if key_of_zone(by.zone) not in self.cells.parts)

    def _only(self, stopped: Condition) -> AggregateQuery:
        return replace(self.query, where=AllOf((self.rest, stopped)))


def scope_of(query: AggregateQuery, sets: Sequence[CellSet] = (_FIRST_SET,)) -> Scope | None:
    """Return the part of a query that roll-ups answer, or None.

    Args:
        query: the query.
        sets: sets of cells. Complete sets of the query's time zone are preferred; else the first suitable set is used.
    """
    if query.window is not None or any(usage.component in HELD for usage in query.usage):
        return None  # cells have totals of held amounts only as part of these
    times: list[TimeCompares] = []
    others: list[Condition] = []
    for condition in _conjuncts(query.where):
        if isinstance(condition, TimeCompares) and condition.field is TimeField.STOP:
            times.append(condition)
        else:
            others.append(condition)
    rest = AllOf(tuple(others))
    wanted = {key_of_zone(by.zone) for by in _periods_in_zones(query)}
    of_zones = [each for each in sets if not wanted.isdisjoint(each.parts) and each.filled_from == FIRST_DAY]
    of_zones.sort(key=lambda each: len(each.parts))  # the fewest cells
    for cells in (*of_zones, *sets):
        parts = cells.parts
        known = {*GROUPED_KEYS, *[part for part in parts if not is_of_zone(part)]}
        if (  # the cells distinguish everything that the query asks for
            (cells.has_users or not _asks_for_users(query, rest))
            and all(_is_grouped(each, known, parts) for each in query.by)
            and fold(rest, partial(_is_covered, known), all, all)
        ):
            bounds = [(to_micros(each.moment), each.comparison) for each in times]
            first = max([at + (how is Comparison.GT) for at, how in bounds if how not in _UPPER], default=None)
            last = min([at + (how is not Comparison.LT) for at, how in bounds if how not in _LOWER], default=None)
            begin = FIRST_DAY if first is None else -(-first // MICROS_PER_DAY)
            end = END if last is None else last // MICROS_PER_DAY
            begin = max(begin, cells.filled_from)
            return Scope(query, rest, begin, end, first, last, cells) if begin < end else None
    return None


def scope_within(query: AggregateQuery, begin: int, end: int, key: str | None) -> Scope | None:
    """Recreate the scope that a query was answered with, from its days and the key of its cells."""
    scope = scope_of(query, [CellSet(0, key)])
    return None if scope is None else replace(scope, begin=begin, end=end)


class Rolled(msgspec.Struct, frozen=True):
    """The part of a query that roll-ups answer, and how the rest of the feed is read.

    Args:
        scope: the part.
        has_removals: whether versions that are in the cells have been removed after the position of the cells.
        is_far_behind: whether very many versions are not in the cells yet.
    """

    scope: Scope
    has_removals: bool = False
    is_far_behind: bool = False


def find_rolled_part(query: AggregateQuery) -> Work[Rolled | None]:
    """Return the part of a query that roll-ups answer. Call it in the transaction that answers the query."""
    if query.window is not None:
        return None
    scope = yield from compute(partial(scope_of, query, (yield from list_sets())))
    if scope is not None and any(scope.periods_in_zones()):  # a day may belong to two of them
        scope = yield from compute(partial(scope.within, *(yield from days_with_cells())))
    if scope is None:
        return None
    position = scope.cells.position
    has_removals = bool((yield from ask("has_removals_behind", position=position)))
    is_far_behind = (yield from end_of_feed()) - position > _FAR_BEHIND
    return Rolled(scope, has_removals, is_far_behind)


def have_totals() -> Work[bool]:
    """Return whether any record has the total of a held amount."""
    return bool((yield from ask("has_totals")))


def _conjuncts(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, AllOf):
        for each in condition.conditions:
            yield from _conjuncts(each)
    else:
        yield condition


def _is_grouped(dimension: Dimension, known: Collection[str], parts: Collection[str]) -> bool:
    match dimension:
        case MetaValue(keys):
            return set(keys) <= set(known)
        case CalendarPeriod(unit, field, zone):
            has_days = not clock_changes(zone) or key_of_zone(zone) in parts
            return field is TimeField.STOP and (unit is not CalendarUnit.DAY or has_days)
        case ComponentPresent(component):
            return component in PRESENCE
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


def _periods_in_zones(query: AggregateQuery) -> Iterator[CalendarPeriod]:
    """Return the periods in time zones whose days differ from those of UTC."""
    return (by for by in query.by if isinstance(by, CalendarPeriod) and clock_changes(by.zone))


def _on_day(day: int) -> Condition:
    return _between(day * MICROS_PER_DAY, (day + 1) * MICROS_PER_DAY)


def _between(begin: int | None, end: int | None) -> Condition:
    """Return the condition that a record stopped at or after one instant and before another, in microseconds."""
    bounds = ((Comparison.GTE, begin), (Comparison.LT, end))
    return AllOf(
        tuple(TimeCompares(TimeField.STOP, each, from_micros(micros)) for each, micros in bounds if micros is not None)
    )


FEW_TO_SORT: Final = 10_000
"""Up to this number of records, finding them by another index and sorting is faster than scanning in order."""

_PASSED_FOR_ONE: Final = 10
"""The number of a user's records, for each wanted one, above which a scan in order is likely to end early."""

_MONTHS: Final = as_json([number_of(date(year, month, 1)) for year in range(1970, 2100) for month in range(1, 13)])
"""The months whose cells are looked up. Other months would only affect the choice of the plan, not the answer."""


def users_wanted(query: RecordQuery) -> Sequence[str]:
    """Return the users to which a query is restricted; empty if it is not restricted to users."""
    return [user for user in fold(query.where, _users, _first, lambda _: ()) if can_be_there(user)]


def have_few(users: Sequence[str], limit: int | None) -> Work[bool]:
    """Return whether users have few records compared to the limit of an answer; False if that is unknown."""
    most = FEW_TO_SORT if limit is None else min(FEW_TO_SORT, _PASSED_FOR_ONE * limit)
    rows = yield from ask("rolled_records_of_users", users=as_json(users), months=_MONTHS, most=FEW_TO_SORT)
    return bool(rows) and rows[0][0] <= most


def _users(leaf: Leaf) -> Sequence[str]:
    match leaf:
        case MetaContains("user_id", value):
            return (value,)
        case MetaContainsAny("user_id", values):
            return values
        case _:
            return ()


def _first(parts: Sequence[Sequence[str]]) -> Sequence[str]:
    return next(filter(None, parts), ())
