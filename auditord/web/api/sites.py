"""``PUT /api/v1/site_reports/{reporter}`` and ``GET /api/v1/site_reports``: a hub and the daemons of its sites."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from aiohttp import web

from auditord.audit.site_reports import Reporter, SiteReports
from auditord.client.site_reports import PATH, ReportAnswer, SiteReport
from auditord.store.protocol import Reads
from auditord.web.answers import JSON, json_answer
from auditord.web.api.operation import BODY_PROBLEMS, Operation, Parameter, decoded
from auditord.web.api.shapes import Instant
from auditord.web.api.values import NAME
from auditord.web.problem_shapes import doc
from auditord.web.problems import Refused
from auditord.web.record_query import about
from auditord.web.requests import principal_name, principal_of, read_target
from auditord_hookspecs import Permission
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import format_time

_REPORTER: Parameter = Parameter(
    "reporter",
    "What the daemon calls itself; its next report takes the place of this one.",
    NAME.schema,
    in_path=True,
)


class ReportedSite(msgspec.Struct, frozen=True):
    """A daemon that reports, and how its last report compares."""

    reporter: Annotated[str, doc("what the daemon calls itself.")]
    principal: Annotated[str | None, doc("who it was, or null where nobody is asked.")]
    received_at: Annotated[Instant, doc("when the report came.")]
    clock_offset: Annotated[float, doc("its clock less the one here, in seconds.")]
    sites: Annotated[list[str], doc("which it reports.")]
    comparison: Annotated[ReportAnswer, doc("with what was stored here when it came.")]


class ReportedSites(msgspec.Struct, frozen=True):
    """Every daemon that has reported since the start."""

    reporters: Annotated[list[ReportedSite], doc("by name.")]


@dataclass(frozen=True, slots=True)
class SiteReportHandlers:
    """Takes and shows reports of sites' daemons."""

    reports: SiteReports
    records: Reads
    now: Callable[[], datetime]

    @Operation(
        "PUT",
        f"{PATH}/{{reporter}}",
        "reportSite",
        "Report the sums of each day that a site's daemon has stored, and have them compared.",
        Permission.WRITE,
        {200: {JSON: ReportAnswer}},
        problems=(*BODY_PROBLEMS, 403, 503),
        parameters=(_REPORTER,),
        body={JSON: SiteReport},
    )
    async def receive(self, request: web.BaseRequest) -> web.StreamResponse:
        """Compare a report of sites that the caller may write."""
        name = read_target(request.raw_path).segment(-1)
        with about("reporter"):
            check_name(name)
        report = await decoded(request, SiteReport, whole_floats=True)
        if foreign := _foreign_sites(request, report):
            sites = ", ".join(sorted(foreign))[:200]
            remedy = "a role that names them in sites, or one that may read all records"
            raise Refused(403, f"these sites are not yours to report: {sites}", remedy=remedy)
        answer = await self.reports.receive(name, principal_name(request), report, self.records, self.now())
        return json_answer(answer)

    @Operation(
        "GET",
        PATH,
        "listSiteReports",
        "See which daemons of sites report, and what is not here of what they have stored.",
        Permission.METRICS,
        {200: {JSON: ReportedSites}},
    )
    async def show(self, _request: web.BaseRequest) -> web.StreamResponse:
        """The last report of each daemon."""
        shown = [_shown(each) for each in self.reports.reporters]
        return json_answer(ReportedSites(shown))


def _foreign_sites(request: web.BaseRequest, report: SiteReport) -> set[str]:
    """The sites of a report that are not named by the caller's roles; of these the answer would tell the sums.

    Whoever may read everything is told nothing new.
    """
    principal = principal_of(request)
    if principal is None or (principal.may(Permission.READ) and principal.visible() is None):
        return set()
    named = {site for role in principal.having(Permission.WRITE) for site in role.sites or ()}
    return {each.site for each in report.days} - named


def _shown(each: Reporter) -> ReportedSite:
    return ReportedSite(
        each.name,
        each.principal,
        format_time(each.received_at),
        each.clock_offset.total_seconds(),
        list(each.sites),
        each.answer,
    )
