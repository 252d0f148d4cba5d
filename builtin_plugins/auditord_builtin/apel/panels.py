"""The panel of the plugin ``apel``: the months of each site, as the saved state has them."""

from collections.abc import Mapping, Sequence
from typing import Final

from auditord_builtin.apel.metrics import stages
from auditord_builtin.apel.showing import MonthAtApel, months_at_apel
from auditord_builtin.apel.state import SiteState, read_state
from auditord_hookspecs import CellValue, Chart, Column, PanelContext, PanelPart, Series, Table

_COLUMNS: Final = ("Site", "Month", "Stored", "Reported", "Acknowledged", "Waiting messages", "Last acknowledged")
_MONTHS: Final = 24
_MOST_SITES: Final = 8
_MOST_NOTES: Final = 10


async def show_months(context: PanelContext) -> Sequence[PanelPart]:
    """A chart and a table of the jobs of the last months, and the reasons why some are not reported."""
    state = read_state(await context.state())
    if not (sites := state.sites):
        return ["Nothing was reported yet."]
    rows = [row for site in sites for row in _rows(list(months_at_apel(state, [site])))]
    problems = [each for site in sites.values() for month in site.months.values() for each in month.problems]
    return [_chart(sites), Table([Column(name) for name in _COLUMNS], rows), *problems[-_MOST_NOTES:]]


def _rows(months: Sequence[MonthAtApel]) -> Sequence[Sequence[CellValue]]:
    return [
        (each.site, each.month, each.stored, each.reported, each.acknowledged, each.waiting, each.last_acknowledged)
        for each in reversed(months[-_MONTHS:])
    ]


def _chart(sites: Mapping[str, SiteState]) -> Chart:
    jobs = {site: stages(state) for site, state in list(sites.items())[:_MOST_SITES]}
    months = sorted({month for counts in jobs.values() for month, _ in counts})[-_MONTHS:]
    series = [Series(site, [counts[month, "acknowledged"] for month in months]) for site, counts in jobs.items()]
    return Chart("Jobs that APEL has acknowledged", months, series, "jobs")
