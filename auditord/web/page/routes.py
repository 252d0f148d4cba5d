"""The routes of the page, and the error pages."""

import logging
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from fractions import Fraction
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord import __version__
from auditord.actions import Actions
from auditord.audit.site_reports import SiteReports
from auditord.config.model import Configuration
from auditord.contexts.plugins import Panels
from auditord.errors import StoreUnavailable
from auditord.reporting.questions import UnknownCo2
from auditord.reporting.writing import NoParquet
from auditord.store.lake import REMEDY, LakeUnavailable
from auditord.store.store import RecordStore
from auditord.web.access.authorisation import Authorisation
from auditord.web.answers import plain_text
from auditord.web.api.lake_source import LakeSource
from auditord.web.api.shapes import DOCUMENT_PATH
from auditord.web.api.status import StatusHandlers
from auditord.web.dispatch import Handler, Route
from auditord.web.page.figures import Charts, Figures
from auditord.web.page.files import LIST_FORMS
from auditord.web.page.job_files import JobFiles
from auditord.web.page.jobs import RECORD_ACT, ChangingPages, JobsPages
from auditord.web.page.login import CALLBACK, LOGOUT, IssuerPages, LoginPage
from auditord.web.page.login import PATH as LOGIN
from auditord.web.page.login import ROUTE as ISSUER
from auditord.web.page.manual import PATH as MANUAL
from auditord.web.page.manual import ManualPages
from auditord.web.page.operations import (
    INSTANCE_ACT,
    QUARANTINE,
    QUARANTINE_ACT,
    RUN,
    BackgroundRuns,
    OperatingPages,
    OperationsPage,
    StartSoon,
)
from auditord.web.page.operations import PATH as OPERATIONS
from auditord.web.page.overview import PATH as OVERVIEW
from auditord.web.page.overview import MyPage, OverviewPage
from auditord.web.page.panels import PATH as PANELS
from auditord.web.page.panels import PanelsPage
from auditord.web.page.query_string import JOBS, MY, USAGE
from auditord.web.page.rendering import FOLDER, Assets, Forms, Frame, Renderer, Visitors, frame_first
from auditord.web.page.suggestions import PATH as SUGGESTIONS
from auditord.web.page.suggestions import Suggestions
from auditord.web.page.usage import FORMS, UsageFiles, UsagePage
from auditord.web.problems import Refused
from auditord.web.record_query import InvalidQuery
from auditord.web.requests import RecordsFor, path_for_logs, totals_for
from auditord.web.streams import StreamedAnswers
from auditord_hookspecs import Permission, Principal

log: Final = logging.getLogger(__name__)


_NAVIGATION: Final = (
    (OVERVIEW, "Overview", Permission.READ),
    (MY, "My usage", Permission.READ),
    (USAGE, "Usage", Permission.READ),
    (JOBS, "Jobs", Permission.READ),
    (PANELS, "Panels", Permission.READ),
    (OPERATIONS, "Operations", Permission.OPERATE),
)
"""Path, name and permission of each page that the head of every page links to."""


class Parts(msgspec.Struct, frozen=True):
    """The parts of the daemon that the page shows.

    Args:
        start_soon: runs a coroutine function in the background.
        site_reports: the reports of daemons that forward their records here.
    """

    configuration: Configuration
    status: StatusHandlers
    actions: Actions
    start_soon: StartSoon
    panels: Panels
    site_reports: SiteReports


def page_routes(
    parts: Parts,
    records: RecordsFor,
    store: RecordStore,
    answers: StreamedAnswers,
    *,
    lake: LakeSource,
    now: Callable[[], datetime],
    authorisation: Authorisation | None = None,
) -> Sequence[Route]:
    """Return all routes of the page; ``authorisation`` is None if no authenticator is configured."""
    ui = parts.configuration.ui
    keys = parts.configuration.labels.keys()
    pledges = [each.pledge() for each in parts.configuration.pledges]
    assets = Assets(ui.logo)
    renderer = Renderer(ui, assets, now)
    forms = Forms(None if authorisation is None else authorisation.sessions)

    def is_shown(path: str, principal: Principal | None) -> bool:
        if path == PANELS:
            return bool(list(parts.panels.list_panels()))
        return path != MY or (principal is not None and principal.user is not None)

    visitors = Visitors(forms, _NAVIGATION, is_shown)
    intensity = None if ui.co2_per_kwh is None else Fraction(ui.co2_per_kwh)
    figures = Figures(records, answers.places, keys, pledges, now, ui.timezone, intensity, lake, totals_for(store))
    guard, login = _Guard(renderer, visitors), LoginPage(authorisation, renderer, visitors)
    issuers = IssuerPages(authorisation, login)
    routes = (*_reading_routes(guard, figures, store, answers, parts), *_acting_routes(guard, records, parts))
    return (
        *(replace(each, refuse_browser=login.refuse) for each in routes),
        Route("GET", LOGIN, guard.around(login.show), None),
        Route("GET", ISSUER, guard.around(issuers.begin), None),
        Route("GET", CALLBACK, guard.around(issuers.come_back), None),
        Route("POST", LOGIN, guard.around(login.enter), None, form=True),
        Route("POST", LOGOUT, guard.around(login.leave), None, form=True),
        Route("GET", f"{FOLDER}{{file}}", assets.serve, None),
    )


