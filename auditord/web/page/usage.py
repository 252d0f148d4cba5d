"""The page ``/usage``: any measure by any label over any period."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from shlex import quote
from typing import Any, Final

from aiohttp import web

from auditord.client.aggregates import target
from auditord.reporting import Question, Report, Row
from auditord.reporting.periods import PERIODS
from auditord.reporting.questions import SIZE
from auditord.reporting.report import has_implausible
from auditord.web.api.lake_source import LAKE
from auditord.web.page.figures import MOST_COLOURS, Figures, bins_of, compared, name_of_bin
from auditord.web.page.late import FRAME, Frame
from auditord.web.page.numbers import percent, shown
from auditord.web.page.query_string import AUTOMATIC, CHARTS, DAYS, GROUPS, MOST_ROWS, NO_BIN, View, read_view
from auditord.web.page.rendering import Renderer
from auditord.web.page.usage_charts import moves
from auditord.web.page.usage_files import OFFERED, UsageFiles
from auditord.web.page.visitors import Visitors
from auditord.web.requests import read_target
from auditord_hookspecs.aggregates import CalendarUnit, LakeSnapshot
from auditord_hookspecs.zones import UTC_NAME, clock_changes, zone_name

PATH: Final = "/usage"
_ROWS: Final = 50
_MOST_COLUMNS: Final = 62
_MOST_CELLS: Final = 5_000
"""Rows by bins of a table."""
_MANY_COLUMNS: Final = 31
"""Bins from which on figures are only asked of the users that the table shows one by one; so are bins of time zones."""


@dataclass(frozen=True, slots=True)
class UsagePage:
    """The page of usage.

    Args:
        figures: answers questions.
        renderer: makes pages.
        visitors: knows who sees what.
        files: draws charts, and writes files.
        labels: other meta keys to group by.
    """

    figures: Figures
    renderer: Renderer
    visitors: Visitors
    files: UsageFiles
    labels: Sequence[str] = ()

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """The page."""
        view = read_view(read_target(request.raw_path).query)
        now = self.figures.now(view.zone)
        question = view.question(now, self.figures.keys)
        figures, window = self.figures.of(view.source), view.window(now)
        form: Mapping[str, Any] = {  # Any: shown by the template
            "view": view,
            "zones": list(dict.fromkeys([self.figures.zone, UTC_NAME, question.zone])),
            "zone": question.zone,
            "window": self.files.days(window),
            "measure": view.measure,
            "measures": self.figures.measures,
            "periods": PERIODS,
            "groups": list(dict.fromkeys([*GROUPS, *self.labels, view.by])),
            "bins": (AUTOMATIC, *(unit.value for unit in CalendarUnit), NO_BIN),
            "charts": CHARTS,
            "sources": figures.lake.names,
        }
        navigation = self.visitors.navigation(request, PATH)
        request[FRAME] = Frame(lambda: self.renderer.answer("usage.html", {**form, "is_frame": True}, navigation))
        report, drawn = await self._reports(request, view, figures, question)
        former = await figures.former(request, question)
        return await self.figures.places.run(
            lambda: self.renderer.answer(
                "usage.html",
                {
                    **form,
                    "total": shown(report.total[0], view.measure.unit),
                    "compared": compared(report, former, self.renderer.text),
                    "implausible": has_implausible(report),
                    "pledge": self.files.pledged(report),
                    "chart": self.files.chart(drawn, view),
                    "legend": [] if view.chart == DAYS else self.files.charts.rows(drawn),
                    "partial": self.files.partial(drawn),
                    "has_bins": view.chart != DAYS and drawn.question.bin is not None,
                    "moves": moves(view, window.start.date(), window.stop.date(), now.date()),
                    "table": self._table(report, view),
                    "forms": [
                        (self.renderer.text(f"usage.form.{form}"), view.url(f"{PATH}.{form}")) for form in OFFERED
                    ],
                    "picture": view.url(f"{PATH}.svg"),
                    "snapshot": None if report.snapshot is None else _state(report.snapshot),
                    "curl": f"curl -g {quote(self.renderer.url(request, target(question.query(), view.source)))}",
                    "command": command(view, now, self.figures.zone),
                },
                navigation,
            )
        )

    async def _reports(
        self, request: web.BaseRequest, view: View, figures: Figures, question: Question
    ) -> tuple[Report, Report]:
        """The report of the table, and that of the chart; a table shows no bins where there are many of them."""
        if view.chart == DAYS:
            rows = await figures.report(request, replace(question, bin=None))
            return rows, await figures.report(request, replace(question, by=None))
        bins = bins_of(question, figures.now(view.zone))
        most = max(_top(view), MOST_COLOURS)
        if len(bins) > _most_columns(view) and question.by not in {None, SIZE}:
            return await figures.rows_and_bins(request, question)
        if view.by == "user" and (len(bins) > _MANY_COLUMNS or (bins and clock_changes(question.zone))):
            _, report = await figures.rows_and_bins(request, question, most)
            return report, report
        report = await figures.report(request, question, most)
        return report, report

    def _table(self, report: Report, view: View) -> Mapping[str, Any]:  # Any: shown by the template
        unit, measure = report.question.bin, report.question.measures[0]
        every_bin = self.figures.axis(report)
        bins = every_bin if len(every_bin) <= _most_columns(view) else ()
        rows, rest, count = report.largest(_top(view))
        named = [(self.files.charts.name(row, report), row, _link(row, view)) for row in rows]
        named += (
            []
            if rest is None
            else [(self.renderer.text("usage.more", count=count), rest, view.url(PATH, top=str(MOST_ROWS)))]
        )
        total, like = report.total[0].value, report.total[0]

        def line(name: str, row: Row, link: str | None) -> dict[str, Any]:  # Any: see above
            found = [row.cells.get(begin) for begin in bins]
            share = None if measure.ratio or not total else 100 * (row.total[0].value or Fraction(0)) / total
            return {
                "name": name,
                "link": link,
                "cells": ["" if cell is None else shown(cell[0], measure.unit, like) for cell in found],
                "total": shown(row.total[0], measure.unit, like),
                "share": percent(share),
            }

        return {
            "bins": [] if unit is None else [name_of_bin(begin, report.question) for begin in bins],
            "rows": [line(*each) for each in named],
            "total": line(self.renderer.text("usage.total"), Row(None, report.totals, report.total), None),
            "has_shares": not measure.ratio,
        }


def _top(view: View) -> int:
    """Return the number of rows that are shown one by one."""
    return int(view.given.get("top", _ROWS))


def _most_columns(view: View) -> int:
    """Return the most bins that the table has columns for."""
    return min(_MOST_COLUMNS, _MOST_CELLS // _top(view))


def command(view: View, now: datetime, zone: str = UTC_NAME) -> str:
    """The line of the command line that gives the same, bins and all; ``zone`` is the page's."""
    unit, window = view.unit(now), view.window(now)
    words = ["auditord", "report", "usage", "--measure", view.measure.name, "--by", view.by]
    words += ["--bin", NO_BIN if unit is None else unit.value]
    words += ["--score", view.score] if view.measure.scored else []
    span = ["--from", f"{window.start:%Y-%m-%d}", "--to", f"{window.stop:%Y-%m-%d}"]  # the end is not part of it
    words += ["--period", view.period] if view.period else span
    words += ["--source", view.source] if view.source == LAKE else []
    words += [] if zone == zone_name(now) == UTC_NAME else ["--timezone", zone_name(now)]
    for key, value in view.filters:
        words += ["--filter", f"{key}={value}"]
    return " ".join(map(quote, words))


def _link(row: Row, view: View) -> str | None:
    """The view of one row alone, by what comes below it."""
    if row.label is None or view.by in {"size", "none"}:
        return None
    below = {"site": "group", "group": "user"}.get(view.by, "none")
    return replace(view, given={**view.given, "by": below}).narrowed(PATH, view.by, row.label)


def _state(snapshot: LakeSnapshot) -> Mapping[str, Any]:  # Any: shown by the template
    committed_at = f"{snapshot.committed_at:%-d %b %Y %H:%M} UTC"
    return {"number": snapshot.number, "committed_at": committed_at, "is_complete": snapshot.is_complete}
