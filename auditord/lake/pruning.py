"""Conditions on records, translated to filters on rows of the table.

A filter is true for all matching rows and few others, so that files can be skipped. Callers decide which rows match.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from functools import reduce
from typing import Final

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
    Or,
)

from auditord.lake.engines import Chosen
from auditord.store.columns import CELL_META_COLUMNS
from auditord.store.rollups.scope import Scope
from auditord_hookspecs import AggregateQuery
from auditord_hookspecs.query import (
    Comparison,
    IdEquals,
    IsOpen,
    Leaf,
    MetaContains,
    MetaContainsAny,
    PlaceCompares,
    RuntimeCompares,
    TimeCompares,
    TimeField,
    fold,
)

_COMPARE: Final[Mapping[Comparison, Callable[..., BooleanExpression]]] = {
    Comparison.GT: GreaterThan,
    Comparison.GTE: GreaterThanOrEqual,
    Comparison.LT: LessThan,
    Comparison.LTE: LessThanOrEqual,
    Comparison.EQUALS: EqualTo,
}
_OR_EQUAL: Final = {
    Comparison.GT: Comparison.GTE,
    Comparison.GTE: Comparison.GTE,
    Comparison.LT: Comparison.LTE,
    Comparison.LTE: Comparison.LTE,
    Comparison.EQUALS: Comparison.EQUALS,
}
_BORDERS: Final = (MINYEAR, MAXYEAR)
"""Years in which the microsecond before or after an instant, which pyiceberg computes, may be outside the calendar."""
_STOPPED: Final[BooleanExpression] = NotNull(term="stop_time")
_MORE: Final = EqualTo(term="more", value=True)
"""Rows that roll-ups leave out."""


def match_daemon(daemon: str, release: int | None = None) -> BooleanExpression:
    """Return a filter for a daemon's rows, limited to release numbers up to ``release`` if it is given."""
    own = EqualTo(term="daemon", value=daemon)
    return own if release is None else And(own, LessThanOrEqual(term="release", value=release))


def match_chosen(chosen: Chosen) -> BooleanExpression:
    """Return a filter for the chosen rows."""
    if chosen.daemon is None:
        return AlwaysTrue()
    released = chosen.released
    rows = match_daemon(chosen.daemon, None if released is None else released.state.release)
    return rows if chosen.scope is None else And(rows, match_outside(chosen.scope))


def match_finished(query: AggregateQuery) -> BooleanExpression:
    """Return a filter for rows of finished records that may match a query."""
    matching = And(_STOPPED, fold(query.where, _leaf, _all_of, _any_of))
    if query.window is None:
        return matching
    stopped = _compares("stop_time", Comparison.GTE, query.window.start)
    started = _compares("start_time", Comparison.LTE, query.window.stop)
    return And(matching, stopped, started)


def match_open(query: AggregateQuery) -> BooleanExpression:
    """Return a separate filter for rows of open records, since pyiceberg cannot compare null with an instant."""
    started = AlwaysTrue() if query.window is None else _compares("start_time", Comparison.LTE, query.window.stop)
    return And(IsNull(term="stop_time"), fold(query.where, _leaf_of_open, _all_of, _any_of), started)


def match_outside(scope: Scope) -> BooleanExpression:
    """Return a filter for rows of finished records that the cells of a scope do not cover."""
    return _any_of([_MORE, *[fold(each, _leaf, _all_of, _any_of) for each in scope.outside()]])


def match_stops(first: datetime, last: datetime) -> BooleanExpression:
    """Return a filter for records that stopped from ``first`` to ``last``, both included."""
    return And(_compares("stop_time", Comparison.GTE, first), _compares("stop_time", Comparison.LTE, last))


def _leaf_of_open(condition: Leaf) -> BooleanExpression:
    match condition:
        case IsOpen():
            return AlwaysTrue()
        case TimeCompares(TimeField.STOP) | RuntimeCompares():
            return AlwaysFalse()
        case _:
            return _leaf(condition)


def _leaf(condition: Leaf) -> BooleanExpression:  # noqa: PLR0911 one branch for each type of node
    match condition:
        case IdEquals(record_id):
            return EqualTo(term="record_id", value=record_id)
        case IsOpen():
            return AlwaysFalse()
        case TimeCompares(field, comparison, moment):
            return _compares(field.value, comparison, moment)
        case RuntimeCompares(comparison, seconds) if abs(seconds) < 2**62:
            return _COMPARE[comparison](term="runtime", value=seconds)
        case PlaceCompares(comparison, moment):  # ids decide between equal start times
            return _compares("start_time", _OR_EQUAL[comparison], moment)
        case MetaContains(key, value):
            return _contains(key, (value,))
        case MetaContainsAny(key, values):
            return _contains(key, values)
        case _:
            return AlwaysTrue()


def _compares(column: str, comparison: Comparison, moment: datetime) -> BooleanExpression:
    if moment.year in _BORDERS:
        return AlwaysTrue()
    return _COMPARE[comparison](term=column, value=moment.astimezone(UTC).isoformat(timespec="microseconds"))


def _contains(key: str, values: Sequence[str]) -> BooleanExpression:
    if key not in CELL_META_COLUMNS:
        return AlwaysTrue()
    return Or(In(term=CELL_META_COLUMNS[key], literals=set(values)), _MORE)


def _all_of(parts: Sequence[BooleanExpression]) -> BooleanExpression:
    everything: BooleanExpression = AlwaysTrue()
    return reduce(And, parts, everything)


def _any_of(parts: Sequence[BooleanExpression]) -> BooleanExpression:
    nothing: BooleanExpression = AlwaysFalse()
    return reduce(Or, parts, nothing)
