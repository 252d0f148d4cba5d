"""Queries for sums over records, and their answers. The store computes the sums; see ``PluginContext.records``.

A record counts if its stop time is not before its start. If the query has ``as_of``, open records that had started by
that instant count too, as if they had stopped then. With a window, only records that overlap it count (a job of zero
length is in the window that contains its instant), so consecutive windows count each microsecond once.

A held amount counts in both of its forms (:mod:`auditord_hookspecs.vocabulary`): a query for ``Cores`` also adds up
``CoreSeconds``. With a window, a total counts in proportion to the overlap. Other totals, such as ``TotalCPU``, count
with their whole amount in every window that their record overlaps.

All sums are integers of any size, and products with scores are exact decimals. Callers round them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact
from enum import Enum
from fractions import Fraction
from typing import Final, TypeAlias

import msgspec

from auditord_hookspecs.query import AllOf, Condition, TimeField, Window
from auditord_hookspecs.records import Record
from auditord_hookspecs.vocabulary import TOTALS
from auditord_hookspecs.zones import UTC_NAME, zone_named

# The largest and the smallest score are 632 decimal digits apart, so every sum of products with integers is exact.
_EXACT: Final = Context(prec=1_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])

SUMS_PER_GROUP: Final = 5
"""The most sums of an answer, as a multiple of :attr:`AggregateQuery.most_groups`. Each group counts as one, and so do
each component, each score, and each value of a score in it."""

_LARGEST: Final = 1e300
"""A million floats of this size still have a sum that is a float."""


class CalendarUnit(Enum):
    """Calendar periods; weeks begin on Monday (ISO 8601)."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"

    def first_day(self, day: date) -> date:
        """Return the first day of the period that contains a day."""
        match self:
            case CalendarUnit.DAY:
                return day
            case CalendarUnit.WEEK:
                return day - timedelta(days=day.weekday())
            case CalendarUnit.MONTH:
                return day.replace(day=1)
            case CalendarUnit.QUARTER:
                return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
            case CalendarUnit.YEAR:
                return day.replace(month=1, day=1)

    def next_first_day(self, first: date) -> date:
        """Return the first day of the next period, given that of a period."""
        return self.first_day(first + timedelta(days=_LONGEST_PERIODS[self]))


_LONGEST_PERIODS: Final[Mapping[CalendarUnit, int]] = {
    CalendarUnit.DAY: 1,
    CalendarUnit.WEEK: 7,
    CalendarUnit.MONTH: 31,
    CalendarUnit.QUARTER: 92,
    CalendarUnit.YEAR: 366,
}


@dataclass(frozen=True, slots=True)
class MetaValue:
    """Groups by the first value under the first of these keys that a record has; None if it has none of them.

    Use it for site, group, user or any other label: ``MetaValue("site_id", "site")`` for a key and its older name.

    Args:
        keys: meta keys, at least one.
    """

    keys: tuple[str, ...]

    def __init__(self, *keys: str) -> None:
        if not keys:
            raise ValueError("MetaValue() needs a key")
        object.__setattr__(self, "keys", keys)


class ComponentAmount(msgspec.Struct, frozen=True):
    """Groups by the amount of a component, summed if a record has several of this name; None if it has none.

    Args:
        component: the component's name.
    """

    component: str


class ComponentPresent(msgspec.Struct, frozen=True):
    """Groups by whether a record has a component of this name, or its total.

    This separates, for example, the cores of jobs with a known CPU time from those of other jobs.

    Args:
        component: the component's name.
    """

    component: str


class ExceedsRuntime(msgspec.Struct, frozen=True):
    """Groups by whether a record has more of a component than is plausible for its runtime plus one second.

    Args:
        component: the name of a component in seconds, such as TotalCPU.
        factor: the largest plausible amount per second: at least 0, below 10^9, with at most nine decimals.
        per: the name of a component whose amount multiplies the factor, such as Cores; None: the factor alone. Instead
            of Cores, a record may have CoreSeconds, to which one core-second is added.
    """

    component: str
    factor: Decimal
    per: str | None = None

    def __post_init__(self) -> None:
        if not (self.factor.is_finite() and 0 <= self.factor < 10**9 and self.factor == round(self.factor, 9)):
            raise ValueError(f"a factor must be below 10^9, with at most nine decimals, not {self.factor}")

    def holds(self, amount: int | None, runtime: int | None, per: int | None, total: int | None = None) -> bool:
        """Return whether a record with these amounts and this runtime in seconds exceeds the limit.

        Args:
            amount: of the component.
            runtime: in seconds.
            per: the amount of the component that multiplies the factor.
            total: the total that the record has instead, such as CoreSeconds.
        """
        if amount is not None and total is not None and runtime is not None:
            return amount > Fraction(self.factor) * (total + 1)
        times = 1 if self.per is None else per
        if amount is None or runtime is None or times is None:
            return False
        return amount > Fraction(self.factor) * times * (runtime + 1)


