"""The page ``/``: the month so far beside the last one, the largest groups and users, and the daemon's health."""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final

from aiohttp import web

from auditord.reporting import MEASURES, Question, Report
from auditord.reporting.periods import PERIODS, month_of
from auditord.reporting.report import Cell, zero
from auditord.web.api.status import StatusHandlers
from auditord.web.page.asking import View
from auditord.web.page.charts import Axis, bars
from auditord.web.page.figures import Figures, axis, change
from auditord.web.page.numbers import begin_of_bin, percent, shown, signed
from auditord.web.page.rendering import Renderer
from auditord.web.page.usage_charts import Charts
from auditord.web.page.visitors import Visitors, may
from auditord_hookspecs import Permission
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import Window

PATH: Final = "/"

_SHOWN: Final = ("core-hours", "jobs", "gpu-hours", "cpu-efficiency")
_TOP: Final = 5


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """The first page.

    Args:
        figures: answers questions.
        renderer: makes pages.
        visitors: knows who sees what.
        status: of the daemon.
        charts: draws reports.
    """

    figures: Figures
    renderer: Renderer
    visitors: Visitors
    status: StatusHandlers
    charts: Charts

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """The page."""
        now = self.figures.now()
        this, last = month_of(now), month_of(now, 1)
        measures = tuple(MEASURES[name] for name in _SHOWN)
        both = Window(last.start, this.stop)
        by_day = await self.figures.report(
            request, Question(measures, "group", CalendarUnit.DAY, both, keys=self.figures.keys, zone=self.figures.zone)
        )
        users = await self.figures.report(request, Question(measures, "user", None, this, keys=self.figures.keys))
        elapsed = now.date() - this.start.date()
        health = await self.status.health_report() if may(request, Permission.METRICS) else None
        return self.renderer.answer(
            "overview.html",
            {
                "month": f"{this.start:%B %Y}",
                "cards": _cards(by_day, this, last, elapsed),
                "chart": self._chart(by_day, PERIODS["30-days"](now)),
                "legend": self.charts.rows(by_day),
                "groups": _top(by_day, this),
                "users": [_row(row.label, row.total, users.total) for row in users.rows[:_TOP]],
                "health": health,
                "view": View({"period": "this-month"}),
            },
            self.visitors.navigation(request, PATH),
        )

    def _chart(self, report: Report, window: Window) -> str:
        bins = [begin for begin in axis(report, self.figures.now()) if begin >= window.start.date()]
        labels = [begin_of_bin(begin, CalendarUnit.DAY) for begin in bins]
        return bars(self.renderer.text("overview.chart"), Axis(labels), self.charts.series(report, View(), bins))


def _cards(report: Report, this: Window, last: Window, elapsed: timedelta) -> list[dict[str, Any]]:  # Any: shown
    present = _within(report, this.start.date(), this.stop.date())
    whole = _within(report, last.start.date(), last.stop.date())
    as_far = _within(report, last.start.date(), min(last.start.date() + elapsed + timedelta(days=1), last.stop.date()))
    cards: list[dict[str, Any]] = []  # Any: see above
    for at, measure in enumerate(report.question.measures):
        if measure.name == "gpu-hours" and not (present[at].value or whole[at].value):
            continue
        difference = None if measure.ratio else change(present[at], as_far[at])
        cards.append(
            {
                "title": measure.title,
                "unit": measure.unit,
                "value": shown(present[at], measure.unit),
                "last": shown(whole[at], measure.unit),
                "change": signed(difference),
            }
        )
    return cards


def _within(report: Report, first: date, end: date) -> Cell:
    total = zero(report.question.measures)
    for begin, cell in report.totals.items():
        if begin is not None and first <= begin < end:
            total = tuple(one + other for one, other in zip(total, cell, strict=True))
    return total


def _top(report: Report, window: Window) -> list[dict[str, str | None]]:
    """The largest groups of the window, which is a part of the report's."""
    first, end = window.start.date(), window.stop.date()
    total = _within(report, first, end)
    found: list[tuple[str | None, Cell]] = []
    for row in report.rows:
        sums = zero(report.question.measures)
        for begin, cell in row.cells.items():
            if begin is not None and first <= begin < end:
                sums = tuple(one + other for one, other in zip(sums, cell, strict=True))
        found.append((row.label, sums))
    found.sort(key=lambda each: each[1][0].value or 0, reverse=True)
    return [_row(label, cell, total) for label, cell in found[:_TOP] if cell[0].value]


def _row(label: str | None, cell: Cell, total: Cell) -> dict[str, str | None]:
    share = 100 * (cell[0].value or 0) / total[0].value if total[0].value else None
    return {
        "label": label,
        "core_hours": shown(cell[0], "core h"),
        "jobs": shown(cell[1]),
        "efficiency": shown(cell[3], "%"),
        "share": percent(share),
    }
