"""Encode queries for ``GET /records?…``, in the grammar of AUDITOR 0.11 and auditord, and for auditord's API.

AUDITOR silently drops filters that combine ``gt`` with ``gte`` (or ``lt`` with ``lte``), and ``equals`` on times. So
bounds are merged here, and an equal time is sent as two bounds. Two of AUDITOR's limits remain: it checks only the
first component of a record, and only amounts below 2³¹. :func:`matches` evaluates conditions on one record, which
defines the meaning of filters for every store.
"""

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar
from urllib.parse import quote, quote_plus

from msgspec.structs import replace

from auditord.client.exchange import UnsupportedQuery
from auditord_hookspecs import ExceedsRuntime, Record, RecordQuery, aggregates, query
from auditord_hookspecs import query as queries
from auditord_hookspecs.aggregates import amount_of
from auditord_hookspecs.records import MAX_AMOUNT
from auditord_hookspecs.wire import format_time
from auditord_hookspecs.zones import UTC_NAME

V = TypeVar("V", datetime, int)
Pair: TypeAlias = tuple[str, str]

Source: TypeAlias = Literal["store", "lake"]
"""The source of records: a server's store, or its lake."""

_LOWER: Final = (queries.Comparison.GTE, queries.Comparison.GT)  # the latter is stricter at the same value
_UPPER: Final = (queries.Comparison.LTE, queries.Comparison.LT)

_FLAGS: Final[Mapping[type[queries.Condition], str]] = {
    queries.IsOpen: "open=true",
    queries.ImplausibleCpuTime: "implausible=true",
}
"""Conditions that auditord's grammar can express, but AUDITOR's cannot."""

_AGGREGATES: Final = "/api/v1/aggregates"

_EXCESS: Final = ExceedsRuntime("TotalCPU", queries.MOST_CPU_TIME, "Cores")


def encode_query(query: RecordQuery) -> str:
    """Return the query string, without ``?``; empty for all records in the default order.

    Raises:
        UnsupportedQuery: the grammar cannot express a condition.
    """
    conditions = list(flatten(query.where))
    if query.released:
        raise UnsupportedQuery("the wire contract has no lake: leave 'released' out")
    for condition in conditions:
        if isinstance(condition, queries.IsOpen):
            raise UnsupportedQuery(
                "the wire contract cannot ask for open records only: leave the condition out, and select the records "
                "without a stop time from the answer"
            )
        if not has_words(condition):
            raise UnsupportedQuery(
                "the wire contract cannot ask for one of several values or conditions, an absent key, or a cursor: "
                "ask for more records, and select from the answer"
            )
    pairs = [*_pairs(conditions), *_components(conditions)]
    if query.order != queries.Order():
        pairs.append((f"sort_by[{'desc' if query.order.descending else 'asc'}]", query.order.field.value))
    if query.limit is not None:
        pairs.append(("limit", str(query.limit)))
    return "&".join(f"{key}={quote_plus(value)}" for key, value in pairs)


def wire_target(query: RecordQuery) -> str:
    """Return the path and query string for the records of any server.

    Raises:
        UnsupportedQuery: the grammar cannot express a condition.
    """
    text = encode_query(query)
    return f"/records?{text}" if text else "/records"


def api_target(query: RecordQuery, source: Source) -> str:
    """Return the path and query string for the records of an auditord, one per line.

    Raises:
        UnsupportedQuery: the grammar cannot express a condition.
    """
    form = "format=ndjson" if source == "store" else f"format=ndjson&source={source}"
    return f"/api/v1/records?{form}&{encode_for_api(query)}"


def encode_for_api(query: RecordQuery) -> str:
    """Return the query string of ``GET /api/v1/records``. It always has the order, whose default differs there.

    Raises:
        UnsupportedQuery: the grammar cannot express a condition.
    """
    conditions = list(flatten(query.where))
    others = tuple(each for each in conditions if not isinstance(each, tuple(_FLAGS)))
    direction = "desc" if query.order.descending else "asc"
    pieces = [
        encode_query(replace(query, where=queries.AllOf(others), order=queries.Order(), released=False)),
        f"sort_by[{direction}]={query.order.field.value}",
        *(text for kind, text in _FLAGS.items() if any(isinstance(each, kind) for each in conditions)),
        *(["include=lake"] if query.released else []),
    ]
    return "&".join(filter(None, pieces))


