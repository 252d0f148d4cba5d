"""The query strings of the page: every view of usage and every list of records has a URL.

A view has a measure, a group, a period and filters. A list of records has the filters and the order of the API, which
the API's parser reads. Its form has three kinds of fields: parameters of the API, such as ``runtime[gte]``; one more
filter by a label (``label_key``, ``label_is``, ``label_value``) or by a component; and ``filters`` for everything else.
:func:`tidy` turns a submitted form into the query string of the list.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from urllib.parse import parse_qs, quote, quote_plus, unquote_plus, urlencode

import msgspec
from msgspec.structs import replace

from auditord.reporting import MEASURES, LabelKeys, Measure, Question
from auditord.reporting.measures import DEFAULT_SCORE
from auditord.reporting.periods import PERIODS, check_day
from auditord.web.api.lake_source import SOURCE, SOURCES
from auditord.web.api.records import FILTERS as API_FILTERS
from auditord.web.api.records import Listing, read_listing
from auditord.web.limits import MOST_BINS, MOST_ROWS
from auditord.web.record_query import InvalidQuery, parse_query_string
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import Comparison, SortField, Window
from auditord_hookspecs.records import check_name
from auditord_hookspecs.zones import zone_name, zone_named

FILTERS: Final = ("site", "group", "user")
GROUPS: Final[Mapping[str, str]] = {
    "group": "group",
    "site": "site",
    "user": "user",
    "size": "job size (cores)",
    "none": "nothing",
}
"""The dimensions of rows besides meta keys, and their names."""

NO_BIN: Final = "none"
AUTOMATIC: Final = "auto"

DAYS: Final = "days"
CHARTS: Final = (AUTOMATIC, "bars", "areas", "lines", DAYS)

_DEFAULT_PERIOD: Final = "30-days"
_LONGEST: Final = 1_000
_AUTOMATIC: Final = {
    CalendarUnit.DAY: timedelta(days=62),
    CalendarUnit.WEEK: timedelta(days=200),
    CalendarUnit.MONTH: timedelta(days=40 * 366),
}
"""The longest period for which each unit is chosen automatically. Longer periods are shown by year."""
LABEL: Final = "label"
"""The parameter for a label that records must have, ``key=value``."""

_KNOWN: Final = frozenset(
    {"measure", "by", "bin", "period", "from", "to", "score", "top", "chart", "timezone", SOURCE, LABEL, *FILTERS}
)
_LEAST: Final = {
    CalendarUnit.DAY: timedelta(days=1),
    CalendarUnit.WEEK: timedelta(days=7),
    CalendarUnit.MONTH: timedelta(days=28),
    CalendarUnit.QUARTER: timedelta(days=90),
    CalendarUnit.YEAR: timedelta(days=365),
}
"""The shortest length of each unit."""


class View(msgspec.Struct, frozen=True):
    """A view of usage: one report and its presentation.

    Args:
        given: the parameters of the URL by name; missing ones have their defaults.
        labels: pairs of a meta key and a value that records must have.
    """

    given: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def measure(self) -> Measure:
        """The measure that is shown."""
        return MEASURES[self.given.get("measure", "core-hours")]

    @property
    def by(self) -> str:
        """The label that the rows are grouped by; ``none`` for a single row."""
        return self.given.get("by", "group")

    @property
    def score(self) -> str:
        """The score that weights hours."""
        return self.given.get("score", DEFAULT_SCORE)

    @property
    def period(self) -> str:
        """The name of the period; empty if the view has ``from`` or ``to`` instead."""
        free = "from" in self.given or "to" in self.given
        return "" if free else self.given.get("period", _DEFAULT_PERIOD)

    @property
    def filters(self) -> tuple[tuple[str, str], ...]:
        """The labels that records must have: names and values."""
        return (*((name, self.given[name]) for name in FILTERS if name in self.given), *self.labels)

    @property
    def chart(self) -> str:
        """The kind of chart."""
        return self.given.get("chart", AUTOMATIC)

    @property
    def source(self) -> str:
        """The source of the records: the record store or the lake."""
        return self.given.get(SOURCE, SOURCES[0])

    @property
    def zone(self) -> str | None:
        """The time zone of the view; None for that of the page."""
        return self.given.get("timezone")

    def window(self, now: datetime) -> Window:
        """Return the half-open period in the time zone of ``now``.

        Raises:
            InvalidQuery: the period ends before it begins.
        """
        if self.period:
            return PERIODS[self.period](now)
        start, stop = self.given.get("from"), self.given.get("to")
        zone = now.tzinfo
        end = PERIODS["7-days"](now).stop if stop is None else _day("to", stop, zone) + timedelta(days=1)
        begin = end - timedelta(days=30) if start is None else _day("from", start, zone)
        if end <= begin:
            raise InvalidQuery("the period ends before it begins", "to")
        return Window(begin, end)

    def unit(self, now: datetime) -> CalendarUnit | None:
        """Return the unit of the time axis; None for no bins.

        Raises:
            InvalidQuery: the period has too many bins of this unit.
        """
        name, window = self.given.get("bin", AUTOMATIC), self.window(now)
        name = CalendarUnit.DAY.value if self.chart == DAYS else name
        length = window.stop - window.start
        if name == AUTOMATIC:
            return next((unit for unit, longest in _AUTOMATIC.items() if length <= longest), CalendarUnit.YEAR)
        if name == NO_BIN:
            return None
        unit = CalendarUnit(name)
        if length > MOST_BINS * _LEAST[unit]:
            raise InvalidQuery(f"more than {MOST_BINS} {name}s: choose longer bins or a shorter period", "bin")
        return unit

    def question(self, now: datetime, keys: LabelKeys) -> Question:
        """Return the question that the view answers, in the time zone of ``now``."""
        by, zone = None if self.by == "none" else self.by, zone_name(now)
        return Question(
            (self.measure,), by, self.unit(now), self.window(now), self.filters, self.score, keys, zone, now=now
        )

    def url(self, path: str, **changes: str | None) -> str:
        """Return the URL of the view with some parameters changed, or removed if None."""
        merged = {**self.given, **changes}
        pairs = [(name, value) for name, value in merged.items() if value is not None]
        pairs += [(LABEL, f"{key}={value}") for key, value in self.labels]
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def narrow(self, path: str, name: str, value: str) -> str:
        """Return the URL of the view narrowed to one more label."""
        if name in FILTERS:
            return self.url(path, **{name: value})
        return replace(self, labels=(*self.labels, (name, value))).url(path)


def read_view(query: str) -> View:
    """Read the query string of a view.

    Raises:
        InvalidQuery: a parameter is unknown or has an invalid value.
    """
    given = parse_qs(query, keep_blank_values=True, max_num_fields=100)
    for name, values in given.items():
        if name not in _KNOWN:
            raise InvalidQuery(f"there is no parameter '{name[:60]}'", name[:60])
        if name != LABEL and len(values) > 1:
            raise InvalidQuery(f"give '{name}' only once", name)
        if any(len(value) > _LONGEST for value in values):
            raise InvalidQuery(f"'{name}' is too long", name)
    single = {name: values[0] for name, values in given.items() if name != LABEL and values[0]}
    _check(single)
    return View(single, tuple(map(_label, given.get(LABEL, ()))))


def _check(single: Mapping[str, str]) -> None:
    offered: Mapping[str, Sequence[str]] = {
        "measure": tuple(MEASURES),
        "period": tuple(PERIODS),
        "chart": CHARTS,
        SOURCE: SOURCES,
        "bin": (AUTOMATIC, NO_BIN, *(unit.value for unit in CalendarUnit)),
    }
    for name, values in offered.items():
        if single.get(name, values[0]) not in values:
            raise InvalidQuery(f"'{name}' must be one of {', '.join(values)}", name)
    for name in ("score", "by", *FILTERS):
        if text := single.get(name):
            _check_name(name, text)
    if zone := single.get("timezone"):
        try:
            zone_named(zone)
        except ValueError as error:
            raise InvalidQuery(str(error), "timezone") from error
    for name in ("from", "to"):
        if name in single:
            _day(name, single[name])
    top = single.get("top", "1")
    if not (top.isascii() and top.isdigit() and 1 <= int(top) <= MOST_ROWS):
        raise InvalidQuery(f"'top' must be a number of rows, at most {MOST_ROWS}", "top")


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidQuery("write 'label' as key=value", LABEL)
    _check_name(LABEL, key)
    if value:
        _check_name(LABEL, value)
    return key, value


def _check_name(parameter: str, text: str) -> None:
    try:
        check_name(text.removeprefix("meta:"))
    except InvalidRecord as error:
        raise InvalidQuery(str(error), parameter) from error


def _day(name: str, text: str, zone: tzinfo | None = UTC) -> datetime:
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=zone)
    except ValueError as error:
        raise InvalidQuery(f"'{name}' must be a day such as 2026-01-31", name) from error
    try:
        return check_day(day)
    except ValueError as error:
        raise InvalidQuery(f"'{name}': {error}", name) from error


PAGE: Final = 50
"""The default number of records on a page."""

OF_API: Final = frozenset({*API_FILTERS, "sort_by", "limit", "cursor", "include"})
RANGES: Final[Mapping[str, str]] = {
    "start_time[gte]": "Started from",
    "start_time[lt]": "Started before",
    "stop_time[gte]": "Stopped from",
    "stop_time[lt]": "Stopped before",
    "runtime[gte]": "Runtime from, in s",
    "runtime[lt]": "Runtime below, in s",
}
"""The filters that have a field of their own in the form, and the names of the fields."""

COMPARISONS: Final = tuple(each.value for each in Comparison)
LABEL_OPERATORS: Final = ("c", "dnc", "absent")
OPERATORS: Final[Mapping[str, str]] = {
    "c": "is",
    "dnc": "is not",
    "any": "is one of",
    "absent": "does not exist",
    "gt": ">",
    "gte": "≥",
    "lt": "<",
    "lte": "≤",
    "equals": "=",
}
"""The operators of the API as people read them."""

_TIMES: Final = ("start_time", "stop_time")
_FIELDS: Final = frozenset(
    {"filters", "label_key", "label_is", "label_value", "component_name", "component_is", "component_amount"}
)
_LATEST_FIRST: Final = f"sort_by[desc]={SortField.START.value}"
_SHOWN_ELSEWHERE: Final = frozenset({"sort_by", "limit", "cursor", "include", "open"})


class Chip(msgspec.Struct, frozen=True):
    """A filter above the list.

    Args:
        subject: the label, the component, or the parameter.
        operator: the comparison; empty if there is none.
        value: the value that the subject is compared with.
        without: the query string without this filter.
    """

    subject: str
    operator: str
    value: str
    without: str


def pieces_of(raw: str) -> Sequence[str]:
    """Return the parameters of a query string, undecoded."""
    return [piece for piece in raw.split("&") if piece]


def name_of(piece: str) -> str:
    """Return the decoded name of a parameter, without brackets."""
    return unquote_plus(_key(piece)).partition("[")[0]


def value_of(piece: str) -> str:
    """Return the decoded value of a parameter."""
    return unquote_plus(piece.partition("=")[2])


def is_sent_form(pieces: Sequence[str]) -> bool:
    """Return whether a query string comes from a submitted form and is not yet tidied."""
    return any(name_of(piece) in _FIELDS for piece in pieces)


def tidy(pieces: Sequence[str]) -> str:
    """Return the query string of the list that a submitted form requests.

    Raises:
        InvalidQuery: a filter is incomplete.
    """
    fields = {name: value_of(piece) for piece in pieces if (name := name_of(piece)) in _FIELDS}
    kept = [f"{_key(piece)}={piece.partition('=')[2]}" for piece in pieces if name_of(piece) not in _FIELDS]
    others = [piece for piece in pieces_of(fields.get("filters", "")) if name_of(piece) not in _FIELDS]
    kept = [piece for piece in (*kept, *others) if piece.partition("=")[2]]
    for added in (*_label_filter(fields), *_component_filter(fields)):
        key = _key(added)
        kept = [*(piece for piece in kept if key.endswith("[]") or _key(piece) != key), added]
    return "&".join(kept)


def read_filters(pieces: Sequence[str], zone: tzinfo) -> Listing:
    """Return the filters and the order of a list, by default the latest start first.

    Args:
        pieces: the parameters of the list.
        zone: the time zone of times without one.

    Raises:
        InvalidQuery: the API would refuse the parameters too, or the limit is too large for a page.
    """
    asked = [_with_zone(piece, zone) for piece in pieces if name_of(piece) in OF_API and value_of(piece)]
    is_ordered = any(name_of(piece) == "sort_by" for piece in asked)
    limit = [] if any(name_of(piece) == "limit" for piece in asked) else [f"limit={PAGE}"]
    found = read_listing("&".join([*asked, *limit, *([] if is_ordered else [_LATEST_FIRST])]), "")
    if found.page > MOST_ROWS:
        raise InvalidQuery(f"'limit' must be a number of rows, at most {MOST_ROWS}", "limit")
    return replace(found, query=replace(found.query, limit=found.page + 1))


def chips(pieces: Sequence[str]) -> list[Chip]:
    """Return the filters of a list, for display above it."""
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
    """Return the values of the form's fields: those of :data:`RANGES`, and ``filters`` for everything else."""
    of_ranges = {key: _local(key, value_of(piece), zone) for piece in pieces if (key := _key(piece)) in RANGES}
    others = [
        piece
        for piece in pieces
        if (name := name_of(piece)) == "sort_by" or (name in OF_API - _SHOWN_ELSEWHERE and _key(piece) not in RANGES)
    ]
    return {**dict.fromkeys(RANGES, ""), **of_ranges, "filters": "&".join(others)}


