"""``GET /api/v1/aggregates``: sums over records, computed by the store.

``by`` and ``usage`` may be repeated and keep their order. A colon, bar or percent sign within a name is percent-encoded
once more than the query string requires: ``a:b`` is written ``a%253Ab``.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Final
from urllib.parse import unquote
from zoneinfo import available_timezones

import msgspec
from aiohttp import web

from auditord.web.answers import JSON
from auditord.web.api.lake_source import SOURCE, LakeSource, is_lake, source_parameter
from auditord.web.api.operation import FILTER_PARAMETERS, INSTANT, WHITE_SPACE, Texts, read_given
from auditord.web.api.records import FILTERS
from auditord.web.api.shapes import (
    Amounts,
    GroupSums,
    ScoredAmounts,
    ScoreValueAmounts,
    SummedSnapshot,
    Sums,
    UsedComponent,
)
from auditord.web.limits import (
    MANY_GROUPS,
    MOST_COMPONENTS,
    MOST_DIMENSIONS,
    MOST_FILTERED,
    MOST_KEYS,
    MOST_SCORES,
    MOST_ZONED,
)
from auditord.web.operations import Operation, Parameter
from auditord.web.record_query import InvalidQuery, about, read_conditions
from auditord.web.requests import RecordsFor, client_key, read_target
from auditord.web.streams import Chunks, StreamedAnswers
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    ComponentUsage,
    Permission,
    TooManyGroups,
    Window,
    aggregates,
)
from auditord_hookspecs.aggregates import SUMS_PER_GROUP
from auditord_hookspecs.query import AllOf, TimeField
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import format_time
from auditord_hookspecs.zones import UTC_NAME

_GROUPS_AT_ONCE: Final = 500

FORMS: Final = (
    "meta:key or meta:key|otherkey, amount:component, has:component, exceeds:component:factor or "
    "exceeds:component:factor:othercomponent (more than factor, times the other component, for each second of the "
    "runtime plus one), score:component:score, start:day, start:week (from Monday), start:month, start:quarter or "
    "start:year, and the same with stop; days are in UTC, or in a time zone at the end, as in stop:day:Europe/Berlin"
)

# A name in a pattern: separators are percent-encoded; any other ASCII character may be.
_NAME: Final = rf"(?:[^%:|{WHITE_SPACE}\u0000]|%2[1-9A-F]|%[3-7][0-9A-F])(?:[^%:|\u0000]|%[2-7][0-9A-F]){{0,255}}"
_FACTOR: Final = r"(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,9})?"
_UNIT: Final = "|".join(unit.value for unit in aggregates.CalendarUnit)

# All valid names, so that every value that the schema allows is accepted.
_ZONE: Final = "|".join(name.replace("+", r"\+") for name in sorted({UTC_NAME, *available_timezones()}))

_MOMENTS: Final = ("from", "to", "as_of")


_NAMED: Final = " (the answer names it)"

_EVER: Final = datetime(1, 1, 1, tzinfo=UTC)
_NEVER: Final = datetime.max.replace(tzinfo=UTC)

_FORMS: Final = (
    rf"meta:{_NAME}(?:\|{_NAME}){{0,{MOST_KEYS - 1}}}",
    rf"(?:amount|has):{_NAME}",
    rf"exceeds:{_NAME}:{_FACTOR}(?::{_NAME})?",
    f"score:{_NAME}:{_NAME}",
    rf"(?:start|stop):(?:{_UNIT})(?::(?:{_ZONE}))?",
)
BY: Final = Texts("|".join(_FORMS), MOST_DIMENSIONS)
USAGE: Final = Texts(rf"{_NAME}(?::{_NAME}(?:\|{_NAME}){{0,{MOST_SCORES - 1}}})?", MOST_COMPONENTS)


SUMS: Final = (
    Parameter(
        "by",
        f"What to group by, repeated for several: {FORMS}. A dimension has at most {MOST_KEYS} keys. If a key has "
        "several values, the first counts.",
        BY.schema,
    ),
    Parameter(
        "usage",
        "Which components to sum, repeated for several: component, or component:score|otherscore for the products with "
        "scores as well. Cores, Memory and GPU include CoreSeconds, MemorySeconds and GPUSeconds. "
        f"At most {MOST_SCORES} scores in all.",
        USAGE.schema,
    ),
    Parameter(
        "from",
        "The start of a window, which ends at 'to' if that is given. Only the part of each record's runtime within the "
        "window counts. A window that ends before it begins is empty.",
        INSTANT.schema,
    ),
    Parameter("to", "The end of the window, exclusive; without 'from' the window has no start.", INSTANT.schema),
    Parameter(
        "as_of",
        "Count open records as if they had stopped at this instant; without it they are left out.",
        INSTANT.schema,
    ),
)


class SumsQuery(msgspec.Struct, frozen=True):
    """A query for sums.

    Args:
        by: the names of the dimensions in the request.
        of_lake: whether the lake is queried instead of the record store.
    """

    query: AggregateQuery
    by: tuple[str, ...]
    of_lake: bool = False


def read_sums_query(raw: str) -> SumsQuery:
    """Parse a raw query string.

    Raises:
        InvalidQuery: the grammar is broken, or a parameter is unknown or has an invalid value.
    """
    given = read_given(raw, [*FILTERS, "by", "usage", *_MOMENTS, SOURCE])
    where = AllOf(read_conditions(given, FILTERS))
    with about("by"):
        names = BY.read("by", given.get("by", ()))
        dimensions = tuple(map(_dimension, names))
    with about("usage"):
        usage = _usages(USAGE.read("usage", given.get("usage", ())))
    moments: dict[str, datetime | None] = {}
    for name in _MOMENTS:
        with about(name):
            moments[name] = INSTANT.read(name, given.get(name, ()))
    zoned = [each for each in dimensions if isinstance(each, aggregates.CalendarPeriod) and each.zone != UTC_NAME]
    parts = (1 + len(usage)) * (1 if moments["as_of"] is None else 2)
    for count, most, what in (
        (len(where.conditions), MOST_FILTERED, "filters"),
        (len(zoned), MOST_ZONED, "periods with a time zone"),
    ):
        if count * parts > most:
            text = f"{count} {what} and {len(usage)} components in one query: use fewer of either"
            raise InvalidQuery(f"{text} ('as_of' doubles them)", "usage")
    window = None
    if moments["from"] is not None or moments["to"] is not None:
        begin, end = moments["from"] or _EVER, moments["to"] or _NEVER
        window = Window(begin, max(begin, end))
    query = AggregateQuery(where, dimensions, usage, window, moments["as_of"])
    return SumsQuery(query, tuple(names), is_lake(given))


def _name(text: str) -> str:
    try:
        name = unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidQuery(f"'{text[:60]}' is not UTF-8 when decoded") from error
    check_name(name)
    return name


def _dimension(text: str) -> aggregates.Dimension:
    form, _, rest = text.partition(":")
    match form if rest else "":
        case "meta":
            keys = rest.split("|")
            if len(keys) > MOST_KEYS:
                raise InvalidQuery(f"'meta' has {len(keys)} keys in one dimension; at most {MOST_KEYS} are allowed")
            return aggregates.MetaValue(*map(_name, keys))
        case "amount":
            return aggregates.ComponentAmount(_name(rest))
        case "has":
            return aggregates.ComponentPresent(_name(rest))
        case "exceeds":
            component, _, limit = rest.partition(":")
            factor, colon, per = limit.partition(":")
            try:
                return aggregates.ExceedsRuntime(_name(component), Decimal(factor), _name(per) if colon else None)
            except (ArithmeticError, ValueError) as error:
                raise InvalidQuery(f"'{rest[:60]}' is not a component and a factor: {error}") from error
        case "score":
            component, colon, score = rest.partition(":")
            if not colon:
                raise InvalidQuery("write a score as score:component:score")
            return aggregates.ScoreValue(_name(component), _name(score))
        case "start" | "stop":
            return _period(TimeField(f"{form}_time"), rest)
        case _:
            raise InvalidQuery(f"cannot group by '{text[:60]}', expected {FORMS}")


def _period(field: TimeField, text: str) -> aggregates.CalendarPeriod:
    name, _, zone = text.partition(":")
    try:
        unit = aggregates.CalendarUnit(name)
    except ValueError as error:
        units = ", ".join(unit.value for unit in aggregates.CalendarUnit)
        raise InvalidQuery(f"unknown period '{text[:60]}', expected one of {units}") from error
    try:
        return aggregates.CalendarPeriod(unit, field, zone or UTC_NAME)
    except ValueError as error:
        raise InvalidQuery(str(error)) from error


def _usages(texts: Sequence[str]) -> tuple[ComponentUsage, ...]:
    """Return each component once, with all requested scores."""
    scores: dict[str, dict[str, None]] = {}
    for text in texts:
        component, _, listed = text.partition(":")
        known = scores.setdefault(_name(component), {})
        known |= dict.fromkeys(map(_name, listed.split("|") if listed else ()))
    if (count := sum(map(len, scores.values()))) > MOST_SCORES:
        raise InvalidQuery(f"{count} scores in one query; at most {MOST_SCORES} are allowed, over all components")
    return tuple([ComponentUsage(component, tuple(known)) for component, known in scores.items()])


class SumsHandler(msgspec.Struct, frozen=True):
    """Handles queries for sums."""

    records: RecordsFor
    answers: StreamedAnswers
    lake: LakeSource

    @Operation(
        "GET",
        "/api/v1/aggregates",
        "sumUpRecords",
        f"Sum records, grouped by meta, components, scores or times; at most {MANY_GROUPS:,} groups, and "
        f"{MANY_GROUPS * SUMS_PER_GROUP:,} sums (groups times components, scores and their values).",
        Permission.READ,
        {200: {JSON: Sums}},
        problems=(400, 503),
        parameters=(*FILTER_PARAMETERS, *SUMS, source_parameter(_NAMED)),
    )
    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send the sums over each group."""
        asked = read_sums_query(read_target(request.raw_path).query)
        return await self.answers.send_held(request, self._open(request, asked), {"Content-Type": JSON})

    @asynccontextmanager
    async def _open(self, request: web.BaseRequest, asked: SumsQuery) -> AsyncGenerator[Chunks, None]:
        source = self.lake.records(request) if asked.of_lake else self.records(request)
        async with AsyncExitStack() as stack:
            opened = self.answers.places.sum_up(client_key(request), source.aggregate, asked.query)
            try:
                with self.lake.faults() if asked.of_lake else nullcontext():
                    found = await stack.enter_async_context(opened)
            except TooManyGroups as error:
                text = f"{error}: group by fewer keys or longer periods, ask for fewer scores, or select fewer records"
                raise InvalidQuery(text, "by") from error
            yield self._chunks(asked, found)

    async def _chunks(self, asked: SumsQuery, found: Aggregates) -> AsyncIterator[Sequence[bytes]]:
        """Yield the response as the JSON of :class:`Sums`, some groups at a time."""
        begin, groups = b'{"ticks_per_second":%d,"groups":[' % found.ticks_per_second, found.groups
        for first in range(0, len(groups), _GROUPS_AT_ONCE):
            part = groups[first : first + _GROUPS_AT_ONCE]
            yield [begin, await self.answers.places.run(partial(_write_groups, asked, part))]
            begin = b","
        snapshot = None
        if (of_lake := found.snapshot) is not None:
            snapshot = SummedSnapshot(str(of_lake.number), format_time(of_lake.committed_at), of_lake.is_complete)
        yield [b"" if groups else begin, b'],"snapshot":', msgspec.json.encode(snapshot), b"}"]