def has_words(condition: queries.Condition) -> bool:
    """Return whether AUDITOR's grammar can express a condition."""
    return not isinstance(
        condition,
        queries.IsOpen
        | queries.ImplausibleCpuTime
        | queries.MetaContainsAny
        | queries.MetaAbsent
        | queries.PlaceCompares
        | queries.AnyOf,
    )


def aggregates_target(query: aggregates.AggregateQuery, source: str = "store") -> str:
    """Return the path and query string for an auditord's sums.

    Raises:
        UnsupportedQuery: the API cannot express a condition.
    """
    pieces, remaining = list[str](), list[queries.Condition]()
    for each in flatten(query.where):
        match each:
            case queries.IsOpen():
                pieces.append("open=true")
            case queries.ImplausibleCpuTime():
                pieces.append("implausible=true")
            case queries.MetaAbsent(key):
                pieces.append(f"meta[{quote_plus(key)}][absent]=true")
            case queries.MetaContainsAny(key, values):
                pieces += (f"meta[{quote_plus(key)}][any][]={quote_plus(value)}" for value in values)
            case _:
                remaining.append(each)
    pieces += filter(None, [encode_query(RecordQuery(queries.AllOf(tuple(remaining))))])
    pieces += (f"by={quote_plus(encode_dimension(each))}" for each in query.by)
    pieces += (f"usage={quote_plus(_usage(each))}" for each in query.usage)
    if query.window is not None:
        pieces.append(f"from={quote_plus(format_time(query.window.start))}")
        pieces.append(f"to={quote_plus(format_time(query.window.stop))}")
    if query.as_of is not None:
        pieces.append(f"as_of={quote_plus(format_time(query.as_of))}")
    if source != "store":
        pieces.append(f"source={source}")
    return f"{_AGGREGATES}?{'&'.join(pieces)}" if pieces else _AGGREGATES


def record_path(record_id: str) -> str:
    """Return the path of one record; slashes and other special characters are percent-encoded."""
    return f"/record/{quote(record_id, safe='')}"


def encode_dimension(dimension: aggregates.Dimension) -> str:
    """Return the API's name of a dimension, which its answers use too."""
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
            text = f"{'start' if field is queries.TimeField.START else 'stop'}:{unit.value}"
            return text if zone == UTC_NAME else f"{text}:{zone}"


def _usage(usage: aggregates.ComponentUsage) -> str:
    scores = "|".join(map(_name, usage.scores))
    return f"{_name(usage.component)}:{scores}" if scores else _name(usage.component)


def _name(text: str) -> str:
    """Encode a name once more than in other query strings, so that it can contain colons and bars."""
    return quote(text, safe="")


def _pairs(conditions: Iterable[queries.Condition]) -> Iterator[Pair]:
    """Yield the pairs of all conditions except those of components."""
    wanted = list(dict.fromkeys(each.record_id for each in conditions if isinstance(each, queries.IdEquals)))
    if len(wanted) > 1:
        raise UnsupportedQuery(f"no record has two ids: {', '.join(map(repr, wanted[:3]))}")
    yield from (("record_id", record_id) for record_id in wanted)

    times = defaultdict[str, list[tuple[queries.Comparison, datetime]]](list)
    for each in conditions:
        if isinstance(each, queries.TimeCompares):
            times[each.field.value] += _drop_equals(each.comparison, each.moment)
    for name, given in times.items():
        yield from ((f"{name}[{comparison.value}]", format_time(moment)) for comparison, moment in _merge(given))

    runtimes = [
        bound
        for each in conditions
        if isinstance(each, queries.RuntimeCompares)
        for bound in _drop_equals(each.comparison, each.seconds)
    ]
    yield from ((f"runtime[{comparison.value}]", str(seconds)) for comparison, seconds in _merge(runtimes))

    listed = defaultdict[tuple[str, str], dict[str, None]](dict)
    for each in conditions:
        if isinstance(each, queries.MetaContains | queries.MetaLacks):
            listed[each.key, "c" if isinstance(each, queries.MetaContains) else "dnc"][each.value] = None
    for (key, word), values in listed.items():
        for index, value in enumerate(values):
            yield f"meta[{quote_plus(key)}][{word}][{index}]", value


