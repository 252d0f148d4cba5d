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

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date
from functools import lru_cache, partial
from typing import Final

import msgspec
from msgspec.structs import replace

from auditord.database.instants import MICROS_PER_DAY, MICROSECOND, from_micros, to_micros
from auditord.store.conditions import can_be_there
from auditord.store.rollups.cells import (
    CORES,
    CORES_KEY,
    END,
    FIRST_DAY,
    GROUPED_KEYS,
    PRESENCE,
    CellSet,
    Level,
    day_with_number,
    days_with_cells,
    is_of_zone,
    key_of_zone,
    list_sets,
    number_of,
)
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


class Segment(msgspec.Struct, frozen=True):
    """A range of days whose cells of one size are read.

    Args:
        is_of_months: whether cells of months are read, not cells of days.
        begin: the first day.
        end: the day after the last one.
        first_date: the first date in the set's time zone; cells of earlier dates are left out.
        end_date: the date in the set's time zone after the last one; cells of this date and later ones are left out.
    """

    is_of_months: bool
    begin: int
    end: int
    first_date: int | None = None
    end_date: int | None = None

    def periods(self) -> Sequence[int]:
        """Return the first day of each period."""
        days = range(self.begin, self.end)
        return list(dict.fromkeys(map(first_of_month, days))) if self.is_of_months else list(days)


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
        if _asks_for_users(self.query, self.rest) and self.cells.has_users:
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
    of_zones = [each for each in sets if wanted and not wanted.isdisjoint(each.parts) and each.filled_from == FIRST_DAY]
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
    ((has_removals, end),) = yield from ask("look_behind", position=position)
    return Rolled(scope, bool(has_removals), end - position > _FAR_BEHIND)


def have_totals() -> Work[bool]:
    """Return whether any record has the total of a held amount."""
    return bool((yield from ask("has_totals")))


def segments(begin: int, end: int) -> Sequence[Segment]:
    """Split the days from ``begin`` to before ``end`` into whole months, and single days before and after them."""
    first = begin if begin in {FIRST_DAY, first_of_month(begin)} else first_of_month(first_of_month(begin) + 31)
    last = end if end == END else first_of_month(end)
    if first >= last:
        return [Segment(is_of_months=False, begin=begin, end=end)]
    before = [Segment(is_of_months=False, begin=begin, end=first)] if begin < first else []
    after = [Segment(is_of_months=False, begin=last, end=end)] if last < end else []
    return [*before, Segment(is_of_months=True, begin=first, end=last), *after]


def segments_of_dates(begin: int, end: int) -> Sequence[Segment]:
    """Split days of UTC like :func:`segments`, for cells whose months are months in a time zone.

    A date in a zone differs from the date in UTC by one day at most. So all records of a month stopped within the
    range if the range contains the month and one more day of UTC on both sides.
    """
    first, last = (begin if begin == FIRST_DAY else begin + 1), (end if end == END else end - 1)
    months = next((each for each in segments(first, max(first, last)) if each.is_of_months), None)
    if months is None:
        return [Segment(is_of_months=False, begin=begin, end=end)]
    # Days before and after the months overlap them by one day of UTC, since that day can also have records with dates
    # outside the months. The date limit of a segment keeps records from being counted twice.
    days = list[Segment]()
    if begin < months.begin:
        days.append(Segment(is_of_months=False, begin=begin, end=months.begin + 1, end_date=months.begin))
    if months.end < end:
        days.append(Segment(is_of_months=False, begin=months.end - 1, end=end, first_date=months.end))
    return [*days, months]


@lru_cache(10_000)
def first_of_month(day: int) -> int:
    """Return the first day of the month that a day belongs to."""
    return number_of(day_with_number(day).replace(day=1))


def split_days(periods: Iterable[CalendarPeriod], begin: int, end: int) -> Sequence[int]:
    """Return the days of UTC that contain instants of two periods, according to the time zone of the periods.

    Cells that do not group by the zone's dates cannot divide the records of such a day. For example, a month in Berlin
    begins at 22:00 or 23:00 UTC on the last day of the month before. All other days lie within one period.
    """
    split = [_split_days(period.unit, period.zone) for period in periods]
    return sorted({day for days in split for day in days[bisect_left(days, begin) : bisect_left(days, end)]})


@lru_cache(maxsize=256)
def _split_days(unit: CalendarUnit, zone: str) -> Sequence[int]:
    """Return the split days of one kind of period, in order.

    Between two changes of the clocks, a period begins at midnight of its first date. At a change, the clocks can skip
    the midnight, or show it again.
    """
    changes, days = clock_changes(zone), set[int]()
    for at, change in enumerate(changes):
        begin, ahead = to_micros(change.moment), change.ahead // MICROSECOND
        end = to_micros(changes[at + 1].moment) if at + 1 < len(changes) else begin
        before = changes[at - 1].ahead // MICROSECOND if at else 0
        first, last = (unit.first_day(_date_at(each)) for each in (begin - 1 + before, begin + ahead))
        if first != last and begin % MICROS_PER_DAY:
            days.add(begin // MICROS_PER_DAY)
        day, last_date = unit.first_day(_date_at(begin + ahead)), _date_at(end - 1 + ahead)
        while (day := unit.next_first_day(day)) <= last_date:
            midnight = number_of(day) * MICROS_PER_DAY - ahead
            if midnight % MICROS_PER_DAY:
                days.add(midnight // MICROS_PER_DAY)
    return tuple(sorted(days))


def _date_at(micros: int) -> date:
    return day_with_number(micros // MICROS_PER_DAY)


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
