"""The page ``/usage``: any measure by any label over any period, and views as files."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, time, timedelta
from functools import partial
from importlib.util import find_spec
from shlex import quote
from typing import Any, Final
from urllib.parse import quote_plus

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.client.query_string import aggregates_target
from auditord.reporting import Figure, Question, Report, Row
from auditord.reporting.measures import percent, with_unit
from auditord.reporting.periods import PERIODS
from auditord.reporting.pledges import Pledge, compare_with_pledges, remark_on_pledges, sum_pledges
from auditord.reporting.questions import SIZE
from auditord.reporting.report import TimeAxis, explain_empty, has_implausible, missing_labels, remarks
from auditord.reporting.writing import Grid, csv_pieces, json_pieces, write_parquet, write_xlsx
from auditord.web.api.lake_source import LAKE
from auditord.web.limits import MOST_ROWS
from auditord.web.page.charts import Picture
from auditord.web.page.figures import MOST_COLOURS, Charts, Figures, bins_of, compare, describe_partial_bins, moves
from auditord.web.page.files import FileWriter, file_headers
from auditord.web.page.query_string import (
    ALL_TIME,
    AUTOMATIC,
    CHARTS,
    DAYS,
    FILTERS,
    GROUPS,
    NO_BIN,
    View,
    chips,
    form_of,
    is_sent_form,
    pieces_of,
    read_view,
    tidy,
)
from auditord.web.page.query_string import USAGE as PATH
from auditord.web.page.rendering import FRAME, Frame, Renderer, Visitors
from auditord.web.page.suggestions import Offered, Suggestions
from auditord.web.requests import principal_of, read_target
from auditord.web.streams import Chunks, StreamedAnswers
from auditord_hookspecs.aggregates import CalendarUnit
from auditord_hookspecs.query import Window
from auditord_hookspecs.zones import UTC_NAME, clock_changes, zone_name, zone_named

FORMS: Final[Mapping[str, str]] = {"csv": "CSV", "xlsx": "XLSX", "json": "JSON", "parquet": "Parquet", "svg": "SVG"}
"""The file formats and their names."""

OFFERED: Final = [form for form in FORMS if form != "parquet" or find_spec("pyarrow") is not None]
"""The file formats that this installation can write. Parquet needs pyarrow."""

_TEXTS: Final[Mapping[str, Callable[[Grid], Iterator[str]]]] = {"csv": csv_pieces, "json": json_pieces}


class UsageFiles(msgspec.Struct, frozen=True):
    """Writes views of usage as files, and draws their charts."""

    figures: Figures
    renderer: Renderer
    charts: Charts
    answers: StreamedAnswers

    async def export(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send the figures of a view as a file, or its chart as a picture."""
        asked = read_target(request.raw_path)
        form = asked.path.rpartition(".")[2]
        view = read_view(asked.query)
        now, figures = self.figures.now(view.zone), self.figures.of(view.source)
        view = await figures.settle(request, view, now)
        question = figures.question(view, now)
        headers = file_headers(f"usage.{form}")
        if form != "svg":
            return await self.answers.send_held(request, self._open(request, figures, question, form), headers)
        report = await figures.report(request, question)
        pledges = figures.pledges_for(request, question)
        sheet = await figures.places.run(lambda: self._sheet(report, view, pledges).encode())
        return web.Response(body=sheet, headers=headers)

    @asynccontextmanager
    async def _open(
        self, request: web.BaseRequest, figures: Figures, question: Question, form: str
    ) -> AsyncGenerator[Chunks, None]:
        async with figures.gather(request, question) as grid:
            writer = FileWriter(figures.places, self.answers.folder)
            if form in _TEXTS:
                pages = writer.text(_TEXTS[form](grid))
            elif form == "xlsx":
                pages = writer.file(partial(write_xlsx, grid))
            else:
                pages = writer.file(lambda out, _: write_parquet(grid, out))
            async with aclosing(pages):
                yield pages

    def chart(self, report: Report, view: View, axis: TimeAxis, pledges: Sequence[Pledge]) -> Picture | None:
        """Draw the chart of a report, with the pledge for each bin as a line."""
        window, line = report.question.window, list[float | None]()
        if window is not None and pledges:
            for begin, end in zip(axis.begins, axis.ends, strict=True):
                days = max(begin, window.start.date()), min(end, window.stop.date())
                start, stop = (datetime.combine(day, time.min, window.start.tzinfo) for day in days)
                amount = sum_pledges(pledges, report.question, Window(start, stop))
                line.append(None if amount is None else float(amount))
        return self.charts.chart(report, view, axis, line if any(line) else ())

    def days(self, window: Window) -> str:
        """Return the first and last day of a window as text."""
        last = window.stop - timedelta(days=1)
        return f"{window.start:%-d %b %Y} to {last:%-d %b %Y}"

    def describe_pledge(self, report: Report, pledges: Sequence[Pledge]) -> str | None:
        """Return the share of the pledge that was used as text; None without a pledge for the whole period."""
        question, window = report.question, report.question.window
        pledge = None if window is None else sum_pledges(pledges, question, window)
        if pledge is None:
            return None
        unit, (used,) = question.measures[0].unit, compare_with_pledges(pledges, question, [report.whole])
        value = with_unit(Figure(pledge).format(unit), unit)
        return f"{percent(used)} % of the pledge of {value}"

    def _sheet(self, report: Report, view: View, pledges: Sequence[Pledge]) -> str:
        """Return the chart with all texts that a reader needs without the page around it."""
        axis, measure = self.figures.axis(report), view.measure
        chart = self.chart(report, view, axis, pledges)
        unit, window = report.question.bin, report.question.window
        title = [f"{measure.title} ({view.score})" if measure.scored else measure.title]
        if view.groups and view.chart != DAYS:  # a heat map sums all rows
            title.append(f"by {' and '.join([GROUPS.get(name, name) for name in view.groups])}")
        title += [] if unit is None else [f"per {unit.value}"]

        total = with_unit(report.total[0].format(measure.unit), measure.unit)
        given = [f"{name}={quote_plus(value)}" for name, value in view.filters]
        filters = [each.text for each in chips([*given, *view.conditions])]
        lines = [
            "" if window is None else f"{self.days(window)} · {report.question.zone}",
            " · ".join(filter(None, [total, *filters, self.describe_pledge(report, pledges)])),
            None if chart is None else describe_partial_bins(axis),
            remark_on_pledges(pledges, report.question),
            explain_empty(report, is_filtered=view.is_filtered) if chart is None else None,
        ]
        has_legend = unit is not None and view.chart != DAYS and len(report.rows) > 1
        keys = [(name, colour) for name, _, colour in self.charts.rows(report)] if has_legend else []
        shown = [line for line in lines if line is not None]
        return self.renderer.sheet(" ".join(title), shown, keys).around(chart)