def _components(conditions: Iterable[queries.Condition]) -> Iterator[Pair]:
    by_name = defaultdict[str, list[tuple[queries.Comparison, int]]](list)
    for each in conditions:
        if isinstance(each, queries.ComponentCompares):
            by_name[each.name].append((each.comparison, each.amount))
    for name, given in by_name.items():
        # Unlike for times, two bounds would not do for an equal amount: if a name occurs twice, each bound might match
        # another component.
        equal = {bound for bound in given if bound[0] is queries.Comparison.EQUALS}
        if len(equal) > 1:
            raise UnsupportedQuery(f"the wire contract cannot ask for two amounts of the component {name!r}")
        bounds = (*_merge([bound for bound in given if bound not in equal]), *equal)
        yield from ((f"component[{quote_plus(name)}][{op.value}]", str(amount)) for op, amount in bounds)


def _drop_equals(comparison: queries.Comparison, value: V) -> Sequence[tuple[queries.Comparison, V]]:
    if comparison is queries.Comparison.EQUALS:
        return ((queries.Comparison.GTE, value), (queries.Comparison.LTE, value))
    return ((comparison, value),)


def _merge(bounds: Sequence[tuple[queries.Comparison, V]]) -> Iterator[tuple[queries.Comparison, V]]:
    """Yield the strictest lower and the strictest upper bound."""
    lower = [bound for bound in bounds if bound[0] in _LOWER]
    upper = [bound for bound in bounds if bound[0] in _UPPER]
    if lower:
        highest = max(value for _, value in lower)
        yield max((op for op, value in lower if value == highest), key=_LOWER.index), highest
    if upper:
        lowest = min(value for _, value in upper)
        yield max((op for op, value in upper if value == lowest), key=_UPPER.index), lowest


_COMPARE: Final = {
    query.Comparison.GT: operator.gt,
    query.Comparison.GTE: operator.ge,
    query.Comparison.LT: operator.lt,
    query.Comparison.LTE: operator.le,
    query.Comparison.EQUALS: operator.eq,
}


def flatten(condition: query.Condition) -> Iterator[query.Condition]:
    """Yield the conditions that must all be true, with nested ``AllOf`` resolved."""
    if isinstance(condition, query.AllOf):
        for inner in condition.conditions:
            yield from flatten(inner)
    else:
        yield condition


def matches(record: Record, condition: query.Condition) -> bool:
    """Return whether a record fulfils a condition."""
    return query.fold(condition, partial(_holds, record), all, any)


def _holds(record: Record, condition: query.Leaf) -> bool:  # noqa: C901,PLR0911 one branch for each type of node
    match condition:
        case query.IdEquals(record_id):
            return record.record_id == record_id
        case query.IsOpen():
            return record.stop_time is None
        case query.ImplausibleCpuTime():
            runtime, names = record.runtime, ("TotalCPU", "Cores", "CoreSeconds")
            if runtime is None or runtime < 0:
                return False
            amounts = [amount_of(record, name) for name in names]
            cpu, cores, total = [None if amount is None else min(amount, MAX_AMOUNT) for amount in amounts]
            return _EXCESS.holds(cpu, runtime, cores, total)
        case query.TimeCompares(field, comparison, moment):
            time = record.start_time if field is query.TimeField.START else record.stop_time
            return time is not None and _COMPARE[comparison](time, moment)
        case query.RuntimeCompares(comparison, seconds):
            return record.runtime is not None and _COMPARE[comparison](record.runtime, seconds)
        case query.MetaContains(key, value):
            return value in (record.meta or {}).get(key, ())
        case query.MetaLacks(key, value):
            values = (record.meta or {}).get(key)
            return values is not None and value not in values
        case query.MetaContainsAny(key, wanted):
            return not set(wanted).isdisjoint((record.meta or {}).get(key, ()))
        case query.MetaAbsent(key):
            return key not in (record.meta or {})
        case query.PlaceCompares(comparison, moment, record_id):
            place = (record.start_time, record.record_id.encode())
            return bool(_COMPARE[comparison](place, (moment, record_id.encode())))
        case query.ComponentCompares(name, comparison, amount):
            return any(each.name == name and _COMPARE[comparison](each.amount, amount) for each in record.components)