def order_by(pieces: Sequence[str], field: SortField, *, descending: bool) -> str:
    """Return the query string of the list in another order."""
    kept = [piece for piece in pieces if name_of(piece) not in {"sort_by", "cursor"}]
    return "&".join([*kept, f"sort_by[{'desc' if descending else 'asc'}]={field.value}"])


def set_parameter(pieces: Sequence[str], name: str, value: str | None) -> str:
    """Return the query string with a parameter set to a value, or removed if None."""
    kept = [piece for piece in pieces if name_of(piece) != name]
    return "&".join(kept if value is None else [*kept, f"{name}={quote_plus(value)}"])


def _key(piece: str) -> str:
    """Return the undecoded name of a parameter, but with decoded brackets, which some browsers encode."""
    key = piece.partition("=")[0]
    if "[" in key:
        return key
    return key.replace("%5B", "[").replace("%5D", "]").replace("%5b", "[").replace("%5d", "]")


def _label_filter(fields: Mapping[str, str]) -> Iterator[str]:
    key, operator = fields.get("label_key", ""), fields.get("label_is") or LABEL_OPERATORS[0]
    value = fields.get("label_value", "")
    if not key and not value:
        return
    if operator not in LABEL_OPERATORS:
        raise InvalidQuery(f"'label_is' must be one of {', '.join(LABEL_OPERATORS)}", "label_is")
    missing = "label_key" if not key else "label_value" if not value and operator != "absent" else None
    if missing is not None:
        raise InvalidQuery(f"'{missing}' is missing: a filter by a label needs a name and a value", missing)
    end = "[absent]=true" if operator == "absent" else f"[{operator}][]={quote_plus(value)}"
    yield f"meta[{quote(key, safe='')}]{end}"


