"""The query string of the list of records: the filters and the order of the API, read by its parser.

The form of the page has three kinds of fields: parameters as they are, such as ``runtime[gte]``; those of one more
filter by a label (``label_key``, ``label_is``, ``label_value``) or by a component; and ``filters``, which holds all
that the form has no field for. :func:`tidied` makes the query string of the view of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from typing import Final
from urllib.parse import quote, quote_plus, unquote_plus

from auditord.web.api.listing import FILTERS, Listing, read_listing
from auditord.web.page.query_string import LABEL, MOST_ROWS
from auditord.web.record_query import InvalidQuery, parse_query_string
from auditord_hookspecs.query import Comparison, SortField

PAGE: Final = 50
"""The records of a page, unless the limit says otherwise."""

OF_API: Final = frozenset({*FILTERS, "sort_by", "limit", "cursor", "include"})
RANGES: Final = tuple(
    f"{name}[{comparison}]" for name in ("start_time", "stop_time", "runtime") for comparison in ("gte", "lt")
)
"""Filters that the form has a field for."""

COMPARISONS: Final = tuple(each.value for each in Comparison)
LABEL_OPERATORS: Final = ("c", "dnc", "absent")

_TIMES: Final = ("start_time", "stop_time")
_FIELDS: Final = frozenset(
    {"filters", "label_key", "label_is", "label_value", "component_name", "component_is", "component_amount"}
)
_LATEST_FIRST: Final = f"sort_by[desc]={SortField.START.value}"
_SHOWN_ELSEWHERE: Final = frozenset({"sort_by", "limit", "cursor", "include", "open"})


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter as it is shown.

    Args:
        subject: the label, the component, or the parameter.
        operator: of the comparison; empty without one.
        value: that it is compared with.
        without: the query string without this filter.
    """

    subject: str
    operator: str
    value: str
    without: str


def pieces_of(raw: str) -> Sequence[str]:
    """The parameters of a query string as they are."""
    return [piece for piece in raw.split("&") if piece]


def name_of(piece: str) -> str:
    """The name of a parameter, without brackets."""
    return unquote_plus(_key(piece)).partition("[")[0]


def value_of(piece: str) -> str:
    """The value of a parameter, decoded."""
    return unquote_plus(piece.partition("=")[2])


def is_sent_form(pieces: Sequence[str]) -> bool:
    """Tell if a query string is what the form sent, rather than a view."""
    return any(name_of(piece) in _FIELDS for piece in pieces)


def tidied(pieces: Sequence[str]) -> str:
    """The query string of the view that the form asks for.

    Raises:
        InvalidQuery: half a filter was written.
    """
    fields = {name: value_of(piece) for piece in pieces if (name := name_of(piece)) in _FIELDS}
    kept = [f"{_key(piece)}={piece.partition('=')[2]}" for piece in pieces if name_of(piece) not in _FIELDS]
    others = [piece for piece in pieces_of(fields.get("filters", "")) if name_of(piece) not in _FIELDS]
    kept = [piece for piece in (*kept, *others) if piece.partition("=")[2]]
    for added in (*_label(fields), *_component(fields)):
        key = _key(added)
        kept = [*(piece for piece in kept if key.endswith("[]") or _key(piece) != key), added]
    return "&".join(kept)


def read_filters(pieces: Sequence[str], zone: tzinfo) -> Listing:
    """The filters and the order of a view; the latest start is first unless it says otherwise.

    Args:
        pieces: all parameters of the view.
        zone: of times without one.

    Raises:
        InvalidQuery: as the API refuses it.
    """
    asked = [_with_zone(piece, zone) for piece in pieces if name_of(piece) in OF_API and value_of(piece)]
    is_ordered = any(name_of(piece) == "sort_by" for piece in asked)
    limit = [] if any(name_of(piece) == "limit" for piece in asked) else [f"limit={PAGE}"]
    found = read_listing("&".join([*asked, *limit, *([] if is_ordered else [_LATEST_FIRST])]), "")
    if found.page > MOST_ROWS:
        raise InvalidQuery(f"'limit' is a number of rows, at most {MOST_ROWS}", "limit")
    return replace(found, query=replace(found.query, limit=found.page + 1))


