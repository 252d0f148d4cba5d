"""Show the reported summaries: ``auditord apel show``, and the panel on the status page."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

import msgspec

from auditord_builtin.apel.config import ApelConfig, MessageType
from auditord_builtin.apel.jobs import individual_jobs
from auditord_builtin.apel.messages import JobRow, Problem, render, render_jobs, sync_message
from auditord_builtin.apel.metrics import stages
from auditord_builtin.apel.state import MonthState, ReportedState, SiteState, read_state
from auditord_builtin.apel.summaries import accelerator_messages, summaries
from auditord_hookspecs import CellValue, Chart, Column, PanelContext, PanelPart, PluginContext, Records, Series, Table
from auditord_hookspecs.months import Month

_AT_ONCE: Final = 1_000
_LINE: Final = "{:<24} {:<7} {:>10} {:>10} {:>12} {:>8}  {}"


class MonthAtApel(msgspec.Struct, frozen=True):
    """The numbers of jobs and waiting messages of a site's month, as of the last run."""

    site: str
    month: str
    stored: int
    reported: int
    acknowledged: int
    waiting: int
    last_acknowledged: datetime | None
    problems: Sequence[str] = ()


def months_at_apel(state: ReportedState, sites: Sequence[str]) -> Iterator[MonthAtApel]:
    """Yield the saved months of the sites."""
    for site, jobs in ((site, stages(state.sites[site])) for site in sites if site in state.sites):
        for text in sorted({month for month, _ in jobs}):
            month = state.sites[site].months.get(text, MonthState())
            waiting = 0 if month.outbox is None else len(month.outbox.messages)
            counts = {stage: jobs[text, stage] for stage in ("stored", "reported", "acknowledged")}
            yield MonthAtApel(
                site,
                text,
                **counts,
                waiting=waiting,
                last_acknowledged=month.acknowledged,
                problems=month.problems,
            )


def overview(context: PluginContext, sites: Sequence[str]) -> Iterator[str]:
    """Yield one line for each site and month, then the reasons for jobs that are not reported."""
    state = read_state(context.state)
    if not any(site in state.sites for site in sites):
        yield "nothing was reported yet"
        return
    months = list(months_at_apel(state, sites))
    yield _LINE.format("site", "month", "stored", "reported", "acknowledged", "waiting", "last acknowledged")
    for each in months:
        moment = "" if each.last_acknowledged is None else f"{each.last_acknowledged:%Y-%m-%d %H:%M:%S}Z"
        counts = (each.stored, each.reported, each.acknowledged, each.waiting)
        yield _LINE.format(each.site, each.month, *counts, moment).rstrip()
    yield from (f"! {problem}" for each in months for problem in each.problems)  # which name site and month


async def shown(config: ApelConfig, records: Records, site: str, month: Month) -> AsyncIterator[str]:
    """Yield the messages of a site and month, then the problems.

    Raises:
        ValueError: the site is not one of ``sites_to_report``.
    """
    if site not in config.site.sites_to_report:
        raise ValueError(f"{site} is not reported; sites_to_report has {', '.join(config.site.sites_to_report)}")
    content = _summaries if config.message_type is MessageType.SUMMARIES else _jobs
    async for text in content(config, records, site, month):
        yield text
    messages, problems = await accelerator_messages(config, records, site, month, config.messaging.max_message_size)
    for message in messages:
        yield message.text
    for line in _listed(problems):
        yield line


async def _summaries(config: ApelConfig, records: Records, site: str, month: Month) -> AsyncIterator[str]:
    answer = await summaries(config, records, site, month)
    most = config.messaging.max_message_size
    for message in (*sync_message(answer.counts, most), *render(answer.rows, most)):
        yield message.text
    for line in _listed(answer.problems):
        yield line


async def _jobs(config: ApelConfig, records: Records, site: str, month: Month) -> AsyncIterator[str]:
    rows: list[JobRow] = []
    problems: list[Problem] = []
    async for job in individual_jobs(config, records, month.window, (site,)):
        if isinstance(job, Problem):
            problems.append(job)
            continue
        rows.append(job)
        if len(rows) == _AT_ONCE:
            for message in render_jobs(rows, config.messaging.max_message_size):
                yield message.text
            rows.clear()
    for message in render_jobs(rows, config.messaging.max_message_size):
        yield message.text
    for line in _listed(problems):
        yield line


def _listed(problems: Sequence[Problem]) -> Sequence[str]:
    lines = [f"# {problem}\n" for problem in islice(problems, _AT_ONCE)]
    more = len(problems) - len(lines)
    return [*lines, f"# and {more} more\n"] if more else lines


_COLUMNS: Final = ("Site", "Month", "Stored", "Reported", "Acknowledged", "Waiting messages", "Last acknowledged")
_MONTHS: Final = 24
_MOST_SITES: Final = 8
_MOST_NOTES: Final = 10


async def show_months(context: PanelContext) -> Sequence[PanelPart]:
    """Return the panel: a chart and a table of the last months, and the reasons why jobs are not reported."""
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
