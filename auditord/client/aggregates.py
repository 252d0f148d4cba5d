"""Sums in the words of ``GET /api/v1/aggregates``, and its answers; the same for both clients."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

from auditord.client.errors import InvalidAnswer
from auditord.client.query_string import encode_query, flattened
from auditord_hookspecs import HttpAnswer, InvalidRecord, RecordQuery, aggregates
from auditord_hookspecs.aggregates import KeyValue
from auditord_hookspecs.query import (
    AllOf,
    Condition,
    ImplausibleCpuTime,
    IsOpen,
    MetaAbsent,
    MetaContainsAny,
    TimeField,
)
from auditord_hookspecs.wire import format_time, parse_time
from auditord_hookspecs.zones import UTC_NAME

PATH: Final = "/api/v1/aggregates"


def target(query: aggregates.AggregateQuery, source: str = "store") -> str:
    """Return the path and query string for an auditord's sums.

    Raises:
        UnsupportedQuery: the API has no words for a condition.
    """
    pieces = [
        *_conditions(query.where),
        *(f"by={quote_plus(_dimension(each))}" for each in query.by),
        *(f"usage={quote_plus(_usage(each))}" for each in query.usage),
        *_moments(query),
        *(() if source == "store" else (f"source={source}",)),
    ]
    return f"{PATH}?{'&'.join(pieces)}" if pieces else PATH


def read_aggregates(answer: HttpAnswer, query: aggregates.AggregateQuery) -> aggregates.Aggregates:
    """Parse an auditord's answer to a query for sums.

    Raises:
        InvalidAnswer: it is another program's, or answers another question.
    """
    try:
        document = msgspec.json.decode(answer.body)
        groups = tuple([_group(each, query) for each in document["groups"]])
        ticks = int(document["ticks_per_second"])
        snapshot = _snapshot(document.get("snapshot"))
    except (msgspec.DecodeError, InvalidRecord, InvalidOperation, LookupError, TypeError, ValueError) as error:
        raise InvalidAnswer(f"{answer.request} was answered with no sums ({error!r}): is it an auditord?") from error
    if ticks != query.ticks_per_second:
        raise InvalidAnswer(f"{answer.request} was answered in {ticks} ticks a second: is it of another version?")
    return aggregates.Aggregates(groups, ticks, snapshot)


# -- the question -------------------------------------------------------------------------------------------------


def _conditions(where: Condition) -> Iterator[str]:
    others: list[Condition] = []
    for each in flattened(where):
        match each:
            case IsOpen():
                yield "open=true"
            case ImplausibleCpuTime():
                yield "implausible=true"
            case MetaAbsent(key):
                yield f"meta[{quote_plus(key)}][absent]=true"
            case MetaContainsAny(key, values):
                yield from (f"meta[{quote_plus(key)}][any][]={quote_plus(value)}" for value in values)
            case _:
                others.append(each)
    if text := encode_query(RecordQuery(AllOf(tuple(others)))):
        yield text


def _dimension(dimension: aggregates.Dimension) -> str:
    match dimension:
        case aggregates.MetaValue(keys):
            return f"meta:{'|'.join(map(_name, keys))}"
        case aggregates.ComponentAmount(component):
            return f"amount:{_name(component)}"
        case aggregates.ComponentPresent(component):
            return f"has:{_name(component)}"
        case aggregates.ExceedsRuntime(component, factor, per):
            text = f"exceeds:{_name(component)}:{factor:f}"
            return text if per is None else f"{text}:{_name(per)}"
        case aggregates.ScoreValue(component, score):
            return f"score:{_name(component)}:{_name(score)}"
        case aggregates.CalendarPeriod(unit, field, zone):
            text = f"{'start' if field is TimeField.START else 'stop'}:{unit.value}"
            return text if zone == UTC_NAME else f"{text}:{zone}"


def _usage(usage: aggregates.ComponentUsage) -> str:
    scores = "|".join(map(_name, usage.scores))
    return f"{_name(usage.component)}:{scores}" if scores else _name(usage.component)


def _name(text: str) -> str:
    """Encode a name once more than in other query strings, so that it can contain colons and bars."""
    return quote(text, safe="")


def _moments(query: aggregates.AggregateQuery) -> Iterator[str]:
    if query.window is not None:
        yield f"from={quote_plus(format_time(query.window.start))}"
        yield f"to={quote_plus(format_time(query.window.stop))}"
    if query.as_of is not None:
        yield f"as_of={quote_plus(format_time(query.as_of))}"


# -- the answer ---------------------------------------------------------------------------------------------------


def _snapshot(snapshot: Mapping[str, Any] | None) -> aggregates.LakeSnapshot | None:
    if snapshot is None:
        return None
    committed_at = parse_time(snapshot["committed_at"])
    return aggregates.LakeSnapshot(int(snapshot["id"]), committed_at, snapshot.get("complete", True))


def _group(group: Mapping[str, Any], query: aggregates.AggregateQuery) -> aggregates.Group:  # Any: JSON
    return aggregates.Group(
        key=tuple([_key_value(group["key"][_dimension(each)], each) for each in query.by]),
        records=int(group["records"]),
        runtime=int(group["runtime"]),
        first_stop=parse_time(group["first_stop"]),
        last_stop=parse_time(group["last_stop"]),
        usage=tuple([_used(group["usage"][each.component], each.scores) for each in query.usage]),
    )


def _key_value(value: str | int | None, dimension: aggregates.Dimension) -> KeyValue:
    match dimension:
        case aggregates.ScoreValue() if value is not None:
            return Decimal(value)
        case aggregates.CalendarPeriod() if value is not None:
            return date.fromisoformat(str(value))
        case _:
            return value


def _used(used: Mapping[str, Any], scores: Sequence[str]) -> aggregates.UsageSums:  # Any: JSON
    return aggregates.UsageSums(_amounts(used), {score: _scored(used["scores"][score]) for score in scores})


def _scored(scored: Mapping[str, Any]) -> aggregates.ScoreSums:  # Any: JSON
    by_value: dict[Decimal | None, aggregates.AmountSums] = {
        Decimal(each["value"]): _amounts(each) for each in scored["by_value"]
    }
    unscored = _amounts(scored["unscored"])
    return aggregates.ScoreSums(by_value if unscored == aggregates.AmountSums() else {None: unscored, **by_value})


def _amounts(sums: Mapping[str, Any]) -> aggregates.AmountSums:  # Any: JSON
    return aggregates.AmountSums(int(sums["amount"]), int(sums["amount_runtime"]))
