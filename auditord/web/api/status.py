"""``GET /api/v1/instances``, ``GET /api/v1/health`` and ``/api/v1/site_reports``: the state of daemons."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, TypeAlias

import msgspec
from aiohttp import web

from auditord import __version__
from auditord.audit.site_reports import SiteReports
from auditord.client.site_reports import PATH, ReportAnswer, SiteReport
from auditord.database import memory
from auditord.errors import StoreUnavailable
from auditord.health import Health, TaskHealth
from auditord.ingest import Ingest
from auditord.spool import LastRun, Spool
from auditord.spool.encoding import SpoolStatistics
from auditord.store.protocol import Reads
from auditord.web.answers import JSON, json_answer
from auditord.web.api.operation import BODY_PROBLEMS, NAME, decode_body
from auditord.web.api.shapes import (
    HealthReport,
    HeldTurn,
    Instance,
    Instances,
    Instant,
    Part,
    QuarantineCount,
    Queue,
    Run,
)
from auditord.web.metrics import fault_of
from auditord.web.operations import Operation, Parameter
from auditord.web.problem_shapes import doc
from auditord.web.problems import Refused
from auditord.web.record_query import about
from auditord.web.requests import principal_name, principal_of, read_target
from auditord_hookspecs import Permission
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import format_time

_Turns: TypeAlias = Mapping[str, memory.HeldTurn]


class StatusHandlers(msgspec.Struct, frozen=True):
    health: Health
    spool: Spool
    ingest: Ingest
    not_enabled: Sequence[TaskHealth]

    @Operation(
        "GET",
        "/api/v1/instances",
        "listInstances",
        "See the state of each collector, plugin and sender.",
        Permission.OPERATE,
        {200: {JSON: Instances}},
        problems=(503,),
    )
    async def instances(self, _request: web.BaseRequest) -> web.StreamResponse:
        return json_answer(Instances(await self.instance_states()))

    async def instance_states(self) -> list[Instance]:
        """Return the state of every instance, disabled ones last."""
        last = await self.spool.last_runs()
        try:
            held = {turn.task: turn for turn in await self.ingest.store.turns()}
        except StoreUnavailable:  # the health report shows it
            held = dict[str, memory.HeldTurn]()
        known = [
            _instance(task, () if task.section == "senders" else last.get(task.task, ()), held, enabled=True)
            for task in self.health.tasks()
        ]
        others = [_instance(task, (), held, enabled=False) for task in self.not_enabled]
        return [*known, *others]

    @Operation(
        "GET",
        "/api/v1/health",
        "getHealth",
        "See the state of the daemon; 503 if a post would not be durable now.",
        Permission.METRICS,
        {200: {JSON: HealthReport}, 503: {JSON: HealthReport}},
    )
    async def show_health(self, _request: web.BaseRequest) -> web.StreamResponse:
        """Send the health report; 503 if a post would not be durable now."""
        report = await self.health_report()
        return json_answer(report, 200 if report.durable else 503)

    async def health_report(self) -> HealthReport:
        store, spool = await asyncio.gather(_part(self.ingest.store.check), _part(self.spool.check))
        failing = [task.task for task in self.health.tasks() if task.last_error is not None]
        durable = store.works or (spool.works and bool(self.ingest.destinations))
        try:
            statistics = await self.spool.statistics()
        except StoreUnavailable:
            statistics = SpoolStatistics()
        return HealthReport(
            status="failing" if not durable else "ok" if store.works and spool.works and not failing else "degraded",
            version=__version__,
            durable=durable,
            store=store,
            spool=spool,
            records=await self._count("total"),
            differences=await self._count("differences"),
            queues=[
                Queue(sender, queue.entries, _time(queue.oldest), queue.attempts)
                for sender, queue in statistics.queues.items()
            ],
            quarantine=[QuarantineCount(task, stage, count) for (stage, task), count in statistics.quarantined.items()],
            gaps={site: format_time(last) for site, last in self.health.gaps.items()},
            failing=failing,
            refused_hosts=sorted(self.health.refused_hosts),
        )

    async def _count(self, name: str) -> int | None:
        try:
            count: int = getattr(await self.ingest.store.counts(), name)
        except StoreUnavailable:
            return None
        return count


async def _part(check: Callable[[], Awaitable[object]]) -> Part:
    fault = await fault_of(check)
    return Part(works=fault is None, error=None if fault is None else str(fault))


def _instance(task: TaskHealth, last: Sequence[LastRun], held: _Turns, *, enabled: bool) -> Instance:
    turn = held.get(task.task) if task.section == "plugins" else None
    return Instance(
        name=task.task,
        kind=task.kind,
        section=task.section,
        enabled=enabled,
        running=task.running,
        next_run=_time(task.next_run),
        last_started=_time(task.last_started),
        last_success=_time(task.last_success),
        failures=task.failures,
        last_error=task.last_error,
        last_runs=[
            Run(
                started=format_time(run.started),
                seconds=run.duration.total_seconds(),
                error=run.error,
                records=run.records,
                quarantined=run.quarantined,
                skipped=dict(run.skipped),
            )
            for run in last
        ],
        turn=None if turn is None else HeldTurn(turn.host, turn.process, format_time(turn.since), turn.expired),
        remarks=list(task.remarks),
    )


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)


_REPORTER: Parameter = Parameter(
    "reporter",
    "The daemon's name; its next report replaces this one.",
    NAME.schema,
    in_path=True,
)


class ReportedSite(msgspec.Struct, frozen=True):
    """A daemon that reports, and how its last report compares."""

    reporter: Annotated[str, doc("the daemon's name.")]
    principal: Annotated[str | None, doc("the principal that sent the report, or null without authenticators.")]
    received_at: Annotated[Instant, doc("when the report arrived.")]
    clock_offset: Annotated[float, doc("its clock minus this host's, in seconds.")]
    sites: Annotated[list[str], doc("the sites that it reports.")]
    comparison: Annotated[ReportAnswer, doc("its comparison with the records here when it arrived.")]


class ReportedSites(msgspec.Struct, frozen=True):
    """Every daemon that has reported since the start."""

    reporters: Annotated[list[ReportedSite], doc("ordered by name.")]


class SiteReportHandlers(msgspec.Struct, frozen=True):
    reports: SiteReports
    records: Reads
    now: Callable[[], datetime]

    @Operation(
        "PUT",
        f"{PATH}/{{reporter}}",
        "reportSite",
        "Report the daily sums of a site's daemon, and have them compared with the records here.",
        Permission.WRITE,
        {200: {JSON: ReportAnswer}},
        problems=(*BODY_PROBLEMS, 403, 503),
        parameters=(_REPORTER,),
        body={JSON: SiteReport},
    )
    async def receive(self, request: web.BaseRequest) -> web.StreamResponse:
        """Compare a report with the records. The caller must be allowed to write the sites in it."""
        name = read_target(request.raw_path).segment(-1)
        with about("reporter"):
            check_name(name)
        report = await decode_body(request, SiteReport, whole_floats=True)
        principal = principal_of(request)
        foreign: set[str] = set()  # the answer would reveal their sums to a caller that may not read all records
        if principal is not None and not (principal.may(Permission.READ) and principal.visible() is None):
            named = {site for role in principal.having(Permission.WRITE) for site in role.sites or ()}
            foreign = {each.site for each in report.days} - named
        if foreign:
            sites = ", ".join(each or "(records without a site)" for each in sorted(foreign))[:200]
            remedy = "use a role that names them in sites, or one that may read all records"
            raise Refused(403, f"your roles do not allow reporting these sites: {sites}", remedy=remedy)
        answer = await self.reports.receive(name, principal_name(request), report, self.records, self.now())
        return json_answer(answer)

    @Operation(
        "GET",
        PATH,
        "listSiteReports",
        "See which sites' daemons report, and which of their stored records are missing here.",
        Permission.METRICS,
        {200: {JSON: ReportedSites}},
    )
    async def show(self, _request: web.BaseRequest) -> web.StreamResponse:
        """List the last report of each daemon."""
        shown = [
            ReportedSite(
                each.name,
                each.principal,
                format_time(each.received_at),
                each.clock_offset.total_seconds(),
                list(each.sites),
                each.answer,
            )
            for each in self.reports.reporters
        ]
        return json_answer(ReportedSites(shown))
