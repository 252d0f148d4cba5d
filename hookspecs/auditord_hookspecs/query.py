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
"""Seconds of CPU time for each second of a core; more than that is implausible."""


class Comparison(Enum):
    """The comparison of a value; the values are the wire contract's operator names."""

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
    """The order of an answer; ``record_id`` breaks ties, open records sort after every stop time."""

    START = "start_time"
    STOP = "stop_time"
    RUNTIME = "runtime"
    ID = "record_id"


class Window(msgspec.Struct, frozen=True):
    """A half-open period of time, from its start to before its stop, so consecutive windows do not overlap.

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
    """The record with this id."""

    record_id: str


class TimeCompares(msgspec.Struct, frozen=True):
    """A start or stop time against an aware instant."""

    field: TimeField
    comparison: Comparison
    moment: datetime


class RuntimeCompares(msgspec.Struct, frozen=True):
    """The runtime in whole seconds; never true of an open record."""

    comparison: Comparison
    seconds: int


class MetaContains(msgspec.Struct, frozen=True):
    """The list under the key has the value, as a whole and case-sensitive."""

    key: str
    value: str


class MetaLacks(msgspec.Struct, frozen=True):
    """The record has the key and the list under it does not have the value (AUDITOR's ``dnc``)."""

    key: str
    value: str


class MetaContainsAny(msgspec.Struct, frozen=True):
    """The list under the key has at least one of the values; with none, no record."""

    key: str
    values: tuple[str, ...]


class MetaAbsent(msgspec.Struct, frozen=True):
    """The record does not have the key; an empty list under it is not absence."""

    key: str


class ComponentCompares(msgspec.Struct, frozen=True):
    """Any component of this name has an amount that fulfils the comparison."""

    name: str
    comparison: Comparison
    amount: int


class IsOpen(msgspec.Struct, frozen=True):
    """The record has no stop time yet."""


class ImplausibleCpuTime(msgspec.Struct, frozen=True):
    """The CPU time (``TotalCPU``) is more than :data:`MOST_CPU_TIME` times ``Cores`` times the runtime.

    One second is added to the runtime, since batch systems truncate times to whole seconds. Never true of an open
    record, or of one that lacks either component.
    """


class PlaceCompares(msgspec.Struct, frozen=True):
    """A record's place in the order of start times, with ``record_id`` breaking ties: the condition behind a cursor.

    A start time does not change between two pages, but a stop time can. Ids compare by their bytes in UTF-8.
    """

    comparison: Comparison
    start_time: datetime
    record_id: str


class AllOf(msgspec.Struct, frozen=True):
    """All of the conditions; without any, every record."""

    conditions: tuple["Condition", ...] = ()


class AnyOf(msgspec.Struct, frozen=True):
    """At least one of the conditions; without any, no record."""

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
"""A condition that holds no others."""

Condition: TypeAlias = Leaf | AllOf | AnyOf


def fold(
    condition: Condition,
    leaf: Callable[[Leaf], T],
    all_of: Callable[[Sequence[T]], T],
    any_of: Callable[[Sequence[T]], T],
) -> T:
    """Interpret a tree of conditions from its leaves: in SQL, in a query string, of one record.

    Args:
        condition: the tree.
        leaf: what a single condition is.
        all_of: what several are together.
        any_of: what alternatives are together.
    """
    if isinstance(condition, AllOf | AnyOf):
        parts = [
            fold(part, leaf, all_of, any_of) if isinstance(part, AllOf | AnyOf) else leaf(part)
            for part in condition.conditions
        ]
        return all_of(parts) if isinstance(condition, AllOf) else any_of(parts)
    return leaf(condition)


def stopped_within(window: Window) -> AllOf:
    """Return the condition on records that stopped in a window; months that follow each other share none."""
    begun = TimeCompares(TimeField.STOP, Comparison.GTE, window.start)
    return AllOf((begun, TimeCompares(TimeField.STOP, Comparison.LT, window.stop)))


class Order(msgspec.Struct, frozen=True):
    """The order of an answer. Descending, open records come first (as in PostgreSQL)."""

    field: SortField = SortField.STOP
    descending: bool = False


class RecordQuery(msgspec.Struct, frozen=True):
    """A selection of records, their order, and a limit (0 gives none).

    Args:
        where: the condition.
        order: the order of the answer.
        limit: the largest number of records.
        archived: also select released records, which only the lake has.
    """

    where: Condition = msgspec.field(default_factory=AllOf)
    order: Order = msgspec.field(default_factory=Order)
    limit: int | None = None
    archived: bool = False