def _reading_routes(
    guard: "_Guard", figures: Figures, store: RecordStore, answers: StreamedAnswers, parts: Parts
) -> Sequence[Route]:
    renderer, visitors, ui = guard.renderer, guard.visitors, parts.configuration.ui
    charts, suggestions = Charts(renderer.path), Suggestions(figures)
    files = UsageFiles(figures, renderer, charts, answers)
    usage = UsagePage(figures, renderer, visitors, files, suggestions, ui.labels)
    jobs = JobsPages(figures, store, renderer, visitors, suggestions)
    job_files = JobFiles(jobs, answers)
    overview = OverviewPage(figures, renderer, visitors, parts.status, charts)
    mine = MyPage(figures, renderer, visitors, charts, suggestions)
    status = parts.status
    operations = OperationsPage(figures, renderer, visitors, status, status.spool, parts.site_reports, store)
    panels = PanelsPage(parts.panels, figures, renderer, visitors)
    manual = ManualPages(renderer, visitors)
    return (
        Route("GET", OVERVIEW, for_browsers(guard.with_frame(overview.show, OVERVIEW)), Permission.READ),
        Route("GET", USAGE, guard.with_frame(usage.show, USAGE), Permission.READ),
        *(Route("GET", f"{USAGE}.{form}", guard.around(files.export), Permission.READ) for form in FORMS),
        Route("GET", JOBS, guard.with_frame(jobs.browse, JOBS), Permission.READ),
        *(Route("GET", f"{JOBS}.{form}", guard.around(job_files.export), Permission.READ) for form in LIST_FORMS),
        Route("GET", f"{JOBS}/{{record_id}}", guard.around(jobs.show), Permission.READ),
        Route("GET", MY, guard.with_frame(mine.show, MY), Permission.READ),
        Route("GET", OPERATIONS, guard.with_frame(operations.show, OPERATIONS), Permission.OPERATE),
        Route("GET", PANELS, guard.with_frame(panels.show, PANELS), Permission.READ),
        Route("GET", SUGGESTIONS, guard.around(suggestions.answer), Permission.READ),
        Route("GET", MANUAL, guard.around(manual.contents), Permission.READ),
        Route("GET", f"{MANUAL}/{{topic}}", guard.around(manual.show), Permission.READ),
    )


def _acting_routes(guard: "_Guard", records: RecordsFor, parts: Parts) -> Sequence[Route]:
    runs, status = BackgroundRuns(parts.actions, parts.start_soon), parts.status
    operating = OperatingPages(runs, parts.actions, status.spool, status, guard.renderer, guard.visitors)
    changing = ChangingPages(parts.actions.records, records, guard.renderer, guard.visitors)
    operate, administer, around = Permission.OPERATE, Permission.ADMINISTER, guard.around
    return (
        Route("GET", INSTANCE_ACT, around(operating.confirm_run), operate),
        Route("POST", INSTANCE_ACT, around(operating.run), operate, audited=True, form=True),
        Route("GET", RUN, around(operating.show_run), operate),
        Route("GET", QUARANTINE, around(operating.browse), operate),
        Route("GET", QUARANTINE_ACT, around(operating.confirm_chance), operate),
        Route("POST", QUARANTINE_ACT, around(operating.give_chance), operate, audited=True, form=True),
        Route("GET", RECORD_ACT, around(changing.ask), administer),
        Route("POST", RECORD_ACT, around(changing.change), administer, audited=True, form=True),
    )


def for_browsers(handler: Handler) -> Handler:
    """Wrap a handler so that clients that do not accept HTML get a line of text instead."""
    name = plain_text(200, f"auditord {__version__}: the manual is at {MANUAL}, the API at {DOCUMENT_PATH}\n")

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return await handler(request) if "text/html" in request.headers.get("Accept", "") else name

    return answer


Guarded: TypeAlias = Callable[[web.BaseRequest], Coroutine[Any, Any, web.StreamResponse]]  # Any: they receive nothing


class _Guard(msgspec.Struct, frozen=True):
    """Turns the refusals and errors of handlers into pages."""

    renderer: Renderer
    visitors: Visitors

    def around(self, handler: Handler) -> Guarded:
        """Wrap a handler so that its refusals become pages."""

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await handler(request)
            except Refused as error:
                return self._page(request, HTTPStatus(error.problem.status), str(error))
            except (InvalidQuery, NoParquet, UnknownCo2, UnicodeDecodeError) as error:
                return self._page(request, HTTPStatus.BAD_REQUEST, str(error))
            except StoreUnavailable as error:
                log.warning("the page %s cannot be shown: %s", path_for_logs(request), error)
                message = "The record store does not answer. Please try again in a moment."
                if isinstance(error, LakeUnavailable):
                    message = f"{error.summary}: {REMEDY}"
                return self._page(request, HTTPStatus.SERVICE_UNAVAILABLE, message)

        return answer

    def with_frame(self, handler: Handler, here: str) -> Handler:
        """Wrap a handler like :meth:`around`. If the page takes long, its frame is sent first."""
        guarded, message = self.around(handler), "This page failed. The daemon's log has the reason."

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            frame = Frame(partial(self._frame, request, here))
            failed = partial(self._page, request, HTTPStatus.INTERNAL_SERVER_ERROR, message)
            return await frame_first(request, guarded(request), frame, failed)

        return answer

    def _frame(self, request: web.BaseRequest, here: str) -> web.Response:
        navigation = self.visitors.navigation(request, here)
        values = {"title": dict(navigation.entries).get(here, ""), "is_frame": True}
        return self.renderer.answer("waiting.html", values, navigation)

    def _page(self, request: web.BaseRequest, status: HTTPStatus, text: str) -> web.Response:
        values = {"status": status, "text": text}
        return self.renderer.answer("error.html", values, self.visitors.navigation(request, ""), status)
