"""The pages ``/`` and ``/my``: overviews of the site and of the visitor's own jobs.

``/`` compares this month with the last one and shows the largest groups and users and the daemon's health. ``/my``
shows how well the visitor's jobs used what they requested.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, timedelta
from fractions import Fraction
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.reporting import MEASURES, Figure, Question, Report
from auditord.reporting.measures import CORES, CPU_TIME, MEMORY, MIB_PER_GIB, PEAK, UNKNOWN, percent
from auditord.reporting.periods import PERIODS, month_of
from auditord.reporting.report import Cell, explain_empty, has_implausible, remarks, zero
from auditord.web.api.status import StatusHandlers
from auditord.web.page.figures import Charts, Figures, compare, describe_partial_bins
from auditord.web.page.jobs import job_row
from auditord.web.page.query_string import (
    ALL_TIME,
    USAGE,
    View,
    form_of,
    is_sent_form,
    pieces_of,
    read_view,
    tidy,
)
from auditord.web.page.query_string import MY as MY_PATH
from auditord.web.page.rendering import Renderer, Visitors, may
from auditord.web.page.suggestions import Suggestions
from auditord.web.record_query import InvalidQuery
from auditord.web.requests import principal_of, read_target
from auditord_hookspecs import Permission, Record
from auditord_hookspecs.aggregates import CalendarUnit, amount_of, compute_held_amount, compute_held_time
from auditord_hookspecs.query import Order, RecordQuery, SortField, Window

PATH: Final = "/"

_SUMMED: Final = ("core-hours", "jobs", "gpu-hours")
_TOP: Final = 5
_THIS_MONTH: Final = View({"period": "this-month"})


class OverviewPage(msgspec.Struct, frozen=True):
    """The page ``/``."""

    figures: Figures
    renderer: Renderer
    visitors: Visitors
    status: StatusHandlers
    charts: Charts

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show the page, which has no filters and one period."""
        if read_target(request.raw_path).query:
            raise InvalidQuery("the overview has neither filters nor another period: see Usage")
        now = self.figures.now()
        this, last, recent = month_of(now), month_of(now, 1), PERIODS["30-days"](now)
        ask = partial(self._ask, request)
        by_day = await ask(("core-hours",), "group", recent, CalendarUnit.DAY)
        both = Window(last.start, this.stop)
        months = await ask(_SUMMED, None, both, CalendarUnit.DAY)
        users, groups = [await ask(("core-hours", "jobs"), name, this) for name in ("user", "group")]
        efficiency = await ask(("cpu-efficiency",), None, both, CalendarUnit.MONTH)
        largest = [row.label for row in groups.rows[:_TOP]]
        named = tuple([each for each in largest if each is not None])
        chosen = named if named and len(named) == len(largest) else None
        of_groups = await ask(("cpu-efficiency",), "group", this, labels=chosen)
        whole = await self.figures.whole(request, users)
        elapsed = now.date() - this.start.date()
        health = await self.status.health_report() if may(request, Permission.METRICS) else None
        navigation = self.visitors.navigation(request, PATH)

        def make() -> web.Response:
            of_cpus = efficiency.question.measures[0]
            values = {
                "month": f"{this.start:%B %Y}",
                "cards": [
                    *_cards(months, this, last, elapsed),
                    {
                        "title": of_cpus.title,
                        "unit": of_cpus.unit,
                        "value": _ratio(efficiency.totals.get(this.start.date())).format(of_cpus.unit),
                        "last": _ratio(efficiency.totals.get(last.start.date())).format(of_cpus.unit),
                        "change": None,
                        "note": "of jobs with a known CPU time",
                    },
                ],
                "chart": self.charts.bars(
                    "Core hours per day, last 30 days", by_day, View(), self.figures.axis(by_day)
                ),
                "legend": self.charts.rows(by_day),
                "implausible": has_implausible(of_groups),
                "remarks": remarks(months.question, months.totals.values()),
                "groups": _top(groups, "group", whole, {row.label: row.total for row in of_groups.rows}),
                "users": _top(users, "user", whole),
                "health": health,
                "share": "Share %" if whole is users.total[0] else "Share of all %",
                "view": _THIS_MONTH,
            }
            return self.renderer.answer("overview.html", values, navigation)

        return await self.figures.places.run(make)

    async def _ask(
        self,
        request: web.BaseRequest,
        names: Sequence[str],
        by: str | None,
        window: Window,
        unit: CalendarUnit | None = None,
        *,
        labels: tuple[str, ...] | None = None,
    ) -> Report:
        measures, keys = tuple(MEASURES[name] for name in names), self.figures.keys
        question = Question(measures, by, unit, window, keys=keys, zone=self.figures.zone, labels=labels)
        return await self.figures.report(request, question)


def _cards(report: Report, this: Window, last: Window, elapsed: timedelta) -> list[dict[str, Any]]:
    present = _within(report, this.start.date(), this.stop.date())
    whole = _within(report, last.start.date(), last.stop.date())
    as_far = _within(report, last.start.date(), min(last.start.date() + elapsed + timedelta(days=1), last.stop.date()))
    cards: list[dict[str, Any]] = []  # Any: read by the template
    for at, measure in enumerate(report.question.measures):
        if measure.name == "gpu-hours" and not (present[at].value or whole[at].value):
            continue
        cards.append(
            {
                "title": measure.title,
                "unit": measure.unit,
                "value": present[at].format(measure.unit),
                "last": whole[at].format(measure.unit),
                "note": None,
                "change": present[at].format_change(as_far[at]),
            }
        )
    return cards


