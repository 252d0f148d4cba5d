"""The period in which records must have stopped to match a query: what lies outside need not be read."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from auditord_hookspecs import AggregateQuery
from auditord_hookspecs.query import Comparison, Condition, Leaf, TimeCompares, TimeField, fold

_Bounds: TypeAlias = tuple[datetime | None, datetime | None]

_FROM: Final = {Comparison.GT, Comparison.GTE, Comparison.EQUALS}
_TO: Final = {Comparison.LT, Comparison.LTE, Comparison.EQUALS}


def may_be_between(query: AggregateQuery, first: datetime | None, last: datetime | None) -> bool:
    """Return whether sums may count records that stopped from the first instant to the last (None: any time)."""
    begin, end = _bounds(query.where)
    window = query.window
    if window is not None:
        begin = window.start if begin is None else max(begin, window.start)
    return not (
        (begin is not None and last is not None and begin > last)
        or (end is not None and first is not None and end < first)
    )


def _bounds(condition: Condition) -> _Bounds:
    return fold(condition, _of_leaf, _of_all, _of_any)


def _of_leaf(leaf: Leaf) -> _Bounds:
    match leaf:
        case TimeCompares(TimeField.STOP, comparison, moment):
            return moment if comparison in _FROM else None, moment if comparison in _TO else None
        case TimeCompares(TimeField.START, comparison, moment) if comparison in _FROM:
            return moment, None  # what stopped before its start is in no sum
        case _:
            return None, None


def _of_all(parts: Sequence[_Bounds]) -> _Bounds:
    return _outermost(max, [begin for begin, _ in parts]), _outermost(min, [end for _, end in parts])


def _of_any(parts: Sequence[_Bounds]) -> _Bounds:
    begins, ends = [begin for begin, _ in parts], [end for _, end in parts]
    return (
        None if None in begins else _outermost(min, begins),
        None if None in ends else _outermost(max, ends),
    )


def _outermost(choose: Callable[[Sequence[datetime]], datetime], moments: Sequence[datetime | None]) -> datetime | None:
    known = [moment for moment in moments if moment is not None]
    return choose(known) if known else None
