"""Reports over the records that a visitor may see, made of the same questions as the API's and the command line's."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from fractions import Fraction
from functools import partial
from typing import Final

from aiohttp import web

from auditord.reporting import MEASURES, Figure, LabelKeys, Measure, Question, Report, Row
from auditord.reporting.bins import part_of
from auditord.reporting.grid import Gathering, Grid
from auditord.reporting.periods import as_far_as, before, year_before
from auditord.reporting.pledges import Pledge, pledged
from auditord.reporting.questions import SIZE
from auditord.reporting.report import condensed, following, make_report
from auditord.web.api.lake_source import LAKE, LakeSource
from auditord.web.page.charts import Series
from auditord.web.page.drawing import Mark
from auditord.web.page.numbers import begin_of_bin, shown, signed, with_unit
from auditord.web.page.query_string import MOST_ROWS
from auditord.web.reading import FEW_GROUPS, MANY_GROUPS, Aggregate, ReadingPlaces
from auditord.web.record_query import InvalidQuery
from auditord.web.requests import RecordsFor, holder
from auditord_hookspecs import AggregateQuery, Aggregates, TooManyGroups
from auditord_hookspecs.query import Window
from auditord_hookspecs.wording import counted
from auditord_hookspecs.zones import zone_named

OTHERS: Final = 8
"""The colour of all that is not among the largest rows."""

MOST_COLOURS: Final = 8

MOST_CELLS: Final = 1_000_000
"""Rows by bins of a file."""

_GAP: Final = Mark(None, "")


@dataclass(frozen=True, slots=True)
class Figures:
    """Answers questions.

    Args:
        records: those that a visitor may see.
        places: for answers that read the store.
        keys: the meta keys of sites, groups and users.
        pledges: of the configuration.
        clock: the present.
        zone: the time zone of the page.
        co2_per_kwh: the CO2 of a kWh, in kg; None if that is not known.
        lake: the records there that a visitor may see, if there is one.
        of_lake: whether reports are of these.
    """

    records: RecordsFor
    places: ReadingPlaces
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

    async def report(self, request: web.BaseRequest, question: Question, most: int = MOST_COLOURS) -> Report:
        """The report for the sender of a request.

        Where there are very many cells, all rows but the largest are one row: so many remain of a report with bins, and
        :data:`MOST_ROWS` of one without.

        Raises:
            InvalidQuery: there are too many rows even so.
        """
        if question.bin is None or question.by in {None, SIZE}:
            return await self._whole(request, question)
        asked = self._complete(question)
        with suppress(TooManyGroups):
            async with self.places.few(holder(request), self._sums(request), asked.query()) as found:
                return await self.places.run(lambda: make_report(asked, found))
        return (await self.rows_and_bins(request, question, most))[1]

    async def _whole(self, request: web.BaseRequest, question: Question) -> Report:
        asked = self._complete(question)

        def made(found: Aggregates) -> Report:
            report = make_report(asked, found)
            return report.shortened(MOST_ROWS) if asked.bin is None else report

        async with self._summed(request, asked) as found:
            return await self.places.run(lambda: made(found))

    @asynccontextmanager
    async def _summed(self, request: web.BaseRequest, asked: Question) -> AsyncGenerator[Aggregates, None]:
        opened = self.places.summed(holder(request), self._sums(request), asked.query())
        async with AsyncExitStack() as stack:
            try:
                found = await stack.enter_async_context(opened)
            except TooManyGroups as error:
                raise _too_many_rows() from error
            yield found

    def _complete(self, question: Question) -> Question:
        return replace(question, co2_per_kwh=self.co2_per_kwh)

    def _sums(self, request: web.BaseRequest) -> Aggregate:
        return self._sums_of_lake(request) if self.of_lake else self.records(request).aggregate

    def _sums_of_lake(self, request: web.BaseRequest) -> Aggregate:
        records = self.lake.records(request)

        async def aggregate(query: AggregateQuery) -> Aggregates:
            with self.lake.faults():
                return await records.aggregate(query)

        return aggregate

    @asynccontextmanager
    async def gathered(self, request: web.BaseRequest, question: Question) -> AsyncGenerator[Grid, None]:
        """All numbers of a report, for a file, with the place that they take.

        Long reports are asked for by parts of their period, none of which has many cells: so a record that is changed
        meanwhile may be counted as it was or as it is. The totals are those of the numbers in the file.

        Raises:
            InvalidQuery: the file would have more than :data:`MOST_CELLS`.
        """
        asked, who = self._complete(question), holder(request)
        gathering, bins = Gathering(asked), bins_of(asked, self.now(asked.zone))
        async with self._summed(request, replace(asked, bin=None)) as found:
            rows = len({group.key[:1] for group in found.groups}) or 1
            if asked.bin is None:
                await self.places.run(lambda: gathering.add(found))
                yield await self.places.run(gathering.grid)
                return
        _check_cells(rows, len(bins))
        async with (self.places.one if rows * len(bins) <= FEW_GROUPS else self.places.large)(who):
            await self._gather(gathering, asked, bins, max(1, FEW_GROUPS // rows), self._sums(request))
            _check_cells(*gathering.size)
            yield await self.places.run(gathering.grid)

    async def _gather(
        self, gathering: Gathering, asked: Question, bins: Sequence[date], count: int, aggregate: Aggregate
    ) -> None:
        """Ask for the cells of some bins after the other: of so many, then of as many as there is room for."""
        first = 0
        while first < len(bins):
            part = _part(asked, bins, first, first + count)
            most = MANY_GROUPS if count > 1 else 2 * MANY_GROUPS  # each row with and without a CPU time
            try:
                found = await aggregate(replace(part.query(), most_groups=most))
            except TooManyGroups as error:
                if count == 1:
                    raise _too_many_rows() from error
                count //= 2
                continue
            await self.places.run(partial(gathering.add, found))
            first += count
            count = max(1, min(2 * count, count * MANY_GROUPS // max(1, 2 * len(found.groups))))

    async def rows_and_bins(
        self, request: web.BaseRequest, question: Question, most: int = MOST_COLOURS
    ) -> tuple[Report, Report]:
        """The report without bins, and that of the bins, in which all rows but the largest ones are one.

        The axis of a year has hundreds of bins for each row, and a picture or a table shows but a few rows: so many, or
        those with a colour.
        """
        rows = await self._whole(request, replace(question, bin=None))
        labels = [row.label for row in rows.rows[:most]]
        named = tuple([label for label in labels if label is not None])
        if rows.row_count <= most or (len(named) < len(labels) and rows.others is None):
            return rows, await self._whole(request, question)
        chosen = await self._whole(request, replace(question, labels=named))
        totals = await self._whole(request, replace(question, by=None))  # last: it has all that the others have
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


def _part(question: Question, bins: Sequence[date], first: int, end: int) -> Question:
    """A question about some of the bins of its window."""
    if (window := question.window) is None:
        return question
    begin, stop = [
        datetime.combine(bins[at], time.min, window.start.tzinfo) if 0 < at < len(bins) else edge
        for at, edge in ((first, window.start), (end, window.stop))
    ]
    return replace(question, window=Window(begin, stop))


def _too_many_rows() -> InvalidQuery:
    narrower = "choose rows of another label, a shorter period, or a filter"
    return InvalidQuery(f"there are more than {MANY_GROUPS:,} rows: {narrower}", "by")


def _check_cells(rows: int, bins: int) -> None:
    if rows * bins > MOST_CELLS:
        sides = f"{counted(rows, 'row')} by {counted(bins, 'bin')} are {counted(rows * bins, 'cell')}"
        narrower = "choose longer bins or a shorter period, rows of another label, or a filter"
        raise InvalidQuery(f"{sides}, and a file has at most {MOST_CELLS:,}: {narrower}", "bin")


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
