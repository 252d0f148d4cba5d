"""Reports over the records that a visitor may see, made of the same questions as the API's and the command line's."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from fractions import Fraction
from typing import Final

from aiohttp import web

from auditord.reporting import MEASURES, Figure, LabelKeys, Measure, Question, Report, Row
from auditord.reporting.bins import part_of
from auditord.reporting.periods import as_far_as, before, year_before
from auditord.reporting.pledges import Pledge, pledged
from auditord.reporting.report import condensed, following, make_report
from auditord.web.api.lake_source import LAKE, LakeSource
from auditord.web.limits import Shares, reading_slot
from auditord.web.page.charts import Series
from auditord.web.page.drawing import Mark
from auditord.web.page.numbers import begin_of_bin, shown, signed, with_unit
from auditord.web.requests import RecordsFor, holder
from auditord_hookspecs.aggregates import AggregateQuery, Aggregates
from auditord_hookspecs.query import Window
from auditord_hookspecs.zones import zone_named

OTHERS: Final = 8
"""The colour of all that is not among the largest rows."""

MOST_COLOURS: Final = 8

_GAP: Final = Mark(None, "")


@dataclass(frozen=True, slots=True)
class Figures:
    """Answers questions.

    Args:
        records: those that a visitor may see.
        slots: for long work of the store.
        keys: the meta keys of sites, groups and users.
        pledges: of the configuration.
        clock: the present.
        zone: the time zone of the page.
        co2_per_kwh: the CO2 of a kWh, in kg; None if that is not known.
        lake: the records there that a visitor may see, if there is one.
        of_lake: whether reports are of these.
    """

    records: RecordsFor
    slots: Shares
    keys: LabelKeys
    pledges: Sequence[Pledge]
    clock: Callable[[], datetime]
    zone: str
    co2_per_kwh: Fraction | None
    lake: LakeSource
    of_lake: bool = False

    def of(self, source: str) -> "Figures":
        """The same with reports of the records of a source."""
        return replace(self, of_lake=source == LAKE)

    def now(self, zone: str | None = None) -> datetime:
        """The present in a time zone, else in that of the page."""
        return self.clock().astimezone(zone_named(zone or self.zone))

    async def report(self, request: web.BaseRequest, question: Question) -> Report:
        """The report for the sender of a request."""
        asked = replace(question, co2_per_kwh=self.co2_per_kwh)
        async with reading_slot(self.slots, holder(request)):
            found = await self._sums(request, asked.query())
            return await asyncio.to_thread(make_report, asked, found)  # of thousands of groups it takes its time

    async def _sums(self, request: web.BaseRequest, query: AggregateQuery) -> Aggregates:
        if not self.of_lake:
            return await self.records(request).aggregate(query)
        with self.lake.faults():
            return await self.lake.records(request).aggregate(query)

    async def rows_and_bins(
        self, request: web.BaseRequest, question: Question, most: int | None = None
    ) -> tuple[Report, Report]:
        """The report without bins, and that of the bins, in which all rows but the largest ones are one.

        The axis of a year has hundreds of bins for each row, and a picture or a table shows but a few rows: so many, or
        those with a colour.
        """
        most = MOST_COLOURS if most is None else most
        rows = await self.report(request, replace(question, bin=None))
        labels = [row.label for row in rows.rows[:most]]
        named = tuple([label for label in labels if label is not None])
        if len(rows.rows) <= most or len(named) < len(labels):
            return rows, await self.report(request, question)
        chosen = await self.report(request, replace(question, labels=named))
        totals = await self.report(request, replace(question, by=None))  # last: it has all that the others have
        return rows, condensed(rows, chosen, totals, most)

    async def former(self, request: web.BaseRequest, question: Question) -> Sequence[tuple[str, Report]]:
        """Reports of the period before and of the year before, as far as the period of a question has come by now.

        Each has the name of its text. They have no groups and no bins; a year before without records is left out.
        """
        if (window := question.window) is None:
            return ()
        now, year = self.now(question.zone), year_before(window)
        windows = {"former": before(window), "year": year}
        if windows["former"] == year:
            del windows["former"]
        found: list[tuple[str, Report]] = []
        for name, former in windows.items():
            part = as_far_as(window, now, former)
            report = await self.report(request, replace(question, by=None, bin=None, window=part))
            if name == "former" or report.rows:
                found.append((name if part == former else f"{name}_so_far", report))
        return found

    @property
    def measures(self) -> Sequence[Measure]:
        """The measures that can be shown."""
        return [each for each in MEASURES.values() if self.co2_per_kwh is not None or not each.needs_intensity]

    def axis(self, report: Report) -> Sequence[date]:
        """The bins of the report's whole window, up to the present, also where there is no record."""
        return bins_of(report.question, self.now(), report.bins)

    def pledge_line(self, report: Report, bins: Sequence[date]) -> Sequence[float | None]:
        """The pledge for each bin, as far as the report's window has it."""
        unit, window = report.question.bin, report.question.window
        if unit is None or window is None or not self.pledges:
            return ()
        found: list[float | None] = []
        for begin in bins:
            first = max(begin, window.start.date())
            end = min(following(begin, unit), window.stop.date())
            begun, over = (datetime.combine(day, time.min, window.start.tzinfo) for day in (first, end))
            amount = pledged(self.pledges, report.question, Window(begun, over))
            found.append(None if amount is None else float(amount))
        return found if any(found) else ()


