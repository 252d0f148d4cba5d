"""What ``GET /api/v1/aggregates?…`` asks for: filters as for records, and what to sum up by what.

``by`` and ``usage`` may be repeated, and keep their order. A name in them that has a colon, a bar or a percent sign in
it is percent-encoded once more than the query string asks for, so that ``a:b`` is written ``a%253Ab``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import unquote

from auditord.web.api.listing import FILTERS
from auditord.web.query_string import InvalidQuery, parse_query_string
from auditord.web.record_query import Given, about, by_name, read_conditions, refuse_unknown, scalar
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
from auditord_hookspecs.wire import parse_time

MOST: Final = 20
"""Dimensions, and components, of one query."""

FORMS: Final = (
    "meta:key or meta:key|otherkey, amount:component, has:component, score:component:score, start:day, start:month or "
    "start:year, and the same with stop"
)

_MOMENTS: Final = ("from", "to", "as_of")


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
    given = by_name(parse_query_string(raw))
    refuse_unknown(given, [*FILTERS, "by", "usage", *_MOMENTS])
    where = AllOf(read_conditions(given, FILTERS))
    with about("by"):
        names = _distinct(_repeated("by", given.get("by", ())))
        dimensions = tuple(map(_dimension, names))
    with about("usage"):
        usage = tuple(map(_usage, _distinct(_repeated("usage", given.get("usage", ())))))
        _distinct([each.component for each in usage])
    moments = dict(_moment(name, scalar(name, given.get(name, ()))) for name in _MOMENTS)
    return SumsQuery(AggregateQuery(where, dimensions, usage, _window(moments), moments["as_of"]), tuple(names))


def _repeated(name: str, given: Given) -> Sequence[str]:
    """The values of ``name=…`` or ``name[]=…``, as often as it was given; empty ones count as absent."""
    if any(parameter.path not in {(), ("",)} for parameter in given):
        raise InvalidQuery(f"'{name}' is given as {name}=… or {name}[]=…, once for each value")
    return [parameter.value for parameter in given if parameter.value]


def _distinct(texts: Sequence[str]) -> Sequence[str]:
    if len(set(texts)) < len(texts):
        raise InvalidQuery("the same is given more than once")
    if len(texts) > MOST:
        raise InvalidQuery(f"at most {MOST} are allowed")
    return texts


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


def _usage(text: str) -> ComponentUsage:
    component, colon, scores = text.partition(":")
    return ComponentUsage(_name(component), tuple(_distinct(list(map(_name, scores.split("|"))))) if colon else ())


def _moment(name: str, text: str | None) -> tuple[str, datetime | None]:
    with about(name):
        return name, None if text is None else parse_time(text)


def _window(moments: Mapping[str, datetime | None]) -> Window | None:
    start, stop = moments["from"], moments["to"]
    if start is None and stop is None:
        return None
    if start is None or stop is None:
        raise InvalidQuery("'from' and 'to' go together", "to" if stop is None else "from")
    if stop < start:
        raise InvalidQuery("'to' is earlier than 'from'", "to")
    return Window(start, stop)
