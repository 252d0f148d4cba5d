"""Queries for a record store: frozen values, which each store compiles to SQL.

A condition is data, so that the host can combine it with a restriction (such as a reader's site) without editing text.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Final, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

MOST_CPU_TIME: Final = Decimal("1.5")
"""Seconds of CPU time per core and second of runtime, above which the CPU time is implausible."""


class Comparison(Enum):
    """A comparison of values. The enum's values are the operator names of the wire contract."""

    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    EQUALS = "equals"


class TimeField(Enum):
    """The times of a record. Comparisons with the stop time of an open record are never true."""

    START = "start_time"
    STOP = "stop_time"


class SortField(Enum):
    """The field that orders an answer. ``record_id`` breaks ties, and open records sort after every stop time."""

    START = "start_time"
    STOP = "stop_time"
    RUNTIME = "runtime"
    ID = "record_id"


class Window(msgspec.Struct, frozen=True):
    """A half-open period of time: it includes its start but not its stop, so consecutive windows do not overlap.

    Args:
        start: the first instant (aware).
        stop: the first instant after the window (aware).

    Example::

        january = Window(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))
        assert january.start in january and january.stop not in january
    """

    start: datetime
    stop: datetime

    def __contains__(self, moment: datetime) -> bool:
        return self.start <= moment < self.stop


class IdEquals(msgspec.Struct, frozen=True):
    """The record has this id."""

    record_id: str


class TimeCompares(msgspec.Struct, frozen=True):
    """The start or stop time fulfils the comparison with an aware instant."""

    field: TimeField
    comparison: Comparison
    moment: datetime


class RuntimeCompares(msgspec.Struct, frozen=True):
    """The runtime in whole seconds fulfils the comparison; never true of an open record."""

    comparison: Comparison
    seconds: int


class MetaContains(msgspec.Struct, frozen=True):
    """The list under the key contains exactly this value; case matters."""

    key: str
    value: str


class MetaLacks(msgspec.Struct, frozen=True):
    """The record has the key, and the list under it does not contain the value (AUDITOR's ``dnc``)."""

    key: str
    value: str


class MetaContainsAny(msgspec.Struct, frozen=True):
    """The list under the key contains at least one of the values; never true without values."""

    key: str
    values: tuple[str, ...]


class MetaAbsent(msgspec.Struct, frozen=True):
    """The record does not have the key. A key with an empty list is not absent."""

    key: str


class ComponentCompares(msgspec.Struct, frozen=True):
    """At least one component of this name has an amount that fulfils the comparison."""

    name: str
    comparison: Comparison
    amount: int


class IsOpen(msgspec.Struct, frozen=True):
    """The record has no stop time yet."""


class ImplausibleCpuTime(msgspec.Struct, frozen=True):
    """The CPU time (``TotalCPU``) is more than :data:`MOST_CPU_TIME` times ``Cores`` times the runtime.

    One second is added to the runtime, since batch systems truncate times to whole seconds. If a record has
    ``CoreSeconds`` instead, these are compared, plus one. Never true of an open record, or of one that lacks either.
    """


class PlaceCompares(msgspec.Struct, frozen=True):
    """The record's place in the order of start times, then of ``record_id``, fulfils the comparison.

    Cursors use this condition: a start time does not change between two pages, but a stop time can. Ids compare by
    their bytes in UTF-8.
    """

    comparison: Comparison
    start_time: datetime
    record_id: str


class AllOf(msgspec.Struct, frozen=True):
    """All of the conditions hold; without conditions, true of every record."""

    conditions: tuple["Condition", ...] = ()


class AnyOf(msgspec.Struct, frozen=True):
    """At least one of the conditions holds; without conditions, true of no record."""

    conditions: tuple["Condition", ...] = ()


Leaf: TypeAlias = (
    IdEquals
    | TimeCompares
    | RuntimeCompares
    | MetaContains
    | MetaLacks
    | MetaContainsAny
    | MetaAbsent
    | ComponentCompares
    | IsOpen
    | ImplausibleCpuTime
    | PlaceCompares
)
"""A condition that contains no other conditions."""

Condition: TypeAlias = Leaf | AllOf | AnyOf


def fold(
    condition: Condition,
    leaf: Callable[[Leaf], T],
    all_of: Callable[[Sequence[T]], T],
    any_of: Callable[[Sequence[T]], T],
) -> T:
    """Fold a tree of conditions from its leaves, for example into SQL, a query string, or a test of one record.

    Args:
        condition: the tree.
        leaf: converts a condition that contains no others.
        all_of: combines results that must all hold.
        any_of: combines alternative results.
    """
    if isinstance(condition, AllOf | AnyOf):
        parts = [
            fold(part, leaf, all_of, any_of) if isinstance(part, AllOf | AnyOf) else leaf(part)
            for part in condition.conditions
        ]
        return all_of(parts) if isinstance(condition, AllOf) else any_of(parts)
    return leaf(condition)


def match_stopped(window: Window) -> AllOf:
    """Return the condition for records that stopped in a window. Consecutive months share no record."""
    not_before = TimeCompares(TimeField.STOP, Comparison.GTE, window.start)
    return AllOf((not_before, TimeCompares(TimeField.STOP, Comparison.LT, window.stop)))


class Order(msgspec.Struct, frozen=True):
    """The order of an answer. In descending order, open records come first (as in PostgreSQL)."""

    field: SortField = SortField.STOP
    descending: bool = False


class RecordQuery(msgspec.Struct, frozen=True):
    """A selection of records, their order, and a limit.

    Args:
        where: the condition.
        order: the order of the answer.
        limit: the maximum number of records; 0 selects none.
        released: also select released records, which only the lake has.
    """

    where: Condition = msgspec.field(default_factory=AllOf)
    order: Order = msgspec.field(default_factory=Order)
    limit: int | None = None
    released: bool = False
