"""The query string of ``GET /api/v1/records``: AUDITOR's filters, some more, and a cursor.

The query string has the grammar of ``GET /records`` (:mod:`auditord.web.record_query`). Beyond it there are
``open=true|false``, ``implausible=true``, ``meta[key][any][]=value`` (at least one of the values),
``meta[key][absent]=true``, ``cursor``, ``format`` and ``include``; an operator of ``meta`` that is not known is refused
here, where AUDITOR ignores it.

Pages follow the order of start times, since a stop time may change between two pages. A cursor is the start time and
the id of the last record of a page, ``2026-01-31T12:00:00Z,slurm-17``, and may be written by hand.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

from auditord.web.api.lake_source import SOURCE, is_lake
from auditord.web.api.operation import Parameter
from auditord.web.api.values import WHITE_SPACE, Choice, Schema, Whole, read_given
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
from auditord_hookspecs import Record, RecordQuery
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
from auditord_hookspecs.wire import format_time, parse_time

Format: TypeAlias = Literal["json", "ndjson"]

DEFAULT_PAGE: Final = 1_000
LARGEST_PAGE: Final = 10_000
"""Of a JSON answer, which clients read as a whole; NDJSON may be as long as one likes."""

NDJSON: Final = "application/x-ndjson"

LIMIT: Final = Whole(least=1)
FORMAT: Final = Choice(("json", "ndjson"))
INCLUDE: Final = Choice(("archive",))

# A time as it is written in answers, of the Gregorian calendar from the year 1 on; then a name.
_YEAR: Final = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAYS: Final = (  # of long, of short months, and of February
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
"""The form of what :func:`cursor` writes."""

_SORT_FIELD: Final[Schema] = {"type": "string", "enum": [field.value for field in SortField]}
PAGING: Final = (
    Parameter(
        "sort_by",
        "sort_by[asc] or sort_by[desc]; pages follow start_time, records in another order come as NDJSON.",
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
        f"At most so many records; a page of JSON has {DEFAULT_PAGE} if not given, {LARGEST_PAGE} at most; NDJSON all.",
        LIMIT.schema,
    ),
    Parameter(
        "cursor",
        "Go on behind this place: start time and id of the last record, 2026-01-31T12:00:00Z,slurm-17. A record that "
        "is closed meanwhile keeps its place; one that is added behind the place is found, one before it is not. In "
        "another order than that of start_time, all records behind the place come.",
        CURSOR,
    ),
    Parameter(
        "format",
        "json (pages with 'next'; the default) or ndjson (one record per line, as many as there are); the header "
        "Accept chooses, too.",
        FORMAT.schema,
    ),
    Parameter(
        "include",
        "archive: the records of the archive, too; by default only those of the record store.",
        INCLUDE.schema,
    ),
)


_BY_START: Final = Order(SortField.START)
_EVER: Final = datetime(1, 1, 1, tzinfo=UTC)
_ASCII: Final = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True, slots=True)
class Listing:
    """A question for records.

    Args:
        query: which records, in which order; of JSON one more than the page holds, to see whether there are more.
        format: how they are written.
        page: how many a JSON answer holds at most.
        raw: the query string, to make the next page's from.
        of_lake: whether the lake is asked, and not the record store.
    """

    query: RecordQuery
    format: Format
    page: int
    raw: str
    of_lake: bool = False

    def next(self, last: Record) -> str:
        """The query string that asks for what follows a record."""
        kept = [piece for piece in self.raw.split("&") if piece and piece.partition("=")[0] != "cursor"]
        encoded = [quote(piece.encode("utf-8", "surrogateescape"), safe=_ASCII) for piece in kept]
        return "&".join([*encoded, f"cursor={quote(cursor(last), safe=':,')}"])


def cursor(record: Record) -> str:
    """The place behind a record."""
    return f"{format_time(record.start_time)},{record.record_id}"


def read_listing(raw: str, accept: str) -> Listing:
    """Read a raw query string and the header ``Accept``.

    Raises:
        InvalidQuery: the string breaks the grammar, names an unknown parameter or holds a value out of range.
    """
    given = read_given(raw, [*FILTERS, "sort_by", "limit", "cursor", "format", "include", SOURCE])
    with about("sort_by"):
        order = _order(given.get("sort_by", ()))
    with about("format"):
        form = _format(FORMAT.read("format", given.get("format", ())), accept, order)
    with about("limit"):
        limit = LIMIT.read("limit", given.get("limit", ()))
    with about("include"):
        archived = INCLUDE.read("include", given.get("include", ())) is not None
    # The cursor first: SQLite looks the index up by the first bound that it reads, and passes over the rest.
    conditions = [*_behind(given.get("cursor", ()), order), *read_conditions(given, FILTERS)]
    page = min(limit or DEFAULT_PAGE, LARGEST_PAGE)
    most = limit if form == "ndjson" else page + 1
    return Listing(RecordQuery(AllOf(tuple(conditions)), order, most, archived), form, page, raw, is_lake(given))


def _format(word: str | None, accept: str, order: Order) -> Format:
    """Pages follow the order of start times: records in another order come as lines, whatever is asked for."""
    if order.field is not SortField.START:
        return "ndjson"
    if word is None:
        return "ndjson" if "ndjson" in accept.lower() else "json"
    return "ndjson" if word == "ndjson" else "json"


def _order(given: Given) -> Order:
    if len(given) > 1:
        raise InvalidQuery("'sort_by' is given once, with [asc] or [desc]")
    return read_order(given) if given else _BY_START


def _behind(given: Given, order: Order) -> Iterator[Condition]:
    """The records behind a place in the order of start times, in whatever order they come."""
    with about("cursor"):
        text = scalar("cursor", given)
        if text is None:
            return
        moment, comma, record_id = text.partition(",")
        if not comma:
            raise InvalidQuery("a cursor is a start time and a record id, such as 2026-01-31T12:00:00Z,slurm-17")
        check_name(record_id)
        backwards = order.descending and order.field is SortField.START
        yield PlaceCompares(Comparison.LT if backwards else Comparison.GT, parse_time(moment), record_id)


def _open(name: str, given: Given) -> Iterator[Condition]:
    match scalar(name, given):
        case None:
            return
        case "true":
            yield IsOpen()
        case "false":
            yield TimeCompares(TimeField.STOP, Comparison.GTE, _EVER)
        case other:
            raise InvalidQuery(f"'{name}' is true or false, not '{other[:60]}'")


def _implausible(name: str, given: Given) -> Iterator[Condition]:
    match scalar(name, given):
        case None:
            return
        case "true":
            yield ImplausibleCpuTime()
        case other:
            raise InvalidQuery(f"'{name}' takes true, or leave it out, not '{other[:60]}'")


def _metas(name: str, given: Given) -> Iterator[Condition]:
    for key, below in by_key(name, given):
        for operator, listed in by_name(below).items():
            yield from _meta(name, key, operator, listed)


def _meta(name: str, key: str, operator: str, listed: Given) -> Iterator[Condition]:
    place = f"{name}[{key}][{operator}]"
    match operator:
        case "any":
            if found := tuple(values(place, listed)):
                yield MetaContainsAny(key, found)
        case "absent":
            if scalar(place, listed) not in {None, "true"}:
                raise InvalidQuery(f"'{place}' takes true, or leave it out")
            if not is_absent(listed):
                yield MetaAbsent(key)
        case _ if operator in META_OPERATORS:
            yield from (META_OPERATORS[operator](key, value) for value in values(place, listed))
        case _:
            expected = ", ".join([*META_OPERATORS, "any", "absent"])
            raise InvalidQuery(f"unknown operator '{operator[:60]}' of '{name}[{key}]', expected one of {expected}")


FILTERS: Final[Mapping[str, ConditionReader]] = {
    **CONDITIONS,
    "meta": _metas,
    "open": _open,
    "implausible": _implausible,
}
"""Everything that chooses records."""
