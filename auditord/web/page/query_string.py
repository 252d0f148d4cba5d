"""The query strings of the page: every view of usage and every list of records has a URL.

A view has a period, filters, and the parameters of its page (:data:`TAKES`). Filters are one thing on all pages: labels
with a name of their own (:data:`FILTERS`), and the filters of the API, which the API's parser reads. A link from one
page to another carries all of them. A parameter that a page does not take is refused, never ignored.

A form has three kinds of fields: parameters of the API, such as ``runtime[gte]``; one more filter by a label
(``label_key``, ``label_is``, ``label_value``) or by a component; and ``filters`` for everything else. :func:`tidy`
turns a submitted form into the query string of its view.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from urllib.parse import quote, quote_plus, unquote_plus, urlencode

import msgspec
from msgspec.structs import replace

from auditord.reporting import MEASURES, LabelKeys, Measure, Question
from auditord.reporting.measures import CORES, DEFAULT_SCORE
from auditord.reporting.periods import PERIODS, check_day
from auditord.reporting.questions import SIZE
from auditord.reporting.report import limits_of_size
from auditord.web.api.lake_source import SOURCE, SOURCES
from auditord.web.api.records import FILTERS as API_FILTERS
from auditord.web.api.records import Listing, read_listing, read_where
from auditord.web.limits import MOST_BINS, MOST_ROWS
from auditord.web.record_query import InvalidQuery, about, parse_query_string
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import AllOf, Comparison, Condition, SortField, Window
from auditord_hookspecs.records import check_name
from auditord_hookspecs.vocabulary import OUTCOME, QUANTITIES, JobOutcome
from auditord_hookspecs.zones import zone_name, zone_named

FILTERS: Final = ("site", "group", "user", OUTCOME)
"""The labels with a field of their own in every form."""

GROUPS: Final[Mapping[str, str]] = {
    **{name: name for name in ("group", "site", "user", OUTCOME)},
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
_MOST_PIECES: Final = 300
_AUTOMATIC: Final = {
    CalendarUnit.DAY: timedelta(days=62),
    CalendarUnit.WEEK: timedelta(days=200),
    CalendarUnit.MONTH: timedelta(days=40 * 366),
}
"""The longest period for which each unit is chosen automatically. Longer periods are shown by year."""
USAGE: Final = "/usage"
JOBS: Final = "/jobs"
MY: Final = "/my"
TAKES: Final[Mapping[str, frozenset[str]]] = {
    USAGE: frozenset({"measure", "by", "then", "bin", "score", "top", "chart", SOURCE}),
    JOBS: frozenset({"column", "sort_by", "limit", "cursor", "include"}),
    MY: frozenset({"bin"}),
}
"""The parameters that each page takes besides filters and the period."""

_PERIOD: Final = frozenset({"period", "from", "to", "timezone"})
ALL_TIME: Final = "all"
"""The period from the first stop to the last one."""

_LEAST: Final = {
    CalendarUnit.DAY: timedelta(days=1),
    CalendarUnit.WEEK: timedelta(days=7),
    CalendarUnit.MONTH: timedelta(days=28),
    CalendarUnit.QUARTER: timedelta(days=90),
    CalendarUnit.YEAR: timedelta(days=365),
}
"""The shortest length of each unit."""


class View(msgspec.Struct, frozen=True):
    """A view of records: its period, its filters, and the parameters of its page.

    Args:
        given: the parameters of the URL by name; missing ones have their defaults.
        conditions: the filters of the API, as undecoded parameters.
        span: the days of :data:`ALL_TIME`, which only the records tell.
    """

    given: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    conditions: tuple[str, ...] = ()
    span: Window | None = None

    @property
    def measure(self) -> Measure:
        return MEASURES[self.given.get("measure", "core-hours")]

    @property
    def by(self) -> str:
        """The label that the rows are grouped by; ``none`` for a single row."""
        return self.given.get("by", "group")

    @property
    def groups(self) -> tuple[str, ...]:
        """The one or two labels that the rows are grouped by."""
        names = (self.by, self.given.get("then", "none"))
        return tuple(dict.fromkeys([name for name in names if name != "none"]))

    @property
    def score(self) -> str:
        return self.given.get("score", DEFAULT_SCORE)

    @property
    def period(self) -> str:
        """The name of the period; empty if the view has ``from`` or ``to`` instead."""
        return "" if {"from", "to"} & self.given.keys() else self.given.get("period", _DEFAULT_PERIOD)

    @property
    def filters(self) -> tuple[tuple[str, str], ...]:
        """The labels that records must have: names of :data:`FILTERS` and values."""
        return tuple([(name, self.given[name]) for name in FILTERS if name in self.given])

    @property
    def is_filtered(self) -> bool:
        """True if the view leaves out records, apart from its period."""
        return bool(self.filters or self.conditions)

    @property
    def chart(self) -> str:
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
        if self.span is not None:
            return self.span
        if self.period:
            return PERIODS[self.period](now)
        start, stop = self.given.get("from"), self.given.get("to")
        zone = now.tzinfo
        end = PERIODS["7-days"](now).stop if stop is None else _day("to", stop, zone) + timedelta(days=1)
        begin = end - timedelta(days=30) if start is None else _day("from", start, zone)
        if end <= begin:
            raise InvalidQuery("the period ends before it begins", "to")
        return Window(begin, end)

    def unit(self, window: Window) -> CalendarUnit | None:
        """Return the unit of the time axis of a period; None for no bins.

        Raises:
            InvalidQuery: the period has too many bins of this unit.
        """
        name = CalendarUnit.DAY.value if self.chart == DAYS else self.given.get("bin", AUTOMATIC)
        length = window.stop - window.start
        if name == AUTOMATIC:
            return next((unit for unit, longest in _AUTOMATIC.items() if length <= longest), CalendarUnit.YEAR)
        if name == NO_BIN:
            return None
        unit = CalendarUnit(name)
        if length > MOST_BINS * _LEAST[unit]:
            raise InvalidQuery(f"more than {MOST_BINS} {name}s: choose longer bins or a shorter period", "bin")
        return unit

    def where(self, zone: tzinfo = UTC) -> Condition:
        """Return the condition of the filters of the API; times without a zone are in ``zone``.

        Raises:
            InvalidQuery: the API would refuse the filters too.
        """
        return read_where(self.query(zone)) if self.conditions else AllOf()

    def query(self, zone: tzinfo) -> str:
        """Return the filters of the API as a query string, in which every time has a zone."""
        return "&".join([_with_zone(piece, zone) for piece in self.conditions])

    def question(self, now: datetime, keys: LabelKeys) -> Question:
        """Return the question that the view answers, in the time zone of ``now``.

        Raises:
            InvalidQuery: the view is of open records, which have no usage yet.
        """
        if any(_key(piece) == "open" and value_of(piece) == "true" for piece in self.conditions):
            raise InvalidQuery("usage is of finished jobs: remove the filter 'open', or list the open jobs", "open")
        by, then, *_ = (*self.groups, None, None)
        window = self.window(now)
        return Question(
            (self.measure,),
            by,
            self.unit(window),
            window,
            self.filters,
            self.score,
            keys,
            zone_name(now),
            now=now,
            among=self.where(now.tzinfo or UTC),
            then=then,
        )

    def url(self, path: str, **changes: str | None) -> str:
        """Return the URL of this view on a page, with some parameters changed, or removed if None.

        The page gets all filters and the period, and those of the other parameters that it takes.
        """
        taken = {*FILTERS, *_PERIOD, *TAKES[path.partition(".")[0]]}
        merged = {**self.given, **changes}
        pairs = urlencode([(name, value) for name, value in merged.items() if value is not None and name in taken])
        query = "&".join([*([pairs] if pairs else []), *self.conditions])
        return f"{path}?{query}" if query else path

    def usage(self, **changes: str | None) -> str:
        """Return the URL of the usage of the records that a list with this view has."""
        dated = {"period", "from", "to"} & self.given.keys()
        return self.url(USAGE, **({} if dated else {"period": ALL_TIME}), **changes)

    def jobs(self, **changes: str | None) -> str:
        """Return the URL of the list of the records that count in this view."""
        return self.url(JOBS, **{"period": None if self.period == ALL_TIME else self.period or None, **changes})

    def narrow(self, name: str, value: str | None, keys: LabelKeys) -> "View":
        """Return the view with one more filter by a label; None selects records without it."""
        if name in FILTERS and value and self.given.get(name, value) == value:
            return replace(self, given={**self.given, name: value})
        key = quote(keys.key(name), safe="")
        added = f"meta[{key}][absent]=true" if value is None else f"meta[{key}][c][]={quote_plus(value)}"
        return replace(self, conditions=tuple(dict.fromkeys([*self.conditions, added])))

    def of_row(self, question: Question, labels: Sequence[str | None]) -> "View | None":
        """Return the view of the records of one row; None if no filter selects them."""
        view = self
        for name, label in zip(question.groups, labels, strict=True):
            if name != SIZE:
                view = view.narrow(name, label, question.keys)
                continue
            if label is None:
                return None
            least, most = limits_of_size(label)
            added = [f"component[{CORES}][gte]={least}"] if least > 1 else []  # jobs without cores are of size 1
            added += [] if most is None else [f"component[{CORES}][lte]={most}"]
            others = [each for each in view.conditions if each not in added]
            if any(_key(each).startswith(f"component[{CORES}]") for each in others):
                return None  # a second limit of a kind would be refused
            view = replace(view, conditions=(*others, *added))
        return view

    def link_of_row(self, question: Question, labels: Sequence[str | None], **changes: str | None) -> str | None:
        """Return the URL of the usage of one row, or of its jobs if they have one size; None if there is none."""
        view = self.of_row(question, labels) if labels else None
        if view is None or SIZE not in question.groups:
            return None if view is None else view.url(USAGE, **changes)
        return view.jobs() if self.source == SOURCES[0] else None

    def drop_filters(self) -> "View":
        return View({name: value for name, value in self.given.items() if name not in FILTERS}, span=self.span)


def read_view(query: str, path: str = USAGE) -> View:
    """Read the query string of a view on a page.

    Raises:
        InvalidQuery: the page does not take a parameter, or a parameter has an invalid value.
    """
    pieces = pieces_of(query)
    taken = {*FILTERS, *_PERIOD, *TAKES[path]}
    if len(pieces) > _MOST_PIECES:
        raise InvalidQuery(f"more than {_MOST_PIECES} parameters")
    single: dict[str, str] = {}
    conditions: list[str] = []
    for piece in pieces:
        name, value = name_of(piece), value_of(piece)
        if len(value) > _LONGEST:
            raise InvalidQuery(f"'{name[:60]}' is too long", name[:60])
        if name in API_FILTERS:
            if value:  # as links have it: lists without indices, so that one more value can be added
                ((parsed, *inner),) = [parameter.path for parameter in parse_query_string(piece)]
                is_list = parsed == "meta" and len(inner) in {2, 3} and inner[1] != "absent"
                keys = [*inner[:2], ""] if is_list else inner
                brackets = "".join([f"[{quote(each, safe='')}]" for each in keys])
                conditions.append(f"{parsed}{brackets}={quote_plus(value)}")
        elif name not in taken:
            of_others = any(name in others for others in TAKES.values())
            text = f"this page takes no '{name}'" if of_others else f"there is no parameter '{name[:60]}'"
            raise InvalidQuery(text, name[:60])
        elif path != JOBS or name not in TAKES[JOBS]:  # the list reads its own
            if name in single:
                raise InvalidQuery(f"give '{name}' only once", name)
            single[name] = value
    single = {name: value for name, value in single.items() if value}
    if "period" in single and {"from", "to"} & single.keys():
        raise InvalidQuery("give 'period', or 'from' and 'to', not both", "period")
    _check(single)
    view = View(single, tuple(conditions))
    view.where()
    return view


def _check(single: Mapping[str, str]) -> None:
    offered: Mapping[str, Sequence[str]] = {
        "measure": tuple(MEASURES),
        "period": (*PERIODS, ALL_TIME),
        "chart": CHARTS,
        SOURCE: SOURCES,
        "bin": (AUTOMATIC, NO_BIN, *(unit.value for unit in CalendarUnit)),
    }
    for name, values in offered.items():
        if single.get(name, values[0]) not in values:
            raise InvalidQuery(f"'{name}' must be one of {', '.join(values)}", name)
    for name in ("score", "by", "then", *FILTERS):
        if name in single:
            with about(name):
                check_name(single[name].removeprefix("meta:"))
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

OUTCOMES: Final = tuple([each.value for each in JobOutcome])

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

_SUBJECTS: Final = {
    "record_id": "Record",
    "start_time": "Start",
    "stop_time": "Stop",
    "runtime": "Runtime",
    "implausible": "Implausible CPU time",
    **{name: name.capitalize() for name in FILTERS},
}
_TIMES: Final = ("start_time", "stop_time")
_FIELDS: Final = frozenset(
    {"filters", "label_key", "label_is", "label_value", "component_name", "component_is", "component_amount"}
)
_LATEST_FIRST: Final = f"sort_by[desc]={SortField.START.value}"
_SHOWN_ELSEWHERE: Final = frozenset({"sort_by", "limit", "cursor", "include", "open"})


class Chip(msgspec.Struct, frozen=True):
    """A filter above the figures.

    Args:
        subject: the label, the component, or the parameter.
        operator: the comparison; empty if there is none.
        value: the value that the subject is compared with, with its unit.
        without: the query string without this filter.
    """

    subject: str
    operator: str
    value: str
    without: str

    @property
    def text(self) -> str:
        """The filter as people read it."""
        subject = _SUBJECTS.get(self.subject, self.subject)
        operator = OPERATORS.get(self.operator, "")
        return " ".join(filter(None, [subject, operator, "" if self.operator == "absent" else self.value]))


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
    """Return the query string of the view that a submitted form requests.

    Dates count instead of the period, whose field has no other choice if the form was of a named period.

    Raises:
        InvalidQuery: a filter is incomplete.
    """
    fields = {name: value_of(piece) for piece in pieces if (name := name_of(piece)) in _FIELDS}
    kept = [f"{_key(piece)}={piece.partition('=')[2]}" for piece in pieces if name_of(piece) not in _FIELDS]
    others = [piece for piece in pieces_of(fields.get("filters", "")) if name_of(piece) not in _FIELDS]
    kept = [piece for piece in (*kept, *others) if piece.partition("=")[2]]
    if {"from", "to"} & set(map(name_of, kept)):
        kept = [piece for piece in kept if name_of(piece) != "period"]
    for added in _read_more_filters(fields):
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
    """Return the filters of a view, for display above it."""
    found: list[Chip] = []
    for at, piece in enumerate(pieces):
        name, value = name_of(piece), value_of(piece)
        if not value or name not in {*FILTERS, *OF_API} - _SHOWN_ELSEWHERE:
            continue
        without = "&".join(each for other, each in enumerate(pieces) if other != at and name_of(each) != "cursor")
        if name in FILTERS:
            found.append(Chip(name, "c", value, without))
            continue
        ((_, *inner),) = [parameter.path for parameter in parse_query_string(piece)]
        *subject, operator = [each for each in inner if each][:2] or [""]
        quantity = QUANTITIES.get(subject[0]) if name == "component" and subject else None
        unit = "s" if name == "runtime" else quantity.unit if quantity else ""
        found.append(Chip(subject[0] if subject else name, operator, f"{value} {unit}".rstrip(), without))
    return found


def form_of(pieces: Sequence[str], zone: tzinfo) -> Mapping[str, object]:
    """Return what the filters of a form show: their values, and ``filters`` for those without a field of their own."""
    ranges = {key: _local(key, value_of(piece), zone) for piece in pieces if (key := _key(piece)) in RANGES}
    others = [
        piece
        for piece in pieces
        if (name := name_of(piece)) == "sort_by" or (name in OF_API - _SHOWN_ELSEWHERE and _key(piece) not in RANGES)
    ]
    return {
        "chips": chips(pieces),
        "form": {**dict.fromkeys(RANGES, ""), **ranges, "filters": "&".join(others)},
        "open": next((value_of(piece) for piece in pieces if name_of(piece) == "open"), ""),
        "ranges": RANGES,
        "outcomes": OUTCOMES,
        "operators": OPERATORS,
        "comparisons": COMPARISONS,
        "label_operators": LABEL_OPERATORS,
    }


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


def _read_more_filters(fields: Mapping[str, str]) -> Iterator[str]:
    """Yield the filters by a label and by a component that a form adds."""
    key, value, operator = (fields.get(f"label_{name}", "") for name in ("key", "value", "is"))
    operator = operator or LABEL_OPERATORS[0]
    if key or value:
        if operator not in LABEL_OPERATORS:
            raise InvalidQuery(f"'label_is' must be one of {', '.join(LABEL_OPERATORS)}", "label_is")
        if not key or (not value and operator != "absent"):
            missing = "label_value" if key else "label_key"
            raise InvalidQuery(f"'{missing}' is missing: a filter by a label needs a name and a value", missing)
        end = "[absent]=true" if operator == "absent" else f"[{operator}][]={quote_plus(value)}"
        yield f"meta[{quote(key, safe='')}]{end}"

    name, amount, comparison = (fields.get(f"component_{each}", "") for each in ("name", "amount", "is"))
    comparison = comparison or COMPARISONS[0]
    if name or amount:
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