class ScoreValue(msgspec.Struct, frozen=True):
    """Groups by the value of a score of the record's first component of this name (or its total); None without one.

    Args:
        component: the component's name.
        score: the score's name.
    """

    component: str
    score: str


class CalendarPeriod(msgspec.Struct, frozen=True):
    """Groups by the day, week, month, quarter or year in which records started or stopped; the key is its first day.

    An open record counts as if it had stopped at the query's ``as_of``.

    Args:
        unit: day, week, month, quarter or year.
        field: the start or the stop time.
        zone: the time zone of the calendar, such as Europe/Berlin. Zones other than UTC and ``ui.timezone`` have no
            roll-ups, so the store reads records: all of them for days, only those on border days for longer periods.

    Raises:
        ValueError: this host does not have the zone.
    """

    unit: CalendarUnit
    field: TimeField = TimeField.STOP
    zone: str = UTC_NAME

    def __post_init__(self) -> None:
        zone_named(self.zone)


Dimension: TypeAlias = MetaValue | ComponentAmount | ComponentPresent | ExceedsRuntime | ScoreValue | CalendarPeriod
"""A property of records by which an :class:`AggregateQuery` groups them."""

KeyValue: TypeAlias = str | int | bool | Decimal | date | None


class ComponentUsage(msgspec.Struct, frozen=True):
    """A request for sums over the components of one name, optionally split by the values of scores.

    Args:
        component: the components' name. The name of a held amount includes its total.
        scores: names of scores.
    """

    component: str
    scores: tuple[str, ...] = ()


class AggregateQuery(msgspec.Struct, frozen=True):
    """A query for sums over records.

    Args:
        where: a condition on the records, in addition to the rules of this module.
        by: the dimensions to group by; without any, all records are one group.
        usage: the components to sum up.
        window: limits the runtime of each record to its overlap with this window. An empty window has no records.
        as_of: an aware instant at which open records count as stopped; without it they are left out.
        most_groups: the store raises :class:`TooManyGroups` if there are more groups, or more than
            :data:`SUMS_PER_GROUP` times as many sums; None: no limit.

    Example::

        january = Window(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))
        AggregateQuery(by=(MetaValue("group_id"),), usage=(ComponentUsage("Cores"),), window=january)
    """

    where: Condition = msgspec.field(default_factory=AllOf)
    by: tuple[Dimension, ...] = ()
    usage: tuple[ComponentUsage, ...] = ()
    window: Window | None = None
    as_of: datetime | None = None
    most_groups: int | None = None

    def __post_init__(self) -> None:
        moments = [self.as_of] if self.window is None else [self.as_of, self.window.start, self.window.stop]
        if any(moment is not None and moment.tzinfo is None for moment in moments):
            raise ValueError("an instant needs a zone")
        if self.window is not None and self.window.stop < self.window.start:
            raise ValueError("the window ends before it begins")

    @property
    def ticks_per_second(self) -> int:
        """Ticks per second of runtimes in the answer: 1, or 1,000,000 (microseconds of overlap) with a window."""
        return 1 if self.window is None else 1_000_000


class AmountSums(msgspec.Struct, frozen=True, gc=False):
    """Sums over components.

    Args:
        amount: the sum of amounts. A held amount's total is not part of it.
        amount_runtime: the sum of amount times runtime, in the answer's ticks. Totals of held amounts count with their
            amount, since they already are such a product.
    """

    amount: int = 0
    amount_runtime: int = 0

    def __add__(self, other: "AmountSums") -> "AmountSums":
        return AmountSums(self.amount + other.amount, self.amount_runtime + other.amount_runtime)


