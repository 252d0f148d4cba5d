"""Charts of a report of usage: stacked bars and areas, lines, a ranking, a heat map of days."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Final

from auditord.reporting import Report, Row
from auditord.reporting.bins import part_of
from auditord.reporting.periods import FIRST_DAY, LAST_DAY
from auditord.reporting.report import following
from auditord.web.api.lake_source import LAKE
from auditord.web.page import charts
from auditord.web.page.charts import Axis, Series
from auditord.web.page.drawing import Mark, Picture
from auditord.web.page.figures import MOST_COLOURS, OTHERS, series
from auditord.web.page.heat_map import heat_map
from auditord.web.page.numbers import begin_of_bin, shown
from auditord.web.page.query_string import View
from auditord_hookspecs.aggregates import CalendarUnit

_RANKED: Final = 20
_JOBS: Final = "/jobs"
_KEPT: Final = frozenset({"site", "group", "user", "timezone"})

Text = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Charts:
    """Draws reports.

    Args:
        text: of the catalogue.
        path: of ours as a browser asks for it.
    """

    text: Text
    path: Callable[[str], str]

    def chart(
        self, report: Report, view: View, bins: Sequence[date], pledge: Sequence[float | None] = ()
    ) -> Picture | None:
        """The chart that the view asks for; without bins, a ranking of the rows."""
        unit, measure = report.question.bin, report.question.measures[0]
        title = self.text(f"measure.{measure.name}")
        if unit is None:
            return charts.ranking(title, self._ranked(report, view))
        if view.chart == "days":
            return heat_map(title, self._days(report, view, bins), measure.unit)
        usual = charts.lines if measure.ratio else charts.bars
        draw = {"areas": charts.areas, "lines": charts.lines, "bars": charts.bars}.get(view.chart, usual)
        if measure.ratio:  # ratios do not add up
            draw = charts.lines
        axis = replace(self._axis(view, bins, unit, measure.unit), partial=partial_places(report, bins))
        return draw(title, axis, self.series(report, view, bins), pledge)

    def rows(self, report: Report) -> list[tuple[str, Row, int]]:
        """The rows that have a colour, with their names; all others are one row."""
        rows, rest, count = report.largest(MOST_COLOURS)
        found = [(self.name(row, report), row, at) for at, row in enumerate(rows)]
        return found if rest is None else [*found, (self.text("usage.more", count=count), rest, OTHERS)]

    def name(self, row: Row, report: Report) -> str:
        """The name of a row."""
        return self.text("usage.all") if report.question.by is None else row.label or self.text("usage.none")

    def series(self, report: Report, view: View, bins: Sequence[date]) -> list[Series]:
        """The rows as series, each mark of which leads to its records."""
        rows = self.rows(report)
        labels = {name: row.label for name, row, colour in rows if colour != OTHERS}
        spans = _spans(report, bins)

        def links(name: str) -> Callable[[date], str] | None:
            label = labels.get(name)
            if (label is None and report.question.by is not None) or view.by == "size" or view.source == LAKE:
                return None
            url = self._records(report, view, label)
            return lambda begin: url + spans[begin]

        return series(rows, bins, report, links)

    def _records(self, report: Report, view: View, label: str | None) -> str:
        """The list of the records of a label, to which the ends of a bin are added."""
        chosen = View({key: value for key, value in view.given.items() if key in _KEPT}, view.labels)
        by = report.question.by
        url = self.path(chosen.url(_JOBS) if label is None or by is None else chosen.narrowed(_JOBS, by, label))
        return f"{url}&" if "?" in url else f"{url}?"

    def _ranked(self, report: Report, view: View) -> list[tuple[str, str, Mark]]:
        unit, found = report.question.measures[0].unit, list[tuple[str, str, Mark]]()
        for row in report.rows[:_RANKED]:
            name, value, label = self.name(row, report), row.total[0].value, row.label
            link = None if label is None or view.by == "size" else self.path(view.narrowed("/usage", view.by, label))
            figure = shown(row.total[0], unit)
            found.append((name, figure, Mark(float(value or 0), f"{name}: {figure} {unit}".strip(), link)))
        return found

    def _days(self, report: Report, view: View, bins: Sequence[date]) -> Mapping[date, Mark]:
        unit, found = report.question.measures[0].unit, dict[date, Mark]()
        url, spans = self._records(report, view, None), _spans(report, bins)
        for day in bins:
            cell = report.totals.get(day)
            value = None if cell is None else cell[0].value
            figure = shown(cell[0], unit) if cell is not None else "0"
            link = url + spans[day] if value and view.source != LAKE else None
            found[day] = Mark(
                None if value is None else float(value), f"{day:%a %-d %b %Y}: {figure} {unit}".strip(), link
            )
        return found

    def _axis(self, view: View, bins: Sequence[date], unit: CalendarUnit, of_values: str) -> Axis:
        """The axis of time, whose labels lead closer to their bins."""
        ends = [following(begin, unit) for begin in bins]
        links = (
            []
            if unit is CalendarUnit.DAY
            else [self.path(zoomed(view, *span)) for span in zip(bins, ends, strict=True)]
        )
        days = [begin.isoformat() for begin in (*bins, *ends[-1:])]
        return Axis([begin_of_bin(begin, unit) for begin in bins], links, days, of_values)


def partial_places(report: Report, bins: Sequence[date]) -> Sequence[int]:
    """Return the places of the bins of which a report has a part alone."""
    return [at for at, begin in enumerate(bins) if part_of(report.question, begin) is not None]


def _spans(report: Report, bins: Sequence[date]) -> Mapping[date, str]:
    """The days of each bin, as the query string of a list has them."""
    if (unit := report.question.bin) is None:
        return {}
    return {begin: f"from={begin}&to={following(begin, unit) - timedelta(days=1)}" for begin in bins}


def zoomed(view: View, first: date, end: date) -> str:
    """The view of other days, from one up to another."""
    last = end - timedelta(days=1)
    return view.url("/usage", **{"period": None, "bin": None, "from": first.isoformat(), "to": last.isoformat()})


def moves(view: View, first: date, end: date, today: date) -> list[tuple[str, str]]:
    """Names and URLs of the views beside one and around it."""
    length = end - first
    before, behind = max(first - length, FIRST_DAY), min(end + length, LAST_DAY)
    found = [("earlier", zoomed(view, before, first))] if before < first else []
    found.append(("out", zoomed(view, before, behind)))
    return [*found, ("later", zoomed(view, end, behind))] if end <= today else found
