"""The page ``/operations``: whether accounting is healthy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from aiohttp import web

from auditord.audit.site_reports import Reporter, SiteReports
from auditord.errors import StoreUnavailable
from auditord.reporting.periods import PERIODS
from auditord.spool import QuarantineReason, Spool
from auditord.store import RecordStore
from auditord.web.api.shapes import Instance
from auditord.web.api.status import StatusHandlers
from auditord.web.page.figures import Figures
from auditord.web.page.jobs import job_link
from auditord.web.page.rendering import Renderer
from auditord.web.page.visitors import Visitors
from auditord.web.requests import holder, principal_of
from auditord_hookspecs.aggregates import AggregateQuery, Group, MetaValue
from auditord_hookspecs.query import (
    AllOf,
    Comparison,
    ImplausibleCpuTime,
    IsOpen,
    TimeCompares,
    TimeField,
    stopped_within,
)
from auditord_hookspecs.wire import parse_time

PATH: Final = "/operations"

_LOOKED_BACK: Final = "7-days"
"""For implausible CPU times: no sum has them, so every record of the period is looked at."""
_RECENT: Final = timedelta(days=30)
_LATE: Final = timedelta(days=1)
_NEWEST: Final = 10
_CLOCK_OFF: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class OperationsPage:
    """The page of the daemon's state.

    Args:
        figures: of sites.
        renderer: makes pages.
        visitors: knows who sees what.
        status: of the daemon.
        spool: has the quarantine.
        site_reports: of daemons that forward their records here.
        store: has the differences.
    """

    figures: Figures
    renderer: Renderer
    visitors: Visitors
    status: StatusHandlers
    spool: Spool
    site_reports: SiteReports
    store: RecordStore

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """The page."""
        health, instances = await self.status.health_report(), await self.status.instance_states()
        open_records = AggregateQuery(IsOpen(), as_of=self.figures.now())
        values = {
            "health": health,
            "open": sum(each.records for each in await self._groups(request, open_records)),
            "implausible": sum(each.records for each in await self._groups(request, self._implausible())),
            "implausible_link": f"/jobs?implausible=true&period={_LOOKED_BACK}",
            "reasons": await self._reasons(),
            "differing": await self._differing(request),
            "reporters": [_reporter(each) for each in self.site_reports.reporters],
            "instances": [_instance(each) for each in instances if each.section != "senders"],
            "senders": [_instance(each) for each in instances if each.section == "senders"],
            "queues": {
                queue.sender: {"entries": queue.entries, "oldest": _time(queue.oldest)} for queue in health.queues
            },
            "quarantined": sum(each.entries for each in health.quarantine),
            "sites": await self._sites(request, health.gaps),
            "may_act": self.visitors.forms.sessions is not None,
        }
        return self.renderer.answer("operations.html", values, self.visitors.navigation(request, PATH))

    def _implausible(self) -> AggregateQuery:
        window = PERIODS[_LOOKED_BACK](self.figures.now())
        return AggregateQuery(AllOf((stopped_within(window), ImplausibleCpuTime())))

    async def _sites(
        self, request: web.BaseRequest, gaps: Mapping[str, str]
    ) -> list[dict[str, Any]]:  # Any: shown by the template
        """The sites with records of the last days, and their last record."""
        now = self.figures.now()
        recent = AllOf((TimeCompares(TimeField.STOP, Comparison.GTE, now - _RECENT),))
        query = AggregateQuery(recent, (MetaValue(self.figures.keys.site),))
        groups = await self._groups(request, query)
        return site_rows(groups, {site: parse_time(last) for site, last in gaps.items()}, now)

    async def _groups(self, request: web.BaseRequest, query: AggregateQuery) -> Sequence[Group]:
        aggregate = self.figures.records(request).aggregate
        async with self.figures.places.summed(holder(request), aggregate, query) as found:
            return found.groups

    async def _differing(self, request: web.BaseRequest) -> Sequence[dict[str, Any]]:  # Any: see above
        """The newest differences, for those who see them on the pages of records."""
        found: list[dict[str, Any]] = []  # Any: see above
        if principal_of(request) is None:
            return found
        async with self.store.differences() as newest:
            async for each in newest:
                found.append({"id": each.record_id, "link": job_link(each.record_id), "seen": each.seen_at})
                if len(found) == _NEWEST:
                    break
        return found

    async def _reasons(self) -> Sequence[QuarantineReason]:
        try:
            return await self.spool.quarantine_reasons()
        except StoreUnavailable:  # health says so
            return ()


def site_rows(
    groups: Sequence[Group], gaps: Mapping[str, datetime], now: datetime
) -> list[dict[str, Any]]:  # Any: shown by the template
    """The sites with records of the last days, then those that have been silent for longer.

    Args:
        groups: by site.
        gaps: sites that report nothing for longer than usual, with the end of their last record.
        now: the present instant.
    """
    rows: list[dict[str, Any]] = [
        {
            "site": group.key[0],
            "records": group.records,
            "last": group.last_stop,
            "state": "gap" if group.key[0] in gaps else "late" if now - group.last_stop > _LATE else None,
        }
        for group in groups
    ]
    listed = {each["site"] for each in rows}
    silent = [(site, last) for site, last in gaps.items() if site not in listed]
    return [*rows, *({"site": site, "records": 0, "last": last, "state": "gap"} for site, last in silent)]


def _reporter(reporter: Reporter) -> dict[str, Any]:  # Any: see above
    offset = reporter.clock_offset
    return {
        "name": reporter.name,
        "principal": reporter.principal,
        "sites": ", ".join(reporter.sites),
        "received": reporter.received_at,
        "clock": None if abs(offset) < _CLOCK_OFF else f"{offset.total_seconds():+,.0f} s",
        "records": reporter.answer.records,
        "missing": reporter.answer.missing,
        "extra": reporter.answer.extra,
        "days": [f"{each.reported.site} {each.reported.day}" for each in reporter.answer.differing],
    }


def _instance(instance: Instance) -> dict[str, Any]:  # Any: see above
    last = next(iter(instance.last_runs), None)
    state = (
        "off" if not instance.enabled else "failing" if instance.last_error else "running" if instance.running else "ok"
    )
    return {
        "name": instance.name,
        "kind": instance.kind,
        "section": instance.section,
        "state": state,
        "error": instance.last_error,
        "failures": instance.failures,
        "last": _time(instance.last_started),
        "success": _time(instance.last_success),
        "next": _time(instance.next_run),
        "records": None if last is None else last.records,
        "quarantined": None if last is None else last.quarantined,
        "seconds": None if last is None else last.seconds,
    }


def _time(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)