def _component_filter(fields: Mapping[str, str]) -> Iterator[str]:
    name, amount = fields.get("component_name", ""), fields.get("component_amount", "")
    comparison = fields.get("component_is") or COMPARISONS[0]
    if not name and not amount:
        return
    if comparison not in COMPARISONS:
        raise InvalidQuery(f"'component_is' must be one of {', '.join(COMPARISONS)}", "component_is")
    if not name or not amount:
        missing = "component_amount" if name else "component_name"
        raise InvalidQuery(f"'{missing}' is missing: a filter by a component needs a name and an amount", missing)
    yield f"component[{quote(name, safe='')}][{comparison}]={quote_plus(amount)}"


def _with_zone(piece: str, zone: tzinfo) -> str:
    """Return a time parameter with a zone. The form sends times without one, in the page's zone."""
    if name_of(piece) not in _TIMES:
        return piece
    try:
        moment = datetime.fromisoformat(value_of(piece))
    except ValueError:
        return piece  # the API's parser reports it
    return piece if moment.tzinfo else f"{_key(piece)}={quote_plus(moment.replace(tzinfo=zone).isoformat())}"


def _local(key: str, text: str, zone: tzinfo) -> str:
    """Return a value for a field of the form, with times in the page's zone; empty if they cannot be shown there."""
    if not key.startswith(_TIMES):
        return text
    try:
        moment = datetime.fromisoformat(text)
        local = moment.astimezone(zone) if moment.tzinfo else moment
    except (ValueError, OverflowError):  # a zone may have the first or last hours of the calendar in another year
        return ""
    return local.replace(tzinfo=None).isoformat(timespec="seconds")
