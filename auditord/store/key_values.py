"""From the columns of an aggregate's rows to the values of its keys and to scores."""

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import msgspec

from auditord_hookspecs import (
    CalendarPeriod,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    ExceedsRuntime,
    MetaValue,
    Score,
    ScoreValue,
)
from auditord_hookspecs.aggregates import KeyValue, exact_score

Scores: TypeAlias = Mapping[tuple[str, str], Decimal]
"""Of the components of a record: the value by component and score."""


def set_of_scores(text: str) -> Scores:
    """The scores of a record, from the text of :func:`auditord.store.rows.scores_text`."""
    components = msgspec.json.decode(text, type=list[tuple[str, tuple[Score, ...]]])
    return {
        (component, score.name): exact_score(score.value)
        for component, scores in components
        for score in reversed(scores)  # the first of one name stays
    }


def component_scores(component: str, text: str) -> Scores:
    """The scores of one component, from their JSON in the record's document."""
    scores = msgspec.json.decode(text, type=tuple[Score, ...])
    return {(component, score.name): exact_score(score.value) for score in reversed(scores)}


def reader(dimension: Dimension) -> Callable[[Any, Scores], KeyValue] | None:  # Any: see Row
    """A function that makes the value of a key from its column and the scores of its record; None: it is its column."""
    match dimension:
        case ScoreValue(component, score):
            return lambda value, scores: (scores if value is None else component_scores(component, value)).get(
                (component, score)
            )
        case ComponentAmount():
            return _amount
        case ComponentPresent():
            return lambda value, _: bool(int(value or 0))  # SQL NULL: no record can have it
        case ExceedsRuntime():
            return partial(_exceeds, dimension)
        case CalendarPeriod():
            return lambda value, _: date.fromisoformat(value)
        case MetaValue():
            return None


def _amount(value: int | str | None, _: Scores) -> int | None:
    """A number, or the numbers with commas of components with one name."""
    return sum(map(int, value.split(","))) if isinstance(value, str) else value


def _exceeds(dimension: ExceedsRuntime, value: int | str | None, _: Scores) -> bool:
    """Return whether it holds for a flag or for numbers with semicolons; SQL NULL: one of them is not known."""
    if not (isinstance(value, str) and ";" in value):
        return bool(int(value or 0))
    amount, runtime, *per = [_amount(number, {}) for number in value.split(";")]
    return dimension.holds(amount, runtime, per[0] if per else None)
