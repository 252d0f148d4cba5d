"""The page ``/panels``: panels of hook modules, each in its own error boundary and within its own time."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta, tzinfo
from typing import Final

from aiohttp import web

from auditord.contexts.panels import HostPanelContext, PanelInstance, Panels
from auditord.web.page.figures import Figures
from auditord.web.page.panel_parts import DrawnPart, drawn
from auditord.web.page.rendering import Renderer
from auditord.web.page.visitors import Visitors, may
from auditord.web.requests import holder, principal_of
from auditord_hookspecs import AggregateQuery, Aggregates, AuditordError, Panel, PanelPart, Permission
from auditord_hookspecs.zones import zone_named

log: Final = logging.getLogger(__name__)

PATH: Final = "/panels"
LONGEST: Final = timedelta(seconds=5)
"""The time that one panel may take."""
_SAID: Final = 300
"""Characters of an error's text that are shown."""


@dataclass(frozen=True, slots=True)
class ShownPanel:
    """A panel as the template shows it.

    Args:
        title: above it.
        instance: the instance's name, of a panel that belongs to a kind.
        parts: of it.
        fault: why it cannot be shown.
    """

    title: str
    instance: str | None
    parts: Sequence[DrawnPart] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class PanelsPage:
    """The page of the panels.

    Args:
        panels: of all hook modules.
        figures: the records that a visitor may see.
        renderer: makes pages.
        visitors: knows who sees what.
        longest: the time that one panel may take.
    """

    panels: Panels
    figures: Figures
    renderer: Renderer
    visitors: Visitors
    longest: timedelta = LONGEST

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every panel that the visitor may see."""
        there = [each for each in self.panels.shown() if _may_see(request, each[1])]
        shown = await asyncio.gather(*(self._made(request, *each) for each in there))
        return self.renderer.answer("panels.html", {"panels": shown}, self.visitors.navigation(request, PATH))

    async def _made(
        self, request: web.BaseRequest, module: str, panel: Panel, instance: PanelInstance | None
    ) -> ShownPanel:
        name = None if instance is None else instance.name
        try:
            async with asyncio.timeout(self.longest.total_seconds()):
                parts = await panel.show(self._context(request, panel, instance))
            return ShownPanel(panel.title, name, _drawn(parts, zone_named(self.figures.zone)))
        except _Misshapen as error:
            log.warning(
                "panel %s (%s) of %s has a wrong shape: %s; its author has to mend what it shows: "
                "see `auditord manual types`",
                *(panel.name, name, module, error),
            )
            said = self._said(request, error.__cause__ or error)
        except TimeoutError:
            log.warning("panel %s (%s) of %s took longer than %s", panel.name, name, module, self.longest)
            said = self.renderer.text("panels.late", seconds=self.longest.total_seconds())
        except AuditordError as error:
            log.warning("panel %s (%s) of %s cannot be shown: %s", panel.name, name, module, error)
            said = self._said(request, error)
        except (Exception, SystemExit) as error:
            log.exception("panel %s (%s) of %s failed", panel.name, name, module)
            said = self._said(request, error)
        return ShownPanel(panel.title, name, fault=said)

    def _said(self, request: web.BaseRequest, error: BaseException) -> str:
        """The text of an error, which may name what only an operator knows."""
        if not may(request, Permission.OPERATE):
            return self.renderer.text("panels.failed")
        return self.renderer.text("panels.failed.because", reason=f"{type(error).__name__}: {error}"[:_SAID])

    def _context(self, request: web.BaseRequest, panel: Panel, instance: PanelInstance | None) -> HostPanelContext:
        records = self.figures.records(request)

        async def aggregate(query: AggregateQuery) -> Aggregates:
            async with self.figures.places.summed(holder(request), records.aggregate, query) as found:
                return found

        return HostPanelContext(panel, instance, aggregate, self.figures.now, self.panels.memories)


class _Misshapen(Exception):
    """The parts of a panel are not as the contract has them."""


def _drawn(parts: Sequence[PanelPart], zone: tzinfo) -> Sequence[DrawnPart]:
    try:
        return drawn(parts, zone)
    except (ValueError, TypeError, AttributeError) as error:
        raise _Misshapen(str(error)) from error


def _may_see(request: web.BaseRequest, panel: Panel) -> bool:
    principal = principal_of(request)
    if panel.whole and principal is not None and principal.visible() is not None:
        return False
    return may(request, panel.permission)