_ROWS: Final = 50
_MOST_COLUMNS: Final = 62
_MOST_CELLS: Final = 5_000
"""The most cells (rows times bins) of a table."""
_MANY_COLUMNS: Final = 31
"""With more bins than this, only the users in the table get figures for each bin.

The same holds for any number of bins in a time zone that changes its clocks.
"""


class UsagePage(msgspec.Struct, frozen=True):
    """The page ``/usage``.

    Args:
        labels: further meta keys to group by.
    """

    figures: Figures
    renderer: Renderer
    visitors: Visitors
    files: UsageFiles
    suggestions: Suggestions
    labels: Sequence[str] = ()

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show the page. A submitted form is first redirected to the URL of its view."""
        pieces = pieces_of(read_target(request.raw_path).query)
        if is_sent_form(pieces):
            return self.renderer.redirect(f"{PATH}?{tidy(pieces)}")
        view = read_view("&".join(pieces))
        now, figures = self.figures.now(view.zone), self.figures.of(view.source)
        zone = zone_name(now)
        is_settled = view.period != ALL_TIME
        form: Mapping[str, Any] = {  # Any: read by the template
            **form_of(pieces, now.tzinfo or UTC),
            "view": view,
            "zones": list(dict.fromkeys([self.figures.zone, UTC_NAME, zone])),
            "zone": zone,
            "window": self.files.days(view.window(now)) if is_settled else "all time",
            "measure": view.measure,
            "measures": self.figures.measures,
            "periods": (*PERIODS, ALL_TIME),
            "bins": (AUTOMATIC, *(unit.value for unit in CalendarUnit), NO_BIN),
            "charts": CHARTS,
            "sources": figures.lake.names,
        }
        navigation = self.visitors.navigation(request, PATH)

        def make_frame() -> web.Response:  # without what only a query can tell
            kept = self._offer(self.suggestions.read_kept(request), view)
            return self.renderer.answer("usage.html", {**form, **kept, "is_frame": True}, navigation)

        request[FRAME] = Frame(make_frame)
        offered = await self.suggestions.offer(request)
        view = await figures.settle(request, view, now)
        question = figures.question(view, now)
        report, drawn = await self._reports(request, view, figures, question)
        former = await figures.former(request, question, now) if is_settled else ()
        implausible = replace(view, conditions=tuple(dict.fromkeys([*view.conditions, "implausible=true"])))
        pledges, whole = figures.pledges_for(request, question), await figures.whole(request, report)
        is_known = principal_of(request) is not None

        def make() -> web.Response:
            measure, is_heat_map = question.measures[0], view.chart == DAYS
            address = self.renderer.url(request, "")
            api = f"{address}{aggregates_target(question.query(), view.source)}"
            axis = self.figures.axis(drawn)
            labels = ", ".join(sorted(offered.labels))
            known = f"; recorded labels are {labels}" if labels else ""
            told = [f"None of these records has the label {key}{known}" for key in missing_labels(report)]
            if report.total[0].value is not None:
                told += remarks(question, [row.total for row in report.rows])
            pledged = remark_on_pledges(pledges, question, [row.labels for row in report.rows])
            values = {
                **form,
                **self._offer(offered, view),
                "total": report.total[0].format(measure.unit),
                "compared": compare(report, former),
                "implausible": implausible.jobs() if has_implausible(report) else None,
                "remarks": told if pledged is None else [*told, pledged],
                "empty": explain_empty(report, is_filtered=view.is_filtered),
                "pledge": self.files.describe_pledge(report, pledges),
                "chart": self.files.chart(drawn, view, axis, pledges),
                "legend": [] if is_heat_map else self.files.charts.rows(drawn),
                "partial": describe_partial_bins(axis),
                "has_bins": not is_heat_map and drawn.question.bin is not None,
                "moves": moves(view, view.window(now), now.date()),
                "table": self._table(report, view, axis, pledges, whole),
                "forms": [(FORMS[form], view.url(f"{PATH}.{form}")) for form in OFFERED],
                "picture": view.url(f"{PATH}.svg"),
                "snapshot": report.snapshot,
                "curl": f"curl -g {quote(api)}",
                "command": command(view, question, self.figures.zone, url=address if is_known else None),
                "needs_token": is_known,
            }
            return self.renderer.answer("usage.html", values, navigation)

        return await self.figures.places.run(make)

    def _offer(self, offered: Offered, view: View) -> Mapping[str, Any]:  # Any: read by the template
        """Return what the form suggests, and the labels to group by: configured ones first, then recorded ones."""
        named = {self.figures.keys.key(name) for name in FILTERS}
        recorded = [f"meta:{key}" if key in GROUPS else key for key in offered.labels if key not in named]
        names = (*GROUPS, *self.labels, *recorded, *view.groups)
        return {
            "offered": offered,
            "keys": self.figures.keys,
            "groups": {name: GROUPS.get(name, name.removeprefix("meta:")) for name in names},
        }

    async def _reports(
        self, request: web.BaseRequest, view: View, figures: Figures, question: Question
    ) -> tuple[Report, Report]:
        """Return the report for the table and that for the chart. With many bins, the table's report has no bins."""
        if view.chart == DAYS:
            rows = await figures.report(request, replace(question, bin=None))
            return rows, await figures.report(request, replace(question, by=None, then=None))
        bins = bins_of(question, figures.clock())
        most = max(_top(view), MOST_COLOURS)
        if len(bins) > _most_columns(view) and question.by not in {None, SIZE}:
            return await figures.rows_and_bins(request, question)
        if "user" in question.groups and (len(bins) > _MANY_COLUMNS or (bins and clock_changes(question.zone))):
            _, report = await figures.rows_and_bins(request, question, most)
            return report, report
        report = await figures.report(request, question, most)
        return report, report

    def _table(
        self,
        report: Report,
        view: View,
        axis: TimeAxis,
        pledges: Sequence[Pledge],
        everything: Figure | None,
    ) -> Mapping[str, Any]:  # Any: read by the template
        measure = report.question.measures[0]
        if report.question.bin is None or len(axis.begins) > _most_columns(view):
            axis = TimeAxis()
        rows, rest, count = report.largest(_top(view))
        question, blank = report.question, [""] * (len(report.question.groups) - 1)
        finer = {"site": "group", "group": "user", "outcome": "group"}.get("".join(question.groups[-1:]), "none")
        finer = "none" if finer in question.groups else finer
        total, like = None if everything is None else everything.value, report.total[0]

        def line(names: Sequence[str], row: Row, link: str | None, used: str) -> dict[str, Any]:  # Any: as above
            found = [row.cells.get(begin) for begin in axis.begins]
            share = None if not total or row.total[0].value is None else 100 * row.total[0].value / total
            return {
                "names": names,
                "link": link,
                "cells": ["" if cell is None else cell[0].format(measure.unit, like) for cell in found],
                "total": row.total[0].format(measure.unit, like),
                "share": percent(share),
                "used": used,
                "is_rest": row is rest,
            }

        shown = list[dict[str, Any]]()  # Any: as above
        *used_by_rows, used_by_all = compare_with_pledges(pledges, question, [*rows, report.whole])
        for row, used in zip(rows, used_by_rows, strict=True):
            link = view.link_of_row(question, row.labels, by=finer, then=None)
            shown.append(line([each or "(none)" for each in row.labels] or ["All"], row, link, percent(used)))
        if rest is not None:
            shown.append(line([f"{count} more", *blank], rest, view.url(PATH, top=str(MOST_ROWS)), ""))
        return {
            "bins": axis.titles,
            "rows": shown,
            "groups": [GROUPS.get(name, name) for name in question.groups] or [""],
            "total": line(["Total", *blank], report.whole, None, percent(used_by_all)),
            "has_pledges": bool(question.groups) and any(used is not None for used in used_by_rows),
            "share": None if everything is None else "Share %" if everything is report.total[0] else "Share of all %",
        }


