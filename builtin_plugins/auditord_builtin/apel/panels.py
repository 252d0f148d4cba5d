"""The panel of the plugin ``apel``: the months of each site, as the saved state has them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from auditord_builtin.apel.metrics import stages
from auditord_builtin.apel.state import MonthState, SiteState, read_state
from auditord_hookspecs import CellValue, Chart, Column, Panel, PanelContext, PanelPart, Series, Table

_COLUMNS: Final = ("Site", "Month", "Stored", "Reported", "Acknowledged", "Waiting messages", "Last acknowledged")
_MONTHS: Final = 24
_MOST_SITES: Final = 8
_MOST_NOTES: Final = 10


async def show_months(context: PanelContext) -> Sequence[PanelPart]:
    """A chart and a table of the jobs of the last months, and the reasons why some are not reported."""
    sites = read_state(await context.state()).sites
    if not sites:
        return ["Nothing was reported yet."]
    rows = [row for site, state in sites.items() for row in _rows(site, state)]
    problems = [each for state in sites.values() for month in state.months.values() for each in month.problems]
    return [_chart(sites), Table([Column(name) for name in _COLUMNS], rows), *problems[-_MOST_NOTES:]]


def _rows(site: str, state: SiteState) -> Iterator[Sequence[CellValue]]:
    jobs = stages(state)
    for text in sorted({month for month, _ in jobs}, reverse=True)[:_MONTHS]:
        month = state.months.get(text, MonthState())
        waiting = 0 if month.outbox is None else len(month.outbox.messages)
        counts = [jobs[text, stage] for stage in ("stored", "reported", "acknowledged")]
        yield (site, text, *counts, waiting, month.acknowledged)


def _chart(sites: Mapping[str, SiteState]) -> Chart:
    jobs = {site: stages(state) for site, state in list(sites.items())[:_MOST_SITES]}
    months = sorted({month for counts in jobs.values() for month, _ in counts})[-_MONTHS:]
    series = [Series(site, [counts[month, "acknowledged"] for month in months]) for site, counts in jobs.items()]
    return Chart("Jobs that APEL has acknowledged", months, series, "jobs")


PANELS: Final = (Panel("apel_months", "Months at APEL", show_months, "apel", whole=True),)