def _within(report: Report, first: date, end: date) -> Cell:
    total = zero(report.question.measures)
    for begin, cell in report.totals.items():
        if begin is not None and first <= begin < end:
            total = tuple(one + other for one, other in zip(total, cell, strict=True))
    return total


def _top(
    report: Report, name: str, whole: Figure | None, efficiency: Mapping[str | None, Cell | None] | None = None
) -> list[dict[str, str | None]]:
    """Return the largest rows, with their efficiencies unless ``efficiency`` is None."""
    total, found = None if whole is None else whole.value, list[dict[str, str | None]]()
    for row in report.rows[:_TOP]:
        if value := row.total[0].value:
            found.append(
                {
                    "label": row.label,
                    "link": _THIS_MONTH.narrow(name, row.label, report.question.keys).url(USAGE),
                    "core_hours": row.total[0].format("core h"),
                    "jobs": row.total[1].format(),
                    "efficiency": None if efficiency is None else _ratio(efficiency.get(row.label)).format("%"),
                    "share": None if whole is None else percent(100 * value / total if total else None),
                }
            )
    return found


def _ratio(cell: Cell | None) -> Figure:
    """Return the figure of a cell; without a cell, a figure without a value."""
    return UNKNOWN if cell is None else cell[0]


LOOKED_AT: Final = 500
"""The number of latest jobs that are searched for the most unused core hours."""

_SHOWN: Final = ("core-hours", "jobs", "cpu-efficiency", "idle-core-hours")
_WORST: Final = 10
_HOUR: Final = 3_600


class MyPage(msgspec.Struct, frozen=True):
    """The page ``/my``."""

    figures: Figures
    renderer: Renderer
    visitors: Visitors
    charts: Charts
    suggestions: Suggestions

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show the page; without a user name, say why it is empty."""
        principal, navigation = principal_of(request), self.visitors.navigation(request, MY_PATH)
        pieces = pieces_of(read_target(request.raw_path).query)
        if is_sent_form(pieces):
            return self.renderer.redirect(f"{MY_PATH}?{tidy(pieces)}")
        asked = read_view("&".join(pieces), MY_PATH)
        if principal is None or principal.user is None:
            return self.renderer.answer("my.html", {"user": None, "known": principal is not None}, navigation)
        now = self.figures.now(asked.zone)
        view = await self.figures.settle(request, replace(asked, given={**asked.given, "user": principal.user}), now)
        question = replace(
            self.figures.question(view, now),
            by=None,
            measures=tuple(MEASURES[name] for name in _SHOWN),
        )
        report = await self.figures.report(request, question)
        former = await self.figures.former(request, question, now) if view.span is None else ()
        latest = RecordQuery(question.where(), Order(SortField.STOP, descending=True), LOOKED_AT)
        records = await self.figures.read(request, latest)
        user, offered = principal.user, await self.suggestions.offer(request)

        def make() -> web.Response:
            axis = self.figures.axis(report)
            values = {
                **form_of(pieces, now.tzinfo or UTC),
                "user": user,
                "offered": offered,
                "view": view,
                "zone": question.zone,
                "periods": (*PERIODS, ALL_TIME),
                "cards": [
                    {
                        "title": measure.title,
                        "unit": measure.unit,
                        "value": report.total[at].format(measure.unit),
                        "compared": compare(report, former, at),
                    }
                    for at, measure in enumerate(question.measures)
                ],
                "chart": None if question.bin is None else self.charts.bars("My core hours", report, view, axis),
                "partial": describe_partial_bins(axis),
                "empty": explain_empty(report, is_filtered=asked.is_filtered),
                "worst": self._worst(records),
                "looked_at": LOOKED_AT,
                "many": len(records) == LOOKED_AT,
            }
            return self.renderer.answer("my.html", values, navigation)

        return await self.figures.places.run(make)

    def _worst(self, records: Sequence[Record]) -> list[dict[str, Any]]:  # Any: read by the template
        """Return the jobs with the most unused core hours."""
        found: list[tuple[Fraction, Record]] = []
        for record in records:
            core_seconds, used = compute_held_time(record, CORES), amount_of(record, CPU_TIME)
            if core_seconds is not None and used is not None and core_seconds > used:
                found.append((Fraction(core_seconds - used, _HOUR), record))
        found.sort(key=lambda each: each[0], reverse=True)
        rows: list[dict[str, Any]] = []  # Any: as above
        for idle, record in found[:_WORST]:
            asked, peak = compute_held_amount(record, MEMORY), amount_of(record, PEAK)
            memory = (
                UNKNOWN if peak is None else Figure(Fraction(peak, 1 << 30)),
                UNKNOWN if asked is None else Figure(Fraction(asked, MIB_PER_GIB)),
            )
            rows.append(
                {
                    **job_row(record, self.figures.keys),
                    "idle": Figure(idle).format("core h"),
                    "memory": " / ".join([each.format("GiB") for each in memory]),
                }
            )
        return rows