def _write_groups(asked: SumsQuery, groups: Sequence[aggregates.Group]) -> bytes:
    names, written = [usage.component for usage in asked.query.usage], list[bytes]()
    for group in groups:
        sums = GroupSums(
            key=dict(zip(asked.by, map(_key_value, group.key), strict=True)),
            records=group.records,
            runtime=group.runtime,
            first_stop=format_time(group.first_stop),
            last_stop=format_time(group.last_stop),
            usage=dict(zip(names, map(_usage, group.usage), strict=True)),
        )
        written.append(msgspec.json.encode(sums))
    return b",".join(written)


def _key_value(value: aggregates.KeyValue) -> str | int | bool | None:
    match value:
        case Decimal():
            return _format(value)
        case date():
            return value.isoformat()
        case _:
            return value


def _usage(usage: aggregates.UsageSums) -> UsedComponent:
    scores = dict[str, ScoredAmounts]()
    for name, sums in usage.scores.items():
        unscored = Amounts(sums.unscored.amount, sums.unscored.amount_runtime)
        scored = {value: each for value, each in sums.by_value.items() if value is not None}
        by_value = [
            ScoreValueAmounts(_format(value), scored[value].amount, scored[value].amount_runtime)
            for value in sorted(scored)
        ]
        scores[name] = ScoredAmounts(_format(sums.amount), _format(sums.amount_runtime), unscored, by_value)
    return UsedComponent(usage.sums.amount, usage.sums.amount_runtime, scores, usage.known)


def _format(number: Decimal) -> str:
    """Return a number as text without exponent and trailing zeros."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
