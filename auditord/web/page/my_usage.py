"""The page ``/my``: the visitor's own jobs, how well they used what they had, and what stayed unused."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from aiohttp import web

from auditord.reporting import MEASURES, Figure, Report
from auditord.reporting.measures import CORES, CPU_TIME, MEMORY, MIB_PER_GIB, PEAK
from auditord.reporting.periods import PERIODS
from auditord.web.page.charts import Axis, bars
from auditord.web.page.drawing import Picture
from auditord.web.page.figures import Figures, compared
from auditord.web.page.jobs import job_row
from auditord.web.page.numbers import NOTHING, begin_of_bin, shown
from auditord.web.page.query_string import View, read_view
from auditord.web.page.rendering import Renderer
from auditord.web.page.usage_charts import Charts, partial_places
from auditord.web.page.visitors import Visitors
from auditord.web.requests import holder, principal_of, read_target
from auditord_hookspecs import Record
from auditord_hookspecs.aggregates import amount_of
from auditord_hookspecs.query import Condition, Order, RecordQuery, SortField
from auditord_hookspecs.wire import decode_record

PATH: Final = "/my"

LOOKED_AT: Final = 500
"""The latest jobs among which those are looked for that left most unused."""

_SHOWN: Final = ("core-hours", "jobs", "cpu-efficiency", "idle-core-hours")
_WORST: Final = 10
_HOUR: Final = 3_600


@dataclass(frozen=True, slots=True)
class MyPage:
    """The page of the visitor's own jobs.

    Args:
        figures: answers questions.
        renderer: makes pages.
        visitors: knows who sees what.
        charts: draws reports.
    """

    figures: Figures
    renderer: Renderer
    visitors: Visitors
    charts: Charts

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """The page; without a user name, the reason why there is nothing on it."""
        principal, navigation = principal_of(request), self.visitors.navigation(request, PATH)
        asked = read_view(read_target(request.raw_path).query)
        if principal is None or principal.user is None:
            return self.renderer.answer("my.html", {"user": None, "known": principal is not None}, navigation)
        view = View({**asked.given, "user": principal.user}, asked.labels)
        question = replace(
            view.question(self.figures.now(view.zone), self.figures.keys),
            by=None,
            measures=tuple(MEASURES[name] for name in _SHOWN),
        )
        report = await self.figures.report(request, question)
        former = await self.figures.former(request, question)
        records = await self._latest(request, question.where())
        values = {
            "user": principal.user,
            "view": view,
            "periods": PERIODS,
            "cards": self._cards(report, former),
            "chart": self._chart(report, view),
            "worst": self._worst(records),
            "looked_at": LOOKED_AT,
            "many": len(records) == LOOKED_AT,
        }
        return self.renderer.answer("my.html", values, navigation)

    async def _latest(self, request: web.BaseRequest, where: Condition) -> Sequence[Record]:
        query = RecordQuery(where, Order(SortField.STOP, descending=True), LOOKED_AT)
        places = self.figures.places
        async with places.one(holder(request)), self.figures.records(request).stream(query) as pages:
            documents = [document async for page in pages for document in page]
        return await places.run(lambda: list(map(decode_record, documents)))

    def _chart(self, report: Report, view: View) -> Picture | None:
        unit = report.question.bin
        if unit is None:
            return None
        bins = self.figures.axis(report)
        labels, unit_of_values = [begin_of_bin(begin, unit) for begin in bins], report.question.measures[0].unit
        axis_of_time = Axis(labels, unit=unit_of_values, partial=partial_places(report, bins))
        return bars(self.renderer.text("my.chart"), axis_of_time, self.charts.series(report, view, bins))

    def _cards(self, report: Report, former: Sequence[tuple[str, Report]]) -> list[dict[str, Any]]:  # Any: see below
        return [
            {
                "measure": measure.name,
                "unit": measure.unit,
                "value": shown(report.total[at], measure.unit),
                "compared": compared(report, former, self.renderer.text, at),
            }
            for at, measure in enumerate(report.question.measures)
        ]

    def _worst(self, records: Sequence[Record]) -> list[dict[str, Any]]:  # Any: shown by the template
        """The jobs that left most core hours unused."""
        found = [(idle, record) for record in records if (idle := _idle(record)) is not None and idle > 0]
        found.sort(key=lambda each: each[0], reverse=True)
        return [
            {**job_row(record, self.figures.keys), "idle": shown(Figure(idle), "core h"), "memory": _memory(record)}
            for idle, record in found[:_WORST]
        ]


def _idle(record: Record) -> Fraction | None:
    """Core hours that a job had and did not use; None where its CPU time is not known."""
    cores, used = amount_of(record, CORES), amount_of(record, CPU_TIME)
    if cores is None or used is None or record.runtime is None:
        return None
    return Fraction(cores * record.runtime - used, _HOUR)


def _memory(record: Record) -> str:
    """The peak of a job's memory, and what it had asked for, in GiB."""
    asked, peak = amount_of(record, MEMORY), amount_of(record, PEAK)
    if asked is None or peak is None:
        return NOTHING
    used = Figure(Fraction(peak, 1 << 30))
    return f"{shown(used, 'GiB')} / {shown(Figure(Fraction(asked, MIB_PER_GIB)), 'GiB')}"
