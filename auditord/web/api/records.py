"""``GET /api/v1/records`` and ``GET /api/v1/records/{record_id}``: AUDITOR's filters, further ones, and a cursor.

The query string has the grammar of ``GET /records`` (:mod:`auditord.web.record_query`). In addition there are
``open=true|false``, ``implausible=true``, ``meta[key][any][]=value`` (at least one of the values),
``meta[key][absent]=true``, ``cursor``, ``format`` and ``include``. Unknown operators of ``meta`` are refused, while
AUDITOR ignores them.

Pages are in the order of start times, because a stop time may change between two pages. A cursor is the start time and
the id of the last record of a page, ``2026-01-31T12:00:00Z,slurm-17``, and may be written by hand.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

import msgspec
from aiohttp import web

from auditord.web.answers import JSON, Answer
from auditord.web.api.lake_source import SOURCE, LakeSource, is_lake, source_parameter
from auditord.web.api.operation import FILTER_PARAMETERS, RECORD_ID, WHITE_SPACE, Choice, Whole, read_given
from auditord.web.api.shapes import RecordPage, StoredRecord
from auditord.web.limits import LARGEST_PAGE
from auditord.web.operations import Operation, Parameter, Schema
from auditord.web.problems import Refused
from auditord.web.record_query import (
    CONDITIONS,
    META_OPERATORS,
    ConditionReader,
    Given,
    InvalidQuery,
    about,
    by_key,
    by_name,
    is_absent,
    read_conditions,
    read_order,
    scalar,
    values,
)
from auditord.web.requests import RecordsFor, read_target
from auditord.web.streams import Chunks, StreamedAnswers
from auditord_hookspecs import InvalidRecord, Permission, Record, RecordQuery
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    Condition,
    ImplausibleCpuTime,
    IsOpen,
    MetaAbsent,
    MetaContainsAny,
    Order,
    PlaceCompares,
    SortField,
    TimeCompares,
    TimeField,
)
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import decode_record, format_time, parse_time

Format: TypeAlias = Literal["json", "ndjson"]

DEFAULT_PAGE: Final = 1_000
NDJSON: Final = "application/x-ndjson"

LIMIT: Final = Whole(least=1)
FORMAT: Final = Choice(("json", "ndjson"))
INCLUDE: Final = Choice(("lake",))
_TRUE: Final = Choice(("true",))
_TRUE_OR_FALSE: Final = Choice(("true", "false"))

# A time as written in responses, in the Gregorian calendar from year 1 on; then a name.
_YEAR: Final = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAYS: Final = (  # long months, short months, February
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "02-(?:0[1-9]|1[0-9]|2[0-8])",
)
_DAY: Final = f"(?:{'|'.join(_DAYS)})"
_LEAP_DAY: Final = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29"
_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?Z"
CURSOR: Final[Schema] = {
    "type": "string",
    "pattern": rf"^(?:{_YEAR}-{_DAY}|{_LEAP_DAY})T{_CLOCK},[^{WHITE_SPACE}\u0000][^\u0000]{{0,255}}$",
}
"""The JSON schema of a cursor."""

_SORT_FIELD: Final[Schema] = {"type": "string", "enum": [field.value for field in SortField]}
PAGING: Final = (
    Parameter(
        "sort_by",
        "sort_by[asc] or sort_by[desc]; pages follow start_time, other orders are available as NDJSON only.",
        {
            "type": "object",
            "properties": {"asc": _SORT_FIELD, "desc": _SORT_FIELD},
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": False,
        },
        deep=True,
    ),
    Parameter(
        "limit",
        f"The largest number of records: {LARGEST_PAGE} at most in a page of JSON. Without it, such a page has "
        f"{DEFAULT_PAGE} and NDJSON has all records.",
        LIMIT.schema,
    ),
    Parameter(
        "cursor",
        "Continue after this position: start time and id of the last record, 2026-01-31T12:00:00Z,slurm-17. A record "
        "that is closed meanwhile keeps its position; one that is added after the position is found, one before it is "
        "not. With another order than start_time, all records after the position are returned.",
        CURSOR,
    ),
    Parameter(
        "format",
        "json (pages with 'next'; the default) or ndjson (one record per line, no pages); the header Accept can "
        "choose it, too.",
        FORMAT.schema,
    ),
    Parameter(
        "include",
        "lake: also released records, which are only in the lake; by default only those of the record store.",
        INCLUDE.schema,
    ),
)


_BY_START: Final = Order(SortField.START)
_EVER: Final = datetime(1, 1, 1, tzinfo=UTC)
_ASCII: Final = "".join(map(chr, range(0x21, 0x7F)))


class Listing(msgspec.Struct, frozen=True):
    """A query for a list of records.

    Args:
        query: the records and their order; for JSON, one record more than a page, to see whether a next page exists.
        page: the most records of a JSON response.
        raw: the query string, from which the query string of the next page is made.
        of_lake: whether the lake is queried instead of the record store.
    """

    query: RecordQuery
    format: Format
    page: int
    raw: str
    of_lake: bool = False

    def next(self, last: Record) -> str:
        """Return the query string of the page after a record."""
        kept = [piece for piece in self.raw.split("&") if piece and piece.partition("=")[0] != "cursor"]
        encoded = [quote(piece.encode("utf-8", "surrogateescape"), safe=_ASCII) for piece in kept]
        return "&".join([*encoded, f"cursor={quote(cursor(last), safe=':,')}"])


def cursor(record: Record) -> str:
    """Return the cursor of the position after a record."""
    return f"{format_time(record.start_time)},{record.record_id}"


def read_listing(raw: str, accept: str) -> Listing:
    """Parse a raw query string and the header ``Accept``.

    Raises:
        InvalidQuery: the grammar is broken, or a parameter is unknown or has an invalid value.
    """
    given = read_given(raw, [*FILTERS, "sort_by", "limit", "cursor", "format", "include", SOURCE])
    with about("sort_by"):
        sort_by = given.get("sort_by", ())
        if len(sort_by) > 1:
            raise InvalidQuery("give 'sort_by' once, with [asc] or [desc]")
        order = read_order(sort_by) if sort_by else _BY_START
    with about("format"):
        word = FORMAT.read("format", given.get("format", ()))
        if word is None:
            word = "ndjson" if "ndjson" in accept.lower() else "json"
        has_pages = order.field is SortField.START
        form: Format = "json" if word == "json" and has_pages else "ndjson"
    with about("limit"):
        limit = LIMIT.read("limit", given.get("limit", ()))
    with about("include"):
        released = INCLUDE.read("include", given.get("include", ())) is not None
    conditions = list[Condition]()
    with about("cursor"):
        if (text := scalar("cursor", given.get("cursor", ()))) is not None:
            moment, comma, record_id = text.partition(",")
            if not comma:
                raise InvalidQuery("a cursor is a start time and a record id, such as 2026-01-31T12:00:00Z,slurm-17")
            check_name(record_id)
            after = Comparison.LT if order.descending and has_pages else Comparison.GT
            conditions.append(PlaceCompares(after, parse_time(moment), record_id))
    # Behind the cursor: SQLite uses the first bound for the index lookup, and only filters by the others.
    conditions += read_conditions(given, FILTERS)
    page = min(limit or DEFAULT_PAGE, LARGEST_PAGE)
    most = limit if form == "ndjson" else page + 1
    return Listing(RecordQuery(AllOf(tuple(conditions)), order, most, released), form, page, raw, is_lake(given))


def _is_open(name: str, given: Given) -> Iterator[Condition]:
    if (word := _TRUE_OR_FALSE.read(name, given)) is not None:
        yield IsOpen() if word == "true" else TimeCompares(TimeField.STOP, Comparison.GTE, _EVER)


def _implausible(name: str, given: Given) -> Iterator[Condition]:
    if _TRUE.read(name, given) is not None:
        yield ImplausibleCpuTime()


def _metas(name: str, given: Given) -> Iterator[Condition]:
    for key, below in by_key(name, given):
        for operator, listed in by_name(below).items():
            parameter = f"{name}[{key}][{operator}]"
            match operator:
                case "any":
                    if found := tuple(values(parameter, listed)):
                        yield MetaContainsAny(key, found)
                case "absent":
                    if scalar(parameter, listed) not in {None, "true"}:
                        raise InvalidQuery(f"'{parameter}' must be true: leave it out otherwise")
                    if not is_absent(listed):
                        yield MetaAbsent(key)
                case _ if operator in META_OPERATORS:
                    yield from (META_OPERATORS[operator](key, value) for value in values(parameter, listed))
                case _:
                    expected = ", ".join([*META_OPERATORS, "any", "absent"])
                    raise InvalidQuery(
                        f"unknown operator '{operator[:60]}' of '{name}[{key}]', expected one of {expected}"
                    )


FILTERS: Final[Mapping[str, ConditionReader]] = {
    **CONDITIONS,
    "meta": _metas,
    "open": _is_open,
    "implausible": _implausible,
}
"""The parameters that select records."""


def read_where(raw: str) -> Condition:
    """Return the condition of a query string that has only :data:`FILTERS`.

    Raises:
        InvalidQuery: the grammar is broken, or a parameter is unknown or has an invalid value.
    """
    return AllOf(read_conditions(read_given(raw, FILTERS), FILTERS))


_LINES: Final = ", including released ones; a lake of several daemons returns records as NDJSON only"


class RecordHandlers(msgspec.Struct, frozen=True):
    """Handles reads of records."""

    records: RecordsFor
    answers: StreamedAnswers
    lake: LakeSource

    @Operation(
        "GET",
        "/api/v1/records/{record_id}",
        "getRecord",
        "Read one record.",
        Permission.READ,
        {200: {JSON: StoredRecord}},
        problems=(404, 503),
        parameters=(RECORD_ID,),
    )
    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send a record as an object."""
        try:
            record_id = read_target(request.raw_path).segment(-1)
            check_name(record_id)
        except InvalidRecord as error:
            raise Refused(404, f"no record can have this id: {error}", parameter="record_id") from error
        text = await self.records(request).get(record_id)
        if text is None:
            remedy = "percent-encode the id as one segment ('/' is %2F), and check upper and lower case"
            raise Refused(404, f"no record has the id '{record_id}'", parameter="record_id", remedy=remedy)
        return Answer(200, text, JSON)

    @Operation(
        "GET",
        "/api/v1/records",
        "listRecords",
        "Read records with filters, in pages or as lines.",
        Permission.READ,
        {200: {JSON: RecordPage, NDJSON: StoredRecord}},
        problems=(400, 503),
        parameters=(*FILTER_PARAMETERS, *PAGING, source_parameter(_LINES)),
    )
    async def browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send records as a page of JSON or as lines.

        Headers are sent with the first chunk, so a query that fails before is a 503. A later error cuts the connection.
        """
        target = read_target(request.raw_path)
        listing = read_listing(target.query, request.headers.get("Accept", ""))
        if listing.of_lake and self.lake.is_of_many and listing.format == "json":
            raise Refused(
                400,
                "the lake has records of several daemons, and a page cannot end between two with one id",
                parameter="format",
                remedy="request lines: format=ndjson",
            )
        parts = self._open(request, listing, target.path)
        return await self.answers.send(request, parts, NDJSON if listing.format == "ndjson" else JSON)

    @asynccontextmanager
    async def _open(self, request: web.BaseRequest, listing: Listing, path: str) -> AsyncGenerator[Chunks, None]:
        async with AsyncExitStack() as stack:
            records = self.lake.records(request) if listing.of_lake else self.records(request)
            with self.lake.faults() if listing.of_lake else nullcontext():
                chunks = await stack.enter_async_context(records.stream(listing.query))
            yield await stack.enter_async_context(aclosing(_format(chunks, listing, path)))


async def _format(chunks: Chunks, listing: Listing, path: str) -> AsyncGenerator[Sequence[bytes], None]:
    """Yield lines; or one object with the records and, if there is one more than fits a page, the next page's URL."""
    if listing.format == "ndjson":
        async for chunk in chunks:
            yield [piece for document in chunk for piece in (document, b"\n")]
        return
    left, last, begin, following = listing.page, b"", b'{"records":[', None
    async for chunk in chunks:
        fitting = chunk[:left]
        if fitting:
            yield [begin, b",".join(fitting)]
            left, last, begin = left - len(fitting), fitting[-1], b","
        if len(fitting) < len(chunk):
            following = f"{path}?{listing.next(decode_record(last))}"
    if begin != b",":
        yield [begin]
    yield [b'],"next":', msgspec.json.encode(following), b"}"]
