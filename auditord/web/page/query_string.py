"""The query string of the page: measure, group, period and filters, so that every view is its URL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from urllib.parse import parse_qs, urlencode

from auditord.reporting import MEASURES, LabelKeys, Measure, Question
from auditord.reporting.measures import DEFAULT_SCORE
from auditord.reporting.periods import PERIODS, checked_day
from auditord.web.api.lake_source import SOURCE, SOURCES
from auditord.web.record_query import InvalidQuery
from auditord_hookspecs import InvalidRecord
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import Window
from auditord_hookspecs.records import check_name
from auditord_hookspecs.zones import zone_name, zone_named

FILTERS: Final = ("site", "group", "user")
GROUPS: Final = ("group", "site", "user", "size", "none")
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
"""The longest period that is shown by each unit unless another one is asked for; longer ones are shown by year."""
LABEL: Final = "label"
"""The parameter of a label that records must have, ``key=value``."""

_KNOWN: Final = frozenset(
    {"measure", "by", "bin", "period", "from", "to", "score", "top", "chart", "timezone", SOURCE, LABEL, *FILTERS}
)
_MOST_BINS: Final = 800
_LEAST: Final = {
    CalendarUnit.DAY: timedelta(days=1),
    CalendarUnit.WEEK: timedelta(days=7),
    CalendarUnit.MONTH: timedelta(days=28),
    CalendarUnit.QUARTER: timedelta(days=90),
    CalendarUnit.YEAR: timedelta(days=365),
}
"""The shortest length of each unit."""
MOST_ROWS: Final = 1_000
"""Of a table."""


@dataclass(frozen=True, slots=True)
class View:
    """A report that is looked at.

    Args:
        given: parameters by name, as the URL has them; those that are not there have their defaults.
        labels: pairs of a meta key and a value that records must have.
    """

    given: Mapping[str, str] = field(default_factory=dict[str, str])
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def measure(self) -> Measure:
        """The measure that is shown."""
        return MEASURES[self.given.get("measure", "core-hours")]

    @property
    def by(self) -> str:
        """The label that rows are about; ``none`` for one row."""
        return self.given.get("by", "group")

    @property
    def score(self) -> str:
        """The benchmark of weighted hours."""
        return self.given.get("score", DEFAULT_SCORE)

    @property
    def period(self) -> str:
        """The name of the period; empty if its ends are given."""
        free = "from" in self.given or "to" in self.given
        return "" if free else self.given.get("period", _DEFAULT_PERIOD)

    @property
    def filters(self) -> tuple[tuple[str, str], ...]:
        """The names and values that records must have."""
        return (*((name, self.given[name]) for name in FILTERS if name in self.given), *self.labels)

    @property
    def chart(self) -> str:
        """The kind of chart."""
        return self.given.get("chart", AUTOMATIC)

    @property
    def source(self) -> str:
        """The records that it is of: the record store's, or the lake's."""
        return self.given.get(SOURCE, SOURCES[0])

    @property
    def zone(self) -> str | None:
        """The time zone that the view asks for; None for that of the page."""
        return self.given.get("timezone")

    def window(self, now: datetime) -> Window:
        """The period, half-open, in the time zone of the present.

        Raises:
            InvalidQuery: it ends before it begins.
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
        """The unit of the time axis.

        Raises:
            InvalidQuery: that would be too many.
        """
        name, window = self.given.get("bin", AUTOMATIC), self.window(now)
        name = CalendarUnit.DAY.value if self.chart == DAYS else name
        length = window.stop - window.start
        if name == AUTOMATIC:
            return next((unit for unit, longest in _AUTOMATIC.items() if length <= longest), CalendarUnit.YEAR)
        if name == NO_BIN:
            return None
        unit = CalendarUnit(name)
        if length > _MOST_BINS * _LEAST[unit]:
            raise InvalidQuery(f"more than {_MOST_BINS} {name}s: choose longer ones, or a shorter period", "bin")
        return unit

    def question(self, now: datetime, keys: LabelKeys) -> Question:
        """The question that the view is the answer to, in the time zone of the present."""
        by, zone = None if self.by == "none" else self.by, zone_name(now)
        return Question(
            (self.measure,), by, self.unit(now), self.window(now), self.filters, self.score, keys, zone, now=now
        )

    def url(self, path: str, **changes: str | None) -> str:
        """The URL of the same view with some parameters changed, or with None left out."""
        merged = {**self.given, **changes}
        pairs = [(name, value) for name, value in merged.items() if value is not None]
        pairs += [(LABEL, f"{key}={value}") for key, value in self.labels]
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def narrowed(self, path: str, name: str, value: str) -> str:
        """The URL of the same view for records with one more label."""
        if name in FILTERS:
            return self.url(path, **{name: value})
        return replace(self, labels=(*self.labels, (name, value))).url(path)


def read_view(query: str) -> View:
    """Read the query string of a view.

    Raises:
        InvalidQuery: a parameter is unknown or has a value that is not offered.
    """
    given = parse_qs(query, keep_blank_values=True, max_num_fields=100)
    for name, values in given.items():
        if name not in _KNOWN:
            raise InvalidQuery(f"there is no parameter '{name[:60]}'", name[:60])
        if name != LABEL and len(values) > 1:
            raise InvalidQuery(f"'{name}' is given once", name)
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
            raise InvalidQuery(f"'{name}' is one of {', '.join(values)}", name)
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
        raise InvalidQuery(f"'top' is a number of rows, at most {MOST_ROWS}", "top")


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidQuery("'label' is written key=value", LABEL)
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
        raise InvalidQuery(f"'{name}' is a day, such as 2026-01-31", name) from error
    try:
        return checked_day(day)
    except ValueError as error:
        raise InvalidQuery(f"'{name}': {error}", name) from error
