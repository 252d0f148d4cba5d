"""The page ``/``: the month so far beside the last one, the largest groups and users, and the daemon's health."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from functools import partial
from typing import Any, Final

from aiohttp import web

from auditord.reporting import MEASURES, Figure, Question, Report
from auditord.reporting.periods import PERIODS, month_of
from auditord.reporting.report import Cell, has_implausible, zero
from auditord.web.api.status import StatusHandlers
from auditord.web.page.charts import Axis, bars
from auditord.web.page.drawing import Picture
from auditord.web.page.figures import Figures, change
from auditord.web.page.numbers import begin_of_bin, percent, shown, signed
from auditord.web.page.query_string import View
from auditord.web.page.rendering import Renderer
from auditord.web.page.usage_charts import Charts
from auditord.web.page.visitors import Visitors, may
from auditord_hookspecs import Permission
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import Window

PATH: Final = "/"

_SUMMED: Final = ("core-hours", "jobs", "gpu-hours")
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
        this, last, recent = month_of(now), month_of(now, 1), PERIODS["30-days"](now)
        ask = partial(self._ask, request)
        by_day = await ask(("core-hours",), "group", recent, CalendarUnit.DAY)
        both = Window(last.start, this.stop)
        whole = await ask(_SUMMED, None, both, CalendarUnit.DAY)
        users, groups = [await ask(("core-hours", "jobs"), name, this) for name in ("user", "group")]
        efficiency = await ask(("cpu-efficiency",), None, both, CalendarUnit.MONTH)
        largest = [row.label for row in groups.rows[:_TOP]]
        named = tuple([each for each in largest if each is not None])
        chosen = named if named and len(named) == len(largest) else None
        of_groups = await ask(("cpu-efficiency",), "group", this, labels=chosen)
        elapsed = now.date() - this.start.date()
        health = await self.status.health_report() if may(request, Permission.METRICS) else None
        return self.renderer.answer(
            "overview.html",
            {
                "month": f"{this.start:%B %Y}",
                "cards": [
                    *_cards(whole, this, last, elapsed),
                    self._efficiency(efficiency, this.start.date(), last.start.date()),
                ],
                "chart": self._chart(by_day),
                "legend": self.charts.rows(by_day),
                "implausible": has_implausible(of_groups),
                "groups": _top(groups, {row.label: row.total for row in of_groups.rows}),
                "users": _top(users, None),
                "health": health,
                "view": View({"period": "this-month"}),
            },
            self.visitors.navigation(request, PATH),
        )

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

    def _efficiency(self, report: Report, this: date, last: date) -> dict[str, Any]:  # Any: shown
        measure, note = report.question.measures[0], self.renderer.text("overview.known")
        value, before = (shown(_ratio(report.totals.get(month)), measure.unit) for month in (this, last))
        shared = {"last": before, "change": None, "note": note}
        return {"measure": measure.name, "unit": measure.unit, "value": value, **shared}

    def _chart(self, report: Report) -> Picture | None:
        bins = self.figures.axis(report)
        labels = [begin_of_bin(begin, CalendarUnit.DAY) for begin in bins]
        axis_of_days = Axis(labels, unit=report.question.measures[0].unit)
        return bars(self.renderer.text("overview.chart"), axis_of_days, self.charts.series(report, View(), bins))


def _cards(report: Report, this: Window, last: Window, elapsed: timedelta) -> list[dict[str, Any]]:  # Any: shown
    present = _within(report, this.start.date(), this.stop.date())
    whole = _within(report, last.start.date(), last.stop.date())
    as_far = _within(report, last.start.date(), min(last.start.date() + elapsed + timedelta(days=1), last.stop.date()))
    cards: list[dict[str, Any]] = []  # Any: see above
    for at, measure in enumerate(report.question.measures):
        if measure.name == "gpu-hours" and not (present[at].value or whole[at].value):
            continue
        difference = change(present[at], as_far[at])
        cards.append(
            {
                "measure": measure.name,
                "unit": measure.unit,
                "value": shown(present[at], measure.unit),
                "last": shown(whole[at], measure.unit),
                "note": None,
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


def _top(report: Report, efficiency: Mapping[str | None, Cell | None] | None) -> list[dict[str, str | None]]:
    """The largest rows, with their efficiencies if these are known."""
    total, found = report.total[0].value, list[dict[str, str | None]]()
    for row in report.rows[:_TOP]:
        if value := row.total[0].value:
            found.append(
                {
                    "label": row.label,
                    "core_hours": shown(row.total[0], "core h"),
                    "jobs": shown(row.total[1]),
                    "efficiency": None if efficiency is None else shown(_ratio(efficiency.get(row.label)), "%"),
                    "share": percent(100 * value / total if total else None),
                }
            )
    return found


def _ratio(cell: Cell | None) -> Figure:
    """The figure of a cell; that of nothing where there is none."""
    return Figure(base=Fraction(0)) if cell is None else cell[0]
