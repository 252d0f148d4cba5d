"""The reported state: for each site and month (or day), APEL's rows, the last report, and waiting messages.

The state is saved before and after each message. A row is saved in ``there`` before it is first sent, so that every row
at APEL can be withdrawn, even after a crash. Metrics, panel and ``auditord apel show`` read the state.
"""

import base64
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, TypeVar

import msgspec

from auditord_builtin.apel import metrics
from auditord_builtin.apel.messages import Message, SummaryRow
from auditord_hookspecs import (
    AuditordError,
    CellValue,
    Chart,
    Column,
    PanelContext,
    PanelPart,
    PluginContext,
    Series,
    Table,
)
from auditord_hookspecs.months import Month

T = TypeVar("T")

VERSION: Final = 1


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """The number of rows or messages, and their compressed JSON in base64. The JSON is very repetitive."""

    text: str = ""
    size: int = 0


def pack(things: Sequence[SummaryRow | Message]) -> Packed:
    return Packed(base64.b64encode(zlib.compress(msgspec.json.encode(things))).decode(), len(things))


def unpack(packed: Packed, kind: type[T]) -> Sequence[T]:
    if not packed.size:
        return ()
    data = zlib.decompress(base64.b64decode(packed.text))
    return msgspec.json.decode(data, type=list[kind])  # type: ignore[valid-type] # a type in a variable


class Outbox(msgspec.Struct, frozen=True, kw_only=True):
    """A complete report of a site's month that waits to be sent.

    Args:
        digest: the digest of the reported summary.
        jobs: the number of jobs in the summary.
        rows: the rows that APEL will have after all messages, without amounts.
        messages: the messages that are not acknowledged yet, in order.
        ids: the broker's ids of acknowledged messages.
    """

    digest: str
    jobs: int
    rows: Packed
    messages: tuple[Packed, ...]
    ids: tuple[str, ...] = ()


class MonthState(msgspec.Struct, frozen=True, kw_only=True):
    """A site's month. ``digest`` to ``acknowledged`` describe the last fully acknowledged report.

    Args:
        there: the rows for which APEL may have amounts, without the amounts.
        hosts: the submit hosts for which APEL may have a number of jobs from a sync message.
        ids: the broker's ids of that report's messages.
        stored: the number of stored jobs in the last run.
        reportable: the number of stored jobs in the summary.
        problems: the reasons why other jobs could not be reported.
        outbox: the report that waits to be sent.
    """

    there: Packed = Packed()
    hosts: tuple[str, ...] = ()
    digest: str | None = None
    jobs: int = 0
    ids: tuple[str, ...] = ()
    acknowledged: datetime | None = None
    stored: int = 0
    reportable: int = 0
    problems: tuple[str, ...] = ()
    outbox: Outbox | None = None


class DayState(msgspec.Struct, frozen=True, kw_only=True):
    """A site's individual jobs that ended on a UTC day.

    Args:
        totals: the digest of the store's sums when all jobs were last sent (``figures`` in the saved state).
        jobs: the number of acknowledged jobs.
        marks: eight bytes for each acknowledged job, in base64; None after the marks were dropped.
        stored: the number of stored jobs in the last run.
        reportable: the number of stored jobs that could be reported.
        settings: the digest of the options with which jobs were left out; None if no job was.
    """

    totals: str | None = msgspec.field(default=None, name="figures")
    jobs: int = 0
    marks: str | None = ""
    stored: int = 0
    reportable: int = 0
    settings: str | None = None


class SiteState(msgspec.Struct, frozen=True, kw_only=True):
    """A site: summaries by month, individual jobs by day, and the UTC day of the last full check (``looked``).

    ``told_by``: the site ids and meta keys that told its jobs from others in the last run.
    """

    looked: date | None = None
    told_by: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    months: Mapping[str, MonthState] = msgspec.field(default_factory=dict[str, MonthState])
    days: Mapping[str, DayState] = msgspec.field(default_factory=dict[str, DayState])