def chips(pieces: Sequence[str]) -> list[Chip]:
    """The filters of a view."""
    found: list[Chip] = []
    for at, piece in enumerate(pieces):
        name, value = name_of(piece), value_of(piece)
        if not value or (name != LABEL and name not in OF_API - _SHOWN_ELSEWHERE):
            continue
        without = "&".join(each for other, each in enumerate(pieces) if other != at and name_of(each) != "cursor")
        if name == LABEL:
            key, _, value = value.partition("=")
            found.append(Chip(key, "c" if value else "absent", value, without))
            continue
        ((_, *inner),) = [parameter.path for parameter in parse_query_string(piece)]
        *subject, operator = [each for each in inner if each][:2] or [""]
        found.append(Chip(subject[0] if subject else name, operator, value, without))
    return found


def form_values(pieces: Sequence[str], zone: tzinfo) -> Mapping[str, str]:
    """The values of the form's fields: of :data:`RANGES`, and what it has no fields for."""
    of_ranges = {key: _local(key, value_of(piece), zone) for piece in pieces if (key := _key(piece)) in RANGES}
    others = [
        piece
        for piece in pieces
        if (name := name_of(piece)) == "sort_by" or (name in OF_API - _SHOWN_ELSEWHERE and _key(piece) not in RANGES)
    ]
    return {**dict.fromkeys(RANGES, ""), **of_ranges, "filters": "&".join(others)}


def ordered_by(pieces: Sequence[str], field: SortField, *, descending: bool) -> str:
    """The query string of the same records in another order."""
    kept = [piece for piece in pieces if name_of(piece) not in {"sort_by", "cursor"}]
    return "&".join([*kept, f"sort_by[{'desc' if descending else 'asc'}]={field.value}"])


def changed(pieces: Sequence[str], name: str, value: str | None) -> str:
    """The query string with another value of a parameter; without it for None."""
    kept = [piece for piece in pieces if name_of(piece) != name]
    return "&".join(kept if value is None else [*kept, f"{name}={quote_plus(value)}"])


def _key(piece: str) -> str:
    """The name of a parameter with its brackets; browsers encode these, and the parser takes both."""
    key = piece.partition("=")[0]
    if "[" in key:
        return key
    return key.replace("%5B", "[").replace("%5D", "]").replace("%5b", "[").replace("%5d", "]")


def _label(fields: Mapping[str, str]) -> Iterator[str]:
    key, operator = fields.get("label_key", ""), fields.get("label_is") or LABEL_OPERATORS[0]
    value = fields.get("label_value", "")
    if not key and not value:
        return
    if operator not in LABEL_OPERATORS:
        raise InvalidQuery(f"'label_is' is one of {', '.join(LABEL_OPERATORS)}", "label_is")
    missing = "label_key" if not key else "label_value" if not value and operator != "absent" else None
    if missing is not None:
        raise InvalidQuery(f"'{missing}' is missing: a filter by a label has a name and a value", missing)
    end = "[absent]=true" if operator == "absent" else f"[{operator}][]={quote_plus(value)}"
    yield f"meta[{quote(key, safe='')}]{end}"


def _component(fields: Mapping[str, str]) -> Iterator[str]:
    name, amount = fields.get("component_name", ""), fields.get("component_amount", "")
    comparison = fields.get("component_is") or COMPARISONS[0]
    if not name and not amount:
        return
    if comparison not in COMPARISONS:
        raise InvalidQuery(f"'component_is' is one of {', '.join(COMPARISONS)}", "component_is")
    if not name or not amount:
        missing = "component_amount" if name else "component_name"
        raise InvalidQuery(f"'{missing}' is missing: a filter by a component has a name and an amount", missing)
    yield f"component[{quote(name, safe='')}][{comparison}]={quote_plus(amount)}"


def _with_zone(piece: str, zone: tzinfo) -> str:
    """A time of the form has no zone: it is one of the page's."""
    if name_of(piece) not in _TIMES:
        return piece
    try:
        moment = datetime.fromisoformat(value_of(piece))
    except ValueError:
        return piece  # the parser says why it is none
    return piece if moment.tzinfo else f"{_key(piece)}={quote_plus(moment.replace(tzinfo=zone).isoformat())}"


def _local(key: str, text: str, zone: tzinfo) -> str:
    """A value as a field of the form shows it: times by the clocks of the page's zone."""
    if not key.startswith(_TIMES):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return ""
    return (moment.astimezone(zone) if moment.tzinfo else moment).replace(tzinfo=None).isoformat(timespec="seconds")
