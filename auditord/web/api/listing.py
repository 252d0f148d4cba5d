"""What ``GET /api/v1/records?…`` asks for: AUDITOR's filters, some more, and where to go on.

The query string has the grammar of ``GET /records`` (:mod:`auditord.web.record_query`). Beyond it there are
``open=true|false``, ``meta[key][any][]=value`` (at least one of the values), ``meta[key][absent]=true``, ``cursor`` and
``format``; an operator of ``meta`` that is not known is refused here, where AUDITOR ignores it.

Pages follow the order of start times, since a stop time changes while somebody pages. A cursor is the start time and
the id of the last record of a page, ``2026-01-31T12:00:00Z,slurm-17``, and may be written by hand.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

from auditord.web.query_string import InvalidQuery, parse_query_string
from auditord.web.record_query import (
    CONDITIONS,
    META_OPERATORS,
    ConditionReader,
    Given,
    about,
    by_key,
    by_name,
    is_absent,
    read_conditions,
    read_limit,
    read_order,
    refuse_unknown,
    scalar,
    values,
)
from auditord_hookspecs import Record, RecordQuery
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    Condition,
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

_BY_START: Final = Order(SortField.START)
_EVER: Final = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Listing:
    """A question for records.

    Args:
        query: which records, in which order; of JSON one more than the page holds, to see whether there are more.
        format: how they are written.
        page: how many a JSON answer holds at most.
        raw: the query string, to make the next page's from.
    """

    query: RecordQuery
    format: Format
    page: int
    raw: str

    def next(self, last: Record) -> str:
        """The query string that asks for what follows a record."""
        kept = [piece for piece in self.raw.split("&") if piece and piece.partition("=")[0] != "cursor"]
        return "&".join([*map(_in_ascii, kept), f"cursor={quote(cursor(last), safe=':,')}"])


def _in_ascii(piece: str) -> str:
    """The same piece with everything encoded that is no ASCII."""
    return quote(piece.encode("utf-8", "surrogateescape"), safe="".join(map(chr, range(0x21, 0x7F))))


def cursor(record: Record) -> str:
    """The place behind a record."""
    return f"{format_time(record.start_time)},{record.record_id}"


def read_listing(raw: str, accept: str) -> Listing:
    """What a raw query string and the header ``Accept`` ask for.

    Raises:
        InvalidQuery: the string breaks the grammar, names an unknown parameter or holds a value out of range.
    """
    given = by_name(parse_query_string(raw))
    refuse_unknown(given, [*FILTERS, "sort_by", "limit", "cursor", "format"])
    form = _format(given.get("format", ()), accept)
    with about("sort_by"):
        order = _order(given.get("sort_by", ()), form)
    with about("limit"):
        limit = _limit(given.get("limit", ()), form)
    conditions = [*read_conditions(given, FILTERS), *_behind(given.get("cursor", ()), order)]
    most = limit if limit is None or form == "ndjson" else limit + 1
    return Listing(RecordQuery(AllOf(tuple(conditions)), order, most), form, limit or 0, raw)


def _format(given: Given, accept: str) -> Format:
    with about("format"):
        match scalar("format", given):
            case None:
                return "ndjson" if "ndjson" in accept.lower() else "json"
            case "json":
                return "json"
            case "ndjson":
                return "ndjson"
            case other:
                raise InvalidQuery(f"unknown format '{other[:60]}', expected json or ndjson")


def _order(given: Given, form: Format) -> Order:
    order = _BY_START if is_absent(given) else read_order(given)
    if form == "json" and order.field is not SortField.START:
        raise InvalidQuery(
            "JSON comes in pages, which follow start_time: sort by that, or take format=ndjson, which has no pages"
        )
    return order


def _limit(given: Given, form: Format) -> int | None:
    limit = read_limit(given)
    if form == "ndjson":
        return limit
    if limit is not None and not 1 <= limit <= LARGEST_PAGE:
        raise InvalidQuery(f"a page has 1 to {LARGEST_PAGE} records: follow 'next', or take format=ndjson")
    return limit or DEFAULT_PAGE


def _behind(given: Given, order: Order) -> Iterator[Condition]:
    with about("cursor"):
        text = scalar("cursor", given)
        if text is None:
            return
        moment, comma, record_id = text.partition(",")
        if not comma:
            raise InvalidQuery("a cursor is a start time and a record id, such as 2026-01-31T12:00:00Z,slurm-17")
        if order.field is not SortField.START:
            raise InvalidQuery("a cursor goes on in the order of start_time: leave sort_by out, or sort by that")
        check_name(record_id)
        comparison = Comparison.LT if order.descending else Comparison.GT
        yield PlaceCompares(comparison, parse_time(moment), record_id)


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


FILTERS: Final[Mapping[str, ConditionReader]] = {**CONDITIONS, "meta": _metas, "open": _open}
"""Everything that chooses records."""