class ReportedState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state.

    Args:
        since: the last ``publish_since``, in case the option is removed.
        sent: the number of messages ever published, for their labels.
        sites: the sites by their names in GOCDB.
    """

    version: int = VERSION
    since: datetime | None = None
    sent: int = 0
    sites: Mapping[str, SiteState] = msgspec.field(default_factory=dict[str, SiteState])


def read_state(state: Any) -> ReportedState:  # Any: the JSON that was saved
    """Return the saved state.

    Raises:
        AuditordError: a newer version of auditord saved it.
    """
    if state is None:
        return ReportedState()
    if state.get("version") != VERSION:
        raise AuditordError("the state of this plugin was written by a newer auditord: upgrade this one")
    return msgspec.convert(state, ReportedState)


class SavedState:
    """The state of one run, saved with each change."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self.reported = read_state(context.state)

    def site(self, site: str) -> SiteState:
        return self.reported.sites.get(site, SiteState())

    def month(self, site: str, month: Month) -> MonthState:
        return self.site(site).months.get(str(month), MonthState())

    def day(self, site: str, day: date) -> DayState:
        return self.site(site).days.get(str(day), DayState())

    async def save_month(self, site: str, month: Month, state: MonthState, *, sent: int = 0) -> None:
        """Save a month, and add ``sent`` to the number of published messages."""
        await self.save_site(site, sent, months={**self.site(site).months, str(month): state})

    async def save_site(self, site: str, sent: int = 0, **changes: Any) -> None:  # Any: fields
        """Save changes of a site, and add ``sent`` to the number of published messages."""
        changed = msgspec.structs.replace(self.site(site), **changes)
        await self.save(sites={**self.reported.sites, site: changed}, sent=self.reported.sent + sent)

    async def save(self, **changes: Any) -> None:  # Any: fields
        reported = msgspec.structs.replace(self.reported, **changes)
        await self._context.save_state(msgspec.to_builtins(reported))
        self.reported = reported


def show_state(task: str, state: ReportedState) -> None:
    for site, reported in state.sites.items():
        for (month, stage), jobs in stages(reported).items():
            metrics.JOBS.labels(task, site, month, stage).set(jobs)
        outboxes = [month.outbox for month in reported.months.values()]
        metrics.WAITING.labels(task, site).set(sum(len(outbox.messages) for outbox in outboxes if outbox is not None))
        if moments := [month.acknowledged for month in reported.months.values() if month.acknowledged is not None]:
            metrics.ACKNOWLEDGED.labels(task, site).set(max(moments).timestamp())


def stages(state: SiteState) -> Counter[tuple[str, str]]:
    """Return the number of jobs by month and stage: stored, reported, acknowledged."""
    jobs: Counter[tuple[str, str]] = Counter()
    known: tuple[tuple[str, MonthState | DayState], ...] = (*state.months.items(), *state.days.items())
    for text, each in known:
        jobs[text[:7], "stored"] += each.stored
        jobs[text[:7], "reported"] += each.reportable
        jobs[text[:7], "acknowledged"] += each.jobs
    return jobs


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


_COLUMNS: Final = ("Site", "Month", "Stored", "Reported", "Acknowledged", "Waiting messages", "Last acknowledged")
_MONTHS: Final = 24
_MOST_SITES: Final = 8
_MOST_NOTES: Final = 10


async def show_months(context: PanelContext) -> Sequence[PanelPart]:
    """Return the panel: a chart and a table of the last months, and the reasons why jobs are not reported."""
    state = read_state(await context.state())
    if not (sites := state.sites):
        return ["Nothing has been reported yet."]
    rows: list[Sequence[CellValue]] = []
    for site in sites:
        rows += [
            (each.site, each.month, each.stored, each.reported, each.acknowledged, each.waiting, each.last_acknowledged)
            for each in reversed(list(months_at_apel(state, [site]))[-_MONTHS:])
        ]
    jobs = {site: stages(each) for site, each in list(sites.items())[:_MOST_SITES]}
    months = sorted({month for counts in jobs.values() for month, _ in counts})[-_MONTHS:]
    series = [Series(site, [counts[month, "acknowledged"] for month in months]) for site, counts in jobs.items()]
    chart = Chart("Jobs that APEL has acknowledged", months, series, "jobs")
    problems = [each for site in sites.values() for month in site.months.values() for each in month.problems]
    return [chart, Table([Column(name) for name in _COLUMNS], rows), *problems[-_MOST_NOTES:]]