def _top(view: View) -> int:
    """Return the number of rows that the table lists; the others are summed into one."""
    return int(view.given.get("top", _ROWS))


def _most_columns(view: View) -> int:
    """Return the most bins that the table shows as columns."""
    return min(_MOST_COLUMNS, _MOST_CELLS // _top(view))


def command(view: View, question: Question, zone: str = UTC_NAME, url: str | None = None) -> str:
    """Return the shell command that prints the same report.

    Args:
        view: the view.
        question: the question that the view answers.
        zone: the time zone of the page.
        url: the address of the daemon that is asked; None for the record store, whose reader sees all records.
    """
    measure, window, period = question.measures[0], question.window, view.period
    words = ["auditord", "report", "usage", "--measure", measure.name, "--by", question.by or "none"]
    words += [] if question.then is None else ["--then", question.then]
    words += ["--bin", NO_BIN if question.bin is None else question.bin.value]
    words += ["--score", question.score] if measure.scored else []
    if period in PERIODS:
        words += ["--period", period]
    elif window is not None:
        words += ["--from", f"{window.start:%Y-%m-%d}", "--to", f"{window.stop:%Y-%m-%d}"]  # exclusive
    words += ["--source", LAKE] if view.source == LAKE else []
    words += [] if zone == question.zone == UTC_NAME else ["--timezone", question.zone]
    for key, value in question.filters:
        words += ["--filter", f"{key}={value}"]
    words += ["--where", view.query(zone_named(question.zone))] if view.conditions else []
    words += [] if url is None else ["--url", url]
    return " ".join(map(quote, words))
