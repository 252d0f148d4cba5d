"""A view of usage as a file: its figures in several forms, and its chart on a sheet of its own."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import Final

from aiohttp import web

from auditord.reporting import Figure, Question, Report
from auditord.reporting.bins import part_of
from auditord.reporting.grid import Grid
from auditord.reporting.pledges import pledged
from auditord.reporting.workbook import write_xlsx
from auditord.reporting.writing import csv_pieces, json_pieces, write_parquet
from auditord.web.page.drawing import Picture
from auditord.web.page.figures import Figures, name_of_bin
from auditord.web.page.numbers import percent, shown, with_unit
from auditord.web.page.query_string import DAYS, GROUPS, View, read_view
from auditord.web.page.rendering import Renderer
from auditord.web.page.usage_charts import Charts
from auditord.web.requests import read_target
from auditord.web.streams import Pages, StreamedAnswers
from auditord_hookspecs.query import Window

FORMS: Final = ("csv", "xlsx", "json", "parquet", "svg")

OFFERED: Final = [form for form in FORMS if form != "parquet" or find_spec("pyarrow") is not None]
"""Those that can be written here."""

_TYPES: Final = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "svg": "image/svg+xml",
}

_TEXTS: Final[Mapping[str, Callable[[Grid], Iterator[str]]]] = {"csv": csv_pieces, "json": json_pieces}

_PIECE: Final = 1 << 16
_LAST: Final = object()


@dataclass(frozen=True, slots=True)
class UsageFiles:
    """Files of usage, and their chart.

    Args:
        figures: answers questions.
        renderer: has the texts and the style of sheets.
        charts: draws reports.
        answers: sends files as they are written.
    """

    figures: Figures
    renderer: Renderer
    charts: Charts
    answers: StreamedAnswers

    async def export(self, request: web.BaseRequest) -> web.StreamResponse:
        """The figures of a view as a file, or its chart as a picture."""
        asked = read_target(request.raw_path)
        form = asked.path.rpartition(".")[2]
        view = read_view(asked.query)
        question = view.question(self.figures.now(view.zone), self.figures.keys)
        figures = self.figures.of(view.source)
        headers = {
            "Content-Type": _TYPES[form],
            "Content-Disposition": f'attachment; filename="usage.{form}"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        if form != "svg":
            return await self.answers.send_held(request, self._opened(request, figures, question, form), headers)
        report = await figures.report(request, question)
        sheet = await figures.places.run(lambda: self._sheet(report, view).encode())
        return web.Response(body=sheet, headers=headers)

    @asynccontextmanager
    async def _opened(
        self, request: web.BaseRequest, figures: Figures, question: Question, form: str
    ) -> AsyncGenerator[Pages, None]:
        async with figures.gathered(request, question) as grid:
            pages = self._text(_TEXTS[form](grid)) if form in _TEXTS else self._file(form, grid)
            async with aclosing(pages):
                yield pages

    async def _text(self, pieces: Iterator[str]) -> AsyncGenerator[Sequence[bytes], None]:
        while page := await self.figures.places.run(lambda: _joined_pieces(pieces)):
            yield [page]

    async def _file(self, form: str, grid: Grid) -> AsyncGenerator[Sequence[bytes], None]:
        """The pages of a file whose beginning is written last."""
        folder, run = self.answers.folder, self.figures.places.run
        with TemporaryFile(dir=folder) as file:
            steps = write_xlsx(grid, file, folder) if form == "xlsx" else write_parquet(grid, file)
            try:
                while await run(lambda: next(steps, _LAST)) is not _LAST:
                    pass
            finally:
                await run(steps.close)
            file.seek(0)
            while page := await run(lambda: file.read(_PIECE)):
                yield [page]

    def chart(self, report: Report, view: View) -> Picture | None:
        """The chart of a report."""
        bins = self.figures.axis(report)
        return self.charts.chart(report, view, bins, self.figures.pledge_line(report, bins))

    def days(self, window: Window) -> str:
        """The days of a window."""
        last = window.stop - timedelta(days=1)
        return self.renderer.text("usage.window", start=f"{window.start:%-d %b %Y}", stop=f"{last:%-d %b %Y}")

    def partial(self, report: Report) -> str | None:
        """The bins that are hatched, in words; None if there are none."""
        bins, question = self.figures.axis(report), report.question
        names = [name_of_bin(begin, question) for begin in bins if part_of(question, begin) is not None]
        return self.renderer.text("usage.partial", bins="; ".join(names)) if names else None

    def pledged(self, report: Report) -> str | None:
        """The share of the pledge that was used; None without a pledge."""
        question, window = report.question, report.question.window
        pledge = None if window is None else pledged(self.figures.pledges, question, window)
        if pledge is None:
            return None
        unit, used = question.measures[0].unit, 100 * (report.total[0].value or Fraction(0)) / pledge
        value = with_unit(shown(Figure(pledge), unit), unit)
        return self.renderer.text("usage.of_pledge", share=f"{percent(used)} %", value=value)

    def _sheet(self, report: Report, view: View) -> str:
        """The chart with all that a reader has to know where the page is not around it."""
        chart, unit = self.chart(report, view), report.question.bin
        has_legend = unit is not None and view.chart != DAYS and len(report.rows) > 1
        keys = [(name, colour) for name, _, colour in self.charts.rows(report)] if has_legend else []
        partial = None if chart is None else self.partial(report)
        lines = [self._when(report), self._what(report, view), *([] if partial is None else [partial])]
        if chart is None:
            lines.append(self.renderer.text("usage.nothing"))
        return self.renderer.sheet(self._title(report, view), lines, keys).around(chart)

    def _title(self, report: Report, view: View) -> str:
        text, unit = self.renderer.text, report.question.bin
        name = text(f"measure.{view.measure.name}")
        parts = [f"{name} ({view.score})" if view.measure.scored else name]
        if view.by != "none" and view.chart != DAYS:  # a heat map has all together
            parts.append(text("usage.sheet.by", label=text(f"by.{view.by}") if view.by in GROUPS else view.by))
        if unit is not None:
            parts.append(text("usage.sheet.per", bin=text(f"bin.{unit.value}")))
        return " ".join(parts)

    def _when(self, report: Report) -> str:
        window = report.question.window
        return _joined([] if window is None else [self.days(window), report.question.zone])

    def _what(self, report: Report, view: View) -> str:
        unit, pledged = view.measure.unit, self.pledged(report)
        total = with_unit(shown(report.total[0], unit), unit)
        filters = [f"{name}: {value}" for name, value in view.filters]
        return _joined([total, *filters, *([] if pledged is None else [pledged])])


def _joined_pieces(pieces: Iterator[str]) -> bytes:
    """Return the next pieces of a text, together large enough to be sent."""
    taken, size = list[str](), 0
    while size < _PIECE and (piece := next(pieces, None)) is not None:
        taken.append(piece)
        size += len(piece)
    return "".join(taken).encode()


def _joined(parts: Sequence[str]) -> str:
    return " · ".join(parts)
