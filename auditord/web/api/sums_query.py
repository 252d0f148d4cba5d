"""What ``GET /api/v1/aggregates?…`` asks for: filters as for records, and what to sum up by what.

``by`` and ``usage`` may be repeated, and keep their order. A name in them that has a colon, a bar or a percent sign in
it is percent-encoded once more than the query string asks for, so that ``a:b`` is written ``a%253Ab``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

from auditord.web.api.listing import FILTERS
from auditord.web.api.values import INSTANT, WHITE_SPACE, Texts, read_given
from auditord.web.query_string import InvalidQuery
from auditord.web.record_query import Given, about, read_conditions
from auditord_hookspecs import AggregateQuery, ComponentUsage, Window
from auditord_hookspecs.aggregates import (
    CalendarPeriod,
    CalendarUnit,
    ComponentAmount,
    ComponentPresent,
    Dimension,
    MetaValue,
    ScoreValue,
)
from auditord_hookspecs.query import AllOf, TimeField
from auditord_hookspecs.records import check_name

MOST: Final = 20
"""Dimensions, and components, of one query."""

FORMS: Final = (
    "meta:key or meta:key|otherkey, amount:component, has:component, score:component:score, start:day, start:month or "
    "start:year, and the same with stop"
)

# A name in a pattern: what divides names is percent-encoded, and any other ASCII may be.
_NAME: Final = rf"(?:[^%:|{WHITE_SPACE}\u0000]|%2[1-9A-F]|%[3-7][0-9A-F])(?:[^%:|\u0000]|%[2-7][0-9A-F]){{0,255}}"
_UNIT: Final = "|".join(unit.value for unit in CalendarUnit)

_MOMENTS: Final = ("from", "to", "as_of")


_EVER: Final = datetime(1, 1, 1, tzinfo=UTC)
_NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)

_FORMS: Final = (
    rf"meta:{_NAME}(?:\|{_NAME}){{0,9}}",
    rf"(?:amount|has):{_NAME}",
    f"score:{_NAME}:{_NAME}",
    f"(?:start|stop):(?:{_UNIT})",
)
BY: Final = Texts("|".join(_FORMS), MOST)
USAGE: Final = Texts(rf"{_NAME}(?::{_NAME}(?:\|{_NAME}){{0,9}})?", MOST)


@dataclass(frozen=True, slots=True)
class SumsQuery:
    """A question for sums.

    Args:
        query: what is asked of the store.
        by: what each dimension was called.
    """

    query: AggregateQuery
    by: tuple[str, ...]


def read_sums_query(raw: str) -> SumsQuery:
    """What a raw query string asks for.

    Raises:
        InvalidQuery: the string breaks the grammar, names an unknown parameter or holds a value out of range.
    """
    given = read_given(raw, [*FILTERS, "by", "usage", *_MOMENTS])
    where = AllOf(read_conditions(given, FILTERS))
    with about("by"):
        names = BY.read("by", given.get("by", ()))
        dimensions = tuple(map(_dimension, names))
    with about("usage"):
        usage = _usages(USAGE.read("usage", given.get("usage", ())))
    moments = dict(_moment(name, given.get(name, ())) for name in _MOMENTS)
    return SumsQuery(AggregateQuery(where, dimensions, usage, _window(moments), moments["as_of"]), tuple(names))


def _dimension(text: str) -> Dimension:
    form, _, rest = text.partition(":")
    reader = _DIMENSIONS.get(form)
    if reader is None or not rest:
        raise InvalidQuery(f"'{text[:60]}' is nothing to group by: {FORMS}")
    return reader(rest)


def _name(text: str) -> str:
    try:
        name = unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidQuery(f"'{text[:60]}' is not UTF-8 once it is decoded") from error
    check_name(name)
    return name


def _score(text: str) -> ScoreValue:
    component, colon, score = text.partition(":")
    if not colon:
        raise InvalidQuery("a score is written score:component:score")
    return ScoreValue(_name(component), _name(score))


def _period(field: TimeField, text: str) -> CalendarPeriod:
    try:
        return CalendarPeriod(CalendarUnit(text), field)
    except ValueError as error:
        units = ", ".join(unit.value for unit in CalendarUnit)
        raise InvalidQuery(f"unknown period '{text[:60]}', expected one of {units}") from error


_DIMENSIONS: Final[Mapping[str, Callable[[str], Dimension]]] = {
    "meta": lambda text: MetaValue(*map(_name, text.split("|"))),
    "amount": lambda text: ComponentAmount(_name(text)),
    "has": lambda text: ComponentPresent(_name(text)),
    "score": _score,
    "start": lambda text: _period(TimeField.START, text),
    "stop": lambda text: _period(TimeField.STOP, text),
}


def _usages(texts: Sequence[str]) -> tuple[ComponentUsage, ...]:
    """Each component once, with all scores that are asked for."""
    scores: dict[str, dict[str, None]] = {}
    for text in texts:
        component, _, listed = text.partition(":")
        known = scores.setdefault(_name(component), {})
        known |= dict.fromkeys(map(_name, listed.split("|") if listed else ()))
    return tuple([ComponentUsage(component, tuple(known)) for component, known in scores.items()])


def _moment(name: str, given: Given) -> tuple[str, datetime | None]:
    with about(name):
        return name, INSTANT.read(name, given)


def _window(moments: Mapping[str, datetime | None]) -> Window | None:
    """The period from one instant to the other; without one of them it has no end on that side."""
    start, stop = moments["from"], moments["to"]
    if start is None and stop is None:
        return None
    begin, end = start or _EVER, stop or _NEVER
    return Window(begin, max(begin, end))
