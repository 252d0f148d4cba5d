"""A requested report and its query to the store, pledges, and named calendar periods.

A record counts in the period in which it stopped, with its whole runtime, as in the messages to APEL. So each record
counts once, and the sums of days, months and sites add up.

A pledge is capacity that was promised to a site or group: a constant number of cores, or of cores times score (for
WLCG: HEPscore23), from one day to another. In a period, it amounts to power times hours.

Periods are in the time zone of the instant for which they are computed. Their days begin at midnight by the zone's
clocks, so a day may last 23 or 25 hours.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Final

import msgspec

from auditord.reporting.measures import CORES, CPU_TIME, DEFAULT_SCORE, Measure
from auditord_hookspecs.aggregates import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    ComponentAmount,
    ComponentPresent,
    ComponentUsage,
    Dimension,
    MetaValue,
)
from auditord_hookspecs.errors import AuditordError
from auditord_hookspecs.query import AllOf, Condition, MetaAbsent, MetaContains, MetaContainsAny, Window, stopped_within
from auditord_hookspecs.zones import UTC_NAME

SIZE: Final = "size"
"""The dimension of job sizes: the number of a job's cores, in classes."""

_META: Final = "meta:"


class UnknownIntensity(AuditordError):
    """A report needs the CO2 per kWh, which is not configured.

    Remedy:
        set ui.co2_per_kwh, or use --co2-per-kwh.
    """


class LabelKeys(msgspec.Struct, frozen=True):
    """The meta keys behind the names ``site``, ``group`` and ``user``."""

    site: str = "site_id"
    group: str = "group_id"
    user: str = "user_id"

    def key(self, name: str) -> str:
        """Return the meta key of a name. Other names are keys themselves, and ``meta:site`` is the key ``site``."""
        if name.startswith(_META):
            return name.removeprefix(_META)
        return {"site": self.site, "group": self.group, "user": self.user}.get(name, name)


class Question(msgspec.Struct, frozen=True):
    """A requested report.

    Args:
        measures: the measures of each cell, at least one.
        by: ``site``, ``group``, ``user``, ``size`` or a meta key; None for all records together.
        bin: the unit of the time axis; None for the whole period.
        window: selects the records that stopped in it; None for all.
        filters: pairs of a name as for ``by`` and the required value; an empty value selects records without the key.
        score: the benchmark by which core hours are weighted.
        keys: the meta keys behind the names.
        zone: the time zone of the bins, which are complete if the window consists of its days.
        co2_per_kwh: the CO2 that the grid emits per kWh, in kg; None if unknown.
        labels: the requested rows (the answer may have others as well); None for all rows.
        now: the current time, if unfinished bins should be marked as partial.
    """

    measures: tuple[Measure, ...]
    by: str | None = None
    bin: CalendarUnit | None = None
    window: Window | None = None
    filters: tuple[tuple[str, str], ...] = ()
    score: str = DEFAULT_SCORE
    keys: LabelKeys = msgspec.field(default_factory=LabelKeys)
    zone: str = UTC_NAME
    co2_per_kwh: Fraction | None = None
    labels: tuple[str, ...] | None = None
    now: datetime | None = None

    @property
    def needs_cpu_time(self) -> bool:
        """True if records with and without a CPU time must be summed separately."""
        return any(measure.needs_cpu_time for measure in self.measures)

    def where(self) -> Condition:
        """Return the condition on the records that count."""
        filters = [(self.keys.key(name), value) for name, value in self.filters]
        conditions: list[Condition] = [MetaContains(key, value) if value else MetaAbsent(key) for key, value in filters]
        if self.window is not None:
            conditions += stopped_within(self.window).conditions
        if self.labels is not None and self.by is not None:
            conditions.append(MetaContainsAny(self.keys.key(self.by), self.labels))
        return AllOf(tuple(conditions))

    def query(self) -> AggregateQuery:
        """Return the query for the store; its dimensions are the bin, the group and the presence of a CPU time.

        Raises:
            UnknownIntensity: a measure needs the CO2 of a kWh, which is not configured.
        """
        if self.co2_per_kwh is None and any(measure.needs_intensity for measure in self.measures):
            raise UnknownIntensity("the CO2 per kWh is unknown: configure ui.co2_per_kwh, or use --co2-per-kwh (in kg)")
        dimensions: list[Dimension] = []
        if self.bin is not None:
            dimensions.append(CalendarPeriod(self.bin, zone=self.zone))
        if self.by is not None:
            dimensions.append(ComponentAmount(CORES) if self.by == SIZE else MetaValue(self.keys.key(self.by)))
        if self.needs_cpu_time:
            dimensions.append(ComponentPresent(CPU_TIME))
        return AggregateQuery(self.where(), tuple(dimensions), self._usage())

    def _usage(self) -> tuple[ComponentUsage, ...]:
        wanted: dict[str, ComponentUsage] = {}
        for measure in self.measures:
            for usage in measure.usage(self.score):
                known = wanted.get(usage.component)
                wanted[usage.component] = usage if known is None or usage.scores else known
        return tuple(wanted.values())


_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_SECONDS_PER_HOUR: Final = 3_600


class Scope(msgspec.Struct, frozen=True):
    """The beneficiaries of a pledge.

    Args:
        site: None for all sites.
        group: None for all groups at the site.
    """

    site: str | None
    group: str | None

    def includes(self, other: "Scope") -> bool:
        """Return whether all sites and groups of another scope belong to this one."""
        return self.site in {None, other.site} and self.group in {None, other.group}


