"""The page ``/operations``: whether accounting is healthy."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from aiohttp import web

from auditord.web.api.status import StatusHandlers
from auditord.web.api.status_shapes import Instance
from auditord.web.limits import reading_slot
from auditord.web.page.figures import Figures
from auditord.web.page.rendering import Renderer
from auditord.web.page.visitors import Visitors
from auditord.web.requests import holder
from auditord_hookspecs.aggregates import AggregateQuery, MetaValue
from auditord_hookspecs.query import AllOf, Comparison, TimeCompares, TimeField
from auditord_hookspecs.wire import parse_time

PATH: Final = "/operations"

_RECENT: Final = timedelta(days=30)
_LATE: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class OperationsPage:
    """The page of the daemon's state.

    Args:
        figures: of sites.
        renderer: makes pages.
        visitors: knows who sees what.
        status: of the daemon.
    """

    figures: Figures
    renderer: Renderer
    visitors: Visitors
    status: StatusHandlers

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """The page."""
        health, instances = await self.status.health_report(), await self.status.instance_states()
        values = {
            "health": health,
            "instances": [_instance(each) for each in instances if each.section != "senders"],
            "senders": [_instance(each) for each in instances if each.section == "senders"],
            "queues": {
                queue.sender: {"entries": queue.entries, "oldest": _time(queue.oldest)} for queue in health.queues
            },
            "quarantined": sum(each.entries for each in health.quarantine),
            "sites": await self._sites(request),
            "may_act": self.visitors.forms.sessions is not None,
        }
        return self.renderer.answer("operations.html", values, self.visitors.navigation(request, PATH))

    async def _sites(self, request: web.BaseRequest) -> list[dict[str, Any]]:  # Any: shown by the template
        """The sites with records of the last days, and their last record."""
        now = self.figures.now()
        recent = AllOf((TimeCompares(TimeField.STOP, Comparison.GTE, now - _RECENT),))
        query = AggregateQuery(recent, (MetaValue(self.figures.keys.site),))
        async with reading_slot(self.figures.slots, holder(request)):
            found = await self.figures.records(request).aggregate(query)
        return [
            {
                "site": group.key[0],
                "records": group.records,
                "last": group.last_stop,
                "late": now - group.last_stop > _LATE,
            }
            for group in found.groups
        ]


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