class ScoreSums(msgspec.Struct, frozen=True, gc=False):
    """The sums over components, split by the value of a score.

    Args:
        by_value: the sums for each value of the score; None is for components without it.
    """

    by_value: Mapping[Decimal | None, AmountSums]

    @property
    def amount(self) -> Decimal:
        """The exact sum of amount times score; components without the score are left out."""
        return _product({value: sums.amount for value, sums in self.by_value.items()})

    @property
    def amount_runtime(self) -> Decimal:
        """The exact sum of amount times score times runtime in ticks; components without the score are left out."""
        return _product({value: sums.amount_runtime for value, sums in self.by_value.items()})

    @property
    def unscored(self) -> AmountSums:
        """The sums over the components that do not have the score."""
        return self.by_value.get(None, AmountSums())


class UsageSums(msgspec.Struct, frozen=True, gc=False):
    """The sums of the components of one name.

    Args:
        sums: the sums over all of them.
        scores: for each requested score, the sums split by its values.
        known: False if no record of the group has the component, nor its total. The sums are then unknown, not zero.
    """

    sums: AmountSums
    scores: Mapping[str, ScoreSums]
    known: bool = True


class Group(msgspec.Struct, frozen=True, gc=False):
    """The sums over one group of records.

    Args:
        key: one value for each dimension of the query's ``by``.
        records: the number of records, at least one.
        runtime: the sum of their runtimes in the answer's ticks.
        first_stop: the earliest stop time.
        last_stop: the latest stop time.
        usage: the sums for each element of the query's ``usage``.
    """

    key: tuple[KeyValue, ...]
    records: int
    runtime: int
    first_stop: datetime
    last_stop: datetime
    usage: tuple[UsageSums, ...]


class LakeSnapshot(msgspec.Struct, frozen=True):
    """The immutable state of the lake after a commit.

    Args:
        number: the number of the Iceberg snapshot, for queries with other engines.
        committed_at: the time of the commit; later changes are not included.
        is_complete: False during the first sync of a record store, when sums are too low.
    """

    number: int
    committed_at: datetime
    is_complete: bool = True


class Aggregates(msgspec.Struct, frozen=True):
    """The answer to an :class:`AggregateQuery`.

    Args:
        groups: the groups, ordered by key with None first; empty if no record counts.
        ticks_per_second: the ticks of one second of runtime: 1, or 1,000,000 for a query with a window.
        snapshot: the snapshot that answered a query of the lake; None for a query of the record store.

    Example::

        answer = await context.records.aggregate(AggregateQuery(usage=(ComponentUsage("Cores"),)))
        for group in answer.groups:
            cores = group.usage[0].sums  # of the first of the query's usage
            core_hours = cores.amount_runtime / answer.ticks_per_second / 3600
    """

    groups: tuple[Group, ...]
    ticks_per_second: int
    snapshot: LakeSnapshot | None = None


def in_order(key: tuple[KeyValue, ...]) -> list[tuple[bool, KeyValue]]:
    """Return a sort key for the keys of groups: None comes before all other values."""
    return [(value is not None, value) for value in key]


def meta_value(record: Record, keys: Sequence[str]) -> str | None:
    """Compute :class:`MetaValue` for a record."""
    for key in keys:
        if (values := (record.meta or {}).get(key)) is not None:
            return values[0] if values else None
    return None


def amount_of(record: Record, component: str) -> int | None:
    """Compute :class:`ComponentAmount` for a record."""
    amounts = [each.amount for each in record.components if each.name == component]
    return sum(amounts) if amounts else None


def compute_held_time(record: Record, component: str) -> int | None:
    """Return the total of a held amount, or amount times runtime in seconds; None if either is unknown."""
    if (total := amount_of(record, TOTALS[component])) is not None:
        return total
    amount, runtime = amount_of(record, component), record.runtime
    return None if amount is None or runtime is None else amount * runtime


def compute_held_amount(record: Record, component: str) -> Fraction | None:
    """Return a held amount or, for a record with its total, the mean over the runtime; None if unknown."""
    if (amount := amount_of(record, component)) is not None:
        return Fraction(amount)
    total = amount_of(record, TOTALS[component])
    return None if total is None or not record.runtime else Fraction(total, record.runtime)


def exact_score(value: float) -> Decimal:
    """Convert a score to the shortest decimal that parses as the same float."""
    return Decimal(repr(value))


def nearest_float(value: Fraction) -> float:
    """Convert a sum to a float, at most 10^300: absurd scores have sums that no float has."""
    try:
        return min(float(value), _LARGEST)
    except OverflowError:
        return _LARGEST


def _product(sums: Mapping[Decimal | None, int]) -> Decimal:
    total = Decimal()
    for value, number in sums.items():
        if value is not None:
            total = _EXACT.fma(value, Decimal(number), total)
    return total