def bins_of(question: Question, now: datetime, known: Sequence[date] = ()) -> Sequence[date]:
    """The bins of a question's whole window up to the present; some are known to have records."""
    unit, window = question.bin, question.window
    if unit is None:
        return ()
    if window is None:
        return known
    begin, bins = unit.first_day(window.start.date()), list[date]()
    here = now.astimezone(window.start.tzinfo)
    last = min(window.stop - timedelta(microseconds=1), max(here, window.start)).date()
    while begin <= max([last, *known]):
        bins.append(begin)
        begin = following(begin, unit)
    return bins


def name_of_bin(begin: date, question: Question) -> str:
    """Return the name of a bin; of one that the report has in part, with its days."""
    name = begin.isoformat() if question.bin is None else begin_of_bin(begin, question.bin)
    part = part_of(question, begin)
    return name if part is None else f"{name}, {part.text()}"


def series(
    rows: Sequence[tuple[str, Row, int]],
    bins: Sequence[date],
    report: Report,
    links: Callable[[str], Callable[[date], str] | None] = lambda _name: None,
) -> list[Series]:
    """The rows of a report as series of a chart, each with its colour.

    Args:
        rows: with their names and colours.
        bins: the places of the axis.
        report: that the rows are of.
        links: the pages that the marks of a name lead to, if any.
    """
    measure = report.question.measures[0]
    labels = {begin: name_of_bin(begin, report.question) for begin in bins}
    made: list[Series] = []
    for name, row, colour in rows:
        link, marks = links(name), list[Mark]()
        for begin, label in labels.items():
            figure = row.cells[begin][0] if begin in row.cells else None
            if figure is None or not (value := figure.value):
                marks.append(_GAP)
                continue
            title = f"{name}, {label}: {shown(figure, measure.unit)} {measure.unit}".rstrip()
            marks.append(Mark(float(value), title, None if link is None else link(begin)))
        made.append(Series(name, colour, marks))
    return made


def compared(
    report: Report, former: Sequence[tuple[str, Report]], text: Callable[..., str], at: int = 0
) -> list[tuple[str, str | None]]:
    """The figures of former reports beside one of a report's measures: texts, and by how much it has changed."""
    measure, found = report.question.measures[at], list[tuple[str, str | None]]()
    for name, each in former:
        figure = with_unit(shown(each.total[at], measure.unit), measure.unit)
        difference = None if measure.ratio else signed(change(report.total[at], each.total[at]))
        found.append((text(f"usage.{name}", value=figure), difference))
    return found


def change(present: Figure, former: Figure) -> Fraction | None:
    """The change in percent; None where there is nothing to compare with."""
    before, after = former.value, present.value
    return None if not before or after is None else 100 * (after - before) / before
