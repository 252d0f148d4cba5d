"""Reports over the records that a visitor may see, and their charts.

The API and the command line answer the same questions (:class:`auditord.reporting.Question`).
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, date, datetime, time, timedelta
from fractions import Fraction
from functools import partial
from typing import Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.reporting import MEASURES, Figure, LabelKeys, Measure, Question, Report, Row
from auditord.reporting.measures import with_unit
from auditord.reporting.periods import (
    FIRST_DAY,
    LAST_DAY,
    check_day,
    next_period,
    previous_period,
    up_to_same_day,
    year_before,
)
from auditord.reporting.pledges import Pledge, Scope
from auditord.reporting.questions import SIZE
from auditord.reporting.report import TimeAxis, condense, lay_out, make_report
from auditord.reporting.writing import Gathering, Grid
from auditord.store.rollups.cells import CellSet
from auditord.store.rollups.scope import scope_of
from auditord.web.api.lake_source import LAKE, LakeSource
from auditord.web.limits import FEW_GROUPS, MANY_GROUPS, MOST_CELLS, MOST_ROWS
from auditord.web.page import charts
from auditord.web.page.charts import Axis, Mark, Picture, Series, heat_map
from auditord.web.page.query_string import ALL_TIME, NO_BIN, USAGE, View
from auditord.web.places import Aggregate, ReadingPlaces
from auditord.web.record_query import InvalidQuery
from auditord.web.requests import RecordsFor, client_key, principal_of
from auditord_hookspecs import AggregateQuery, Aggregates, Permission, Record, RecordQuery, TooManyGroups
from auditord_hookspecs.aggregates import CalendarUnit, nearest_float
from auditord_hookspecs.query import AllOf, Condition, Window
from auditord_hookspecs.wire import decode_record
from auditord_hookspecs.wording import counted
from auditord_hookspecs.zones import zone_named

OTHERS: Final = 8
"""The colour of the row that sums all but the largest rows."""

MOST_COLOURS: Final = 8

_GAP: Final = Mark(None, "")


class Figures(msgspec.Struct, frozen=True):
    """Queries the records that a visitor may see and makes reports of the results.

    Args:
        places: limits the number of requests that read the store at a time.
        co2_per_kwh: the CO2 of a kWh, in kg; None if not configured.
        lake: the lake, if any, with the records that a visitor may see.
        totals: returns the sums over all records, for senders of requests who may see them.
        of_lake: whether reports are made from the lake instead of the record store.
    """

    records: RecordsFor
    places: ReadingPlaces
    keys: LabelKeys
    pledges: Sequence[Pledge]
    clock: Callable[[], datetime]
    zone: str
    co2_per_kwh: Fraction | None
    lake: LakeSource
    totals: Callable[[web.BaseRequest], Aggregate | None]
    of_lake: bool = False

    def of(self, source: str) -> "Figures":
        """Return a copy that makes its reports from a source."""
        return replace(self, of_lake=source == LAKE)

    def now(self, zone: str | None = None) -> datetime:
        """Return the current time in a time zone, by default that of the page."""
        return self.clock().astimezone(zone_named(zone or self.zone))

    def question(self, view: View, now: datetime) -> Question:
        """Return the question that a view answers, in the time zone of ``now``."""
        return replace(view.question(now, self.keys), co2_per_kwh=self.co2_per_kwh)

    async def settle(self, request: web.BaseRequest, view: View, now: datetime) -> View:
        """Return the view with the days of its period, if only the records tell them.

        Raises:
            InvalidQuery: the first record stopped on a day that no period has.
        """
        if view.period != ALL_TIME:
            return view
        among = view.where(now.tzinfo or UTC)
        query = Question((MEASURES["jobs"],), filters=view.filters, keys=self.keys, among=among).query()
        async with self.places.few(*self._asker(request), query) as found:
            stops = [moment for each in found.groups for moment in (each.first_stop, each.last_stop)] or [now]
        try:
            first, last = (check_day(moment.astimezone(now.tzinfo)).date() for moment in (min(stops), max(stops)))
        except (OverflowError, ValueError) as error:
            raise InvalidQuery(f"{error}: choose other dates", "period") from error
        start, stop = (datetime.combine(day, time.min, now.tzinfo) for day in (first, last + timedelta(days=1)))
        return replace(view, span=Window(start, stop))

    async def report(self, request: web.BaseRequest, question: Question, most: int = MOST_COLOURS) -> Report:
        """Return the report for the sender of a request.

        If there are too many cells, all but the largest rows are summed into one. A report with bins keeps ``most``
        rows, a report without bins :data:`MOST_ROWS`.

        Raises:
            InvalidQuery: there are still too many rows.
        """
        if question.bin is None or question.by in {None, SIZE} or question.counts_users:
            return await self._whole(request, question)
        with suppress(TooManyGroups):
            async with self.places.few(*self._asker(request), question.query()) as found:
                return await self.places.run(partial(make_report, question, found))
        return (await self.rows_and_bins(request, question, most))[1]

    async def _whole(self, request: web.BaseRequest, question: Question) -> Report:
        opened = self.places.sum_up(*self._asker(request), question.query())
        async with AsyncExitStack() as stack:
            try:
                found = await stack.enter_async_context(opened)
            except TooManyGroups as error:
                raise _too_many_rows() from error
            most = MOST_ROWS if question.bin is None else None
            return await self.places.run(partial(make_report, question, found, most))

    def _asker(self, request: web.BaseRequest) -> tuple[str, Aggregate]:
        """Return the sender's name, for which places for answers are kept, and the function that sums up for them."""
        who = client_key(request)
        if not self.of_lake:
            return who, self.records(request).aggregate
        records = self.lake.records(request)

        async def aggregate(query: AggregateQuery) -> Aggregates:
            with self.lake.faults():
                return await records.aggregate(query)

        return who, aggregate

    @asynccontextmanager
    async def gather(self, request: web.BaseRequest, question: Question) -> AsyncGenerator[Grid, None]:
        """Yield all numbers of a report for a file, while holding a reading place.

        A long report is queried in parts of its period, so that no result has too many cells. A record that changes
        meanwhile may be counted in its former or its new version. The totals are the sums of the numbers in the file.

        Raises:
            InvalidQuery: the file would have more than :data:`MOST_CELLS`.
        """
        (who, sum_up), gathering, bins = self._asker(request), Gathering(question), bins_of(question, self.clock())
        async with self.places.growing(who) as place:
            try:
                found = await place.sum_up(sum_up, replace(question, bin=None).query())
            except TooManyGroups as error:
                raise _too_many_rows() from error
            rows = len({group.key[: len(question.groups)] for group in found.groups}) or 1
            if question.bin is None:
                await self.places.run(partial(gathering.add, found))
                yield await self.places.run(gathering.grid)
                return
            del found  # a kilobyte per group, which would stay in memory while this request waits for a place
            _check_cells(rows, len(bins))
            if rows * len(bins) > FEW_GROUPS:
                await place.grow()
            first, count = 0, max(1, FEW_GROUPS // rows)
            while first < len(bins):
                part = _part(question, bins, first, first + count)
                # Each row may have two groups: with and without CPU time.
                most = MANY_GROUPS if count > 1 else 2 * MANY_GROUPS
                try:
                    found = await sum_up(replace(part.query(), most_groups=most))
                except TooManyGroups as error:
                    if count == 1:
                        raise _too_many_rows() from error
                    count //= 2
                    continue
                await self.places.run(partial(gathering.add, found))
                first += count
                # As many bins next time as this result suggests.
                count = max(1, min(2 * count, count * MANY_GROUPS // max(1, 2 * len(found.groups))))
                del found  # before the next query
            _check_cells(*gathering.size)
            yield await self.places.run(gathering.grid)

    async def read(self, request: web.BaseRequest, query: RecordQuery) -> list[Record]:
        """Return the records of a query for the sender of a request."""
        async with self.places.one(client_key(request)), self.records(request).stream(query) as pages:
            documents = [document async for page in pages for document in page]
        return await self.places.run(lambda: list(map(decode_record, documents)))

    async def count(self, request: web.BaseRequest, where: Condition, sets: Sequence[CellSet]) -> int | None:
        """Return how many records meet a condition; None if roll-ups cannot tell, since a count would read them all.

        Args:
            request: the request, whose sender limits the records.
            where: the condition.
            sets: all sets of cells. One that is being filled cannot tell either.
        """
        principal = principal_of(request)
        restriction = None if principal is None else principal.visible()
        filled = [each for each in sets if each.position >= sets[0].position]
        scope = scope_of(AggregateQuery(AllOf((where, restriction or AllOf()))), filled)
        if scope is None:
            return None
        is_of_stopped = scope.first is not None or scope.last is not None
        query = AggregateQuery(where, as_of=None if is_of_stopped else self.now())
        async with self.places.few(client_key(request), self.records(request).aggregate, query) as found:
            return sum(each.records for each in found.groups)

    async def rows_and_bins(
        self, request: web.BaseRequest, question: Question, most: int = MOST_COLOURS
    ) -> tuple[Report, Report]:
        """Return the report without bins, and the report with bins, which keeps only the largest rows.

        A year has hundreds of bins for each row, but a chart or table shows few rows: the ``most`` largest. All others
        are summed into one row.
        """
        rows = await self._whole(request, replace(question, bin=None))
        labels = [row.label for row in rows.rows[:most]]
        named = tuple(dict.fromkeys([label for label in labels if label is not None]))
        if question.counts_users:  # the users of the other rows are not those of all minus the named ones
            return rows, await self._whole(request, question)
        if rows.row_count <= most or (None in labels and rows.others is None):
            return rows, await self._whole(request, question)
        chosen = await self._whole(request, replace(question, labels=named))
        # Queried last, so that the totals include every record of the other two reports.
        totals = await self._whole(request, replace(question, by=None, then=None))
        return rows, condense(rows, chosen, totals, most)

    async def former(self, request: web.BaseRequest, question: Question, now: datetime) -> Sequence[tuple[str, Report]]:
        """Return reports of the previous period and of the same period a year ago, each with its name.

        If the question's period is not over, these periods end at the same point. They have no groups and no bins. An
        empty report of a year ago is left out.
        """
        if (window := question.window) is None:
            return ()
        previous, year = previous_period(window), year_before(window)
        windows = [("A year before", "Same days a year before", year, up_to_same_day(year, window, now))]
        if previous != year:
            so_far = up_to_same_day(previous, window, now)
            windows.insert(0, ("Previous period", "Same days of the previous period", previous, so_far))
        found: list[tuple[str, Report]] = []
        for name, name_so_far, former, part in windows:
            report = await self.report(request, replace(question, by=None, then=None, bin=None, window=part))
            if former != year or report.rows:
                found.append((name if part == former else name_so_far, report))
        return found

    async def whole(self, request: web.BaseRequest, report: Report) -> Figure | None:
        """Return the figure that is 100 % in a report's shares; None if there are no shares.

        It is the report's total, but for senders with a role that shows only some records the sum over all records of
        the period, if the role has ``totals``. That sum has no other filter, so that it never shows a single user's,
        and is of days of the page's time zone, since those of another would differ by an hour's jobs.
        """
        question, principal = report.question, principal_of(request)
        if question.measures[0].ratio:
            return None
        if principal is None or principal.visible() is None:
            return report.total[0]
        if self.of_lake or question.zone != self.zone or (aggregate := self.totals(request)) is None:
            return None
        everything = replace(question, by=None, then=None, bin=None, filters=(), among=AllOf(), labels=None)
        async with self.places.few(client_key(request), aggregate, everything.query()) as found:
            return make_report(everything, found).total[0]

    @property
    def measures(self) -> Sequence[Measure]:
        """The available measures. Those of CO2 need a configured intensity."""
        return [each for each in MEASURES.values() if self.co2_per_kwh is not None or not each.needs_intensity]

    def axis(self, report: Report) -> TimeAxis:
        """Return every bin of the report's window up to the present, with or without records."""
        return lay_out(report.question, bins_of(report.question, self.clock(), report.bins))

    def pledges_for(self, request: web.BaseRequest, question: Question) -> Sequence[Pledge]:
        """Return the pledges that may be compared with a question's figures.

        The sender of the request must be allowed to see every record that the question is about. Others would see the
        pledges of other sites and groups, and compare them with a part of the usage. A role for one group or one site
        asks about nothing else, also without a filter.
        """
        principal = principal_of(request)
        if principal is None:
            return self.pledges
        wanted = {question.keys.key(name): value for name, value in question.filters}
        rows = [role.rows or {} for role in principal.having(Permission.READ)]
        if any(all(wanted.get(key) in values for key, values in each.items()) for each in rows):
            return self.pledges
        site, group = [question.keys.key(name) for name in ("site", "group")]
        if len(rows) != 1 or rows[0].keys() - {site, group} or any(len(values) != 1 for values in rows[0].values()):
            return ()
        own = Scope(*[next(iter(rows[0].get(key, ())), None) for key in (site, group)])
        return [pledge for pledge in self.pledges if own.includes(pledge.scope)]


def bins_of(question: Question, now: datetime, known: Sequence[date] = ()) -> Sequence[date]:
    """Return every bin of a question's window up to the present, or to the last bin in ``known``."""
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
        begin = unit.next_first_day(begin)
    return bins


def describe_partial_bins(axis: TimeAxis) -> str | None:
    """Return the names of the partial (hatched) bins as text; None if there are none."""
    names = [axis.titles[at] for at in axis.partial]
    return f"Incomplete (hatched bars, hollow dots): {'; '.join(names)}." if names else None


def _part(question: Question, bins: Sequence[date], first: int, end: int) -> Question:
    """Return the question about the bins from ``first`` to ``end`` (exclusive)."""
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


def compare(report: Report, former: Sequence[tuple[str, Report]], at: int = 0) -> list[tuple[str, str | None]]:
    """Return for each former report the text of its figure, and the change from it to the present figure."""
    measure, present = report.question.measures[at], report.total[at]
    return [
        (
            f"{name}: {with_unit(each.total[at].format(measure.unit), measure.unit)}",
            None if measure.ratio else present.format_change(each.total[at]),
        )
        for name, each in former
    ]


_RANKED: Final = 20


class Charts(msgspec.Struct, frozen=True):
    """Draws the charts of reports."""

    path: Callable[[str], str]

    def chart(self, report: Report, view: View, bins: TimeAxis, pledge: Sequence[float | None] = ()) -> Picture | None:
        """Return the chart of the view; without bins, a ranking of the rows."""
        unit, measure = report.question.bin, report.question.measures[0]
        if unit is None:
            ranked: list[tuple[str, str, Mark]] = []
            for row in report.rows[:_RANKED]:
                name, value = row.name or "All", row.total[0].value
                link = view.link_of_row(report.question, row.labels)
                figure, size = row.total[0].format(measure.unit), nearest_float(value or Fraction(0))
                ranked.append(
                    (name, figure, Mark(size, f"{name}: {figure} {measure.unit}".strip(), link and self.path(link)))
                )
            return charts.ranking(measure.title, ranked)
        if view.chart == "days":
            return heat_map(measure.title, self._days(report, view, bins), measure.unit)
        usual = charts.lines if measure.ratio else charts.bars
        draw = {"areas": charts.areas, "lines": charts.lines, "bars": charts.bars}.get(view.chart, usual)
        if measure.ratio:  # ratios do not add up
            draw = charts.lines
        links: list[str] = []
        if unit is not CalendarUnit.DAY:
            links += [self.path(zoom(view, *span)) for span in zip(bins.begins, bins.ends, strict=True)]
        days = [day.isoformat() for day in (*bins.begins, *bins.ends[-1:])]
        axis = Axis(bins.labels, links, days, measure.unit, bins.partial)
        return draw(measure.title, axis, self.series(report, view, bins), pledge)

    def bars(self, title: str, report: Report, view: View, bins: TimeAxis) -> Picture | None:
        """Return the bars of a report with bins; the axis has no links."""
        axis = Axis(bins.labels, unit=report.question.measures[0].unit, partial=bins.partial)
        return charts.bars(title, axis, self.series(report, view, bins))

    def rows(self, report: Report) -> list[tuple[str, Row, int]]:
        """Return names, rows and colours. All but the largest rows are summed into one."""
        rows, rest, count = report.largest(MOST_COLOURS)
        found = [(row.name or "All", row, at) for at, row in enumerate(rows)]
        return found if rest is None else [*found, (f"{count} more", rest, OTHERS)]

    def series(self, report: Report, view: View, bins: TimeAxis) -> list[Series]:
        """Return the rows as series whose marks link to their records."""
        measure, spans = report.question.measures[0], _spans(report, bins)
        made: list[Series] = []
        for name, row, colour in self.rows(report):
            has_links = colour != OTHERS and view.source != LAKE
            url = self._records(view.of_row(report.question, row.labels)) if has_links else None
            marks: list[Mark] = []
            cells = [row.cells.get(begin) for begin in bins.begins]
            for cell, label, span in zip(cells, bins.titles, spans, strict=True):
                if cell is None or not (value := cell[0].value):
                    marks.append(_GAP)
                    continue
                title = f"{name}, {label}: {cell[0].format(measure.unit)} {measure.unit}".rstrip()
                marks.append(Mark(nearest_float(value), title, None if url is None else url + span))
            made.append(Series(name, colour, marks))
        return made

    def _records(self, view: View | None) -> str | None:
        """Return the URL of the list of a view's records, ready for the days of a bin to be appended."""
        if view is None:
            return None
        url = self.path(view.jobs(**{"period": None, "from": None, "to": None}))
        return f"{url}&" if "?" in url else f"{url}?"

    def _days(self, report: Report, view: View, bins: TimeAxis) -> Mapping[date, Mark]:
        unit, found = report.question.measures[0].unit, dict[date, Mark]()
        url = self._records(view) or ""
        for day, span in zip(bins.begins, _spans(report, bins), strict=True):
            cell = report.totals.get(day)
            value = None if cell is None else cell[0].value
            figure = cell[0].format(unit) if cell is not None else "0"
            link = url + span if value and view.source != LAKE else None
            found[day] = Mark(
                None if value is None else nearest_float(value), f"{day:%a %-d %b %Y}: {figure} {unit}".strip(), link
            )
        return found


def _spans(report: Report, bins: TimeAxis) -> Sequence[str]:
    """Return for each bin its days within the report's window, as parameters of the list of records."""
    window = report.question.window
    start, stop = (date.min, date.max) if window is None else (window.start.date(), window.stop.date())
    return [
        f"from={max(begin, start)}&to={min(end, stop) - timedelta(days=1)}"
        for begin, end in zip(bins.begins, bins.ends, strict=True)
    ]


def zoom(view: View, first: date, end: date, unit: str | None = None) -> str:
    """Return the URL of the same view of the days from ``first`` to ``end`` (exclusive), by default with other bins."""
    last = end - timedelta(days=1)
    return view.url(USAGE, **{"period": None, "bin": unit, "from": first.isoformat(), "to": last.isoformat()})


def moves(view: View, window: Window, today: date) -> list[tuple[str, str]]:
    """Return names and URLs of the views earlier than, around and later than a view."""
    first, end, unit = window.start.date(), window.stop.date(), view.given.get("bin")
    before, behind = previous_period(window).start.date(), next_period(window).stop.date()
    before, behind = max(before, FIRST_DAY), min(behind, LAST_DAY)
    found = [("Earlier", zoom(view, before, first, unit))] if before < first else []
    found.append(("Zoom out", zoom(view, before, behind, unit if unit == NO_BIN else None)))
    return [*found, ("Later", zoom(view, end, behind, unit))] if end <= today else found