class Pledge(msgspec.Struct, frozen=True):
    """A promised capacity.

    Args:
        scope: the site and the group that benefit.
        score: the benchmark that is the unit of ``power``; None for cores.
        power: the promised capacity.
        end: the day after the last day.
    """

    scope: Scope
    score: str | None
    power: Fraction
    first: date
    end: date

    def hours(self, window: Window) -> Fraction:
        """Return power times the hours of the window in which the pledge holds; days are those of the window's zone."""
        first, end = max(window.start.date(), self.first), min(window.stop.date() + _DAY, self.end)
        if end <= first:
            return Fraction(0)
        begin, stop = (datetime.combine(day, time.min, window.start.tzinfo).astimezone(UTC) for day in (first, end))
        covered = min(stop, window.stop.astimezone(UTC)) - max(begin, window.start.astimezone(UTC))
        return self.power * Fraction(max(covered // _SECOND, 0), _SECONDS_PER_HOUR)


def pledged(pledges: Sequence[Pledge], question: Question, window: Window) -> Fraction | None:
    """Return the sum of the pledges to a question's site and group in a window; None without a pledge.

    While a pledge holds, it includes the narrower ones: one to a whole site includes those to its groups.
    """
    filters: Mapping[str, str] = dict(question.filters)
    if question.measures[0].name not in {"core-hours", "score-hours"} or set(filters) - {"site", "group"}:
        return None
    score = question.score if question.measures[0].scored else None
    asked = Scope(filters.get("site"), filters.get("group"))
    found = [each for each in pledges if each.score == score and asked.includes(each.scope)]
    amounts = [amount for part in _between_changes(window, found) for amount in _widest(found, part)]
    return sum(amounts, Fraction(0)) if amounts else None


def _widest(pledges: Sequence[Pledge], window: Window) -> Sequence[Fraction]:
    """Return the amounts of the pledges that hold in a window and that no other such pledge includes."""
    amounts = [(pledge.scope, hours) for pledge in pledges if (hours := pledge.hours(window))]
    scopes = {scope for scope, _ in amounts}
    return [hours for scope, hours in amounts if not any(other.includes(scope) for other in scopes - {scope})]


def _between_changes(window: Window, pledges: Sequence[Pledge]) -> Sequence[Window]:
    """Cut a window at the days on which pledges begin or end."""
    days = {day for pledge in pledges for day in (pledge.first, pledge.end)}
    changes = sorted(datetime.combine(day, time.min, window.start.tzinfo) for day in days)
    limits = [window.start, *(each for each in changes if window.start < each < window.stop), window.stop]
    return [Window(start, stop) for start, stop in pairwise(limits)]


FIRST_DAY: Final = date(1900, 1, 1)
LAST_DAY: Final = date(2999, 12, 31)
"""The limits of periods that are given by their days, so that the periods before and after are in the calendar, too."""


def checked_day(moment: datetime) -> datetime:
    """Return the instant if a period may begin or end on its day.

    Raises:
        ValueError: it is too close to an end of the calendar.
    """
    if not FIRST_DAY <= moment.date() <= LAST_DAY:
        raise ValueError(f"{moment.date()} is not between {FIRST_DAY} and {LAST_DAY}")
    return moment


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def month_of(moment: datetime, back: int = 0) -> Window:
    """Return the calendar month of an instant, or an earlier one."""
    first = _midnight(moment).replace(day=1)
    for _ in range(back):
        first = (first - timedelta(days=1)).replace(day=1)
    return Window(first, (first + timedelta(days=32)).replace(day=1))


def days_until(moment: datetime, count: int) -> Window:
    """Return the window of ``count`` days that ends with the day of an instant."""
    tomorrow = _midnight(moment) + timedelta(days=1)
    return Window(tomorrow - timedelta(days=count), tomorrow)


def year_of(moment: datetime, back: int = 0) -> Window:
    """Return the calendar year of an instant, or an earlier one."""
    first = _midnight(moment).replace(year=moment.year - back, month=1, day=1)
    return Window(first, first.replace(year=first.year + 1))


def before(window: Window) -> Window:
    """Return the previous period of the same length; for whole months, of the same number of months."""
    if window.start.day == window.stop.day == 1 and window.start.time() == window.stop.time():
        months = (window.stop.year - window.start.year) * 12 + window.stop.month - window.start.month
        return Window(month_of(window.start, months).start, window.start)
    return Window(window.start - (window.stop - window.start), window.start)


def year_before(window: Window) -> Window:
    """Return the same days of the previous year."""
    return Window(_year_before(window.start), _year_before(window.stop))


def _year_before(moment: datetime) -> datetime:
    last_of_february = moment.month == 2 and moment.day == 29  # noqa: PLR2004 a day that few years have
    return moment.replace(year=moment.year - 1, day=28 if last_of_february else moment.day)


def as_far_as(window: Window, now: datetime, former: Window) -> Window:
    """Cut a former period down to the number of days that have begun in a period that may still be running."""
    elapsed = now.date() + timedelta(days=1) - window.start.date()
    if now >= window.stop or elapsed <= timedelta(0):
        return former
    return Window(former.start, min(former.start + elapsed, former.stop))


PERIODS: Final[Mapping[str, Callable[[datetime], Window]]] = {
    "7-days": lambda now: days_until(now, 7),
    "30-days": lambda now: days_until(now, 30),
    "90-days": lambda now: days_until(now, 90),
    "this-month": month_of,
    "last-month": lambda now: month_of(now, 1),
    "12-months": lambda now: Window(month_of(now, 11).start, month_of(now).stop),
    "this-year": year_of,
    "last-year": lambda now: year_of(now, 1),
}
"""The named periods, each computed for an instant."""
