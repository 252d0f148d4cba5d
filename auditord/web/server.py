"""The HTTP server: its parts, routes and lifecycle, from bound sockets to the last answer."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec
from aiohttp import web
from anyio import CancelScope
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from auditord import __version__
from auditord.config.listen import TcpListen, UnixListen
from auditord.config.model import ApiSection
from auditord.ingest import Ingest
from auditord.store.protocol import Reads
from auditord.web.access.authorisation import Authorisation, while_valid
from auditord.web.answers import plain_text
from auditord.web.api.adding import AddHandler
from auditord.web.api.document import answering
from auditord.web.api.handlers import DaemonHandlers, DataHandlers, WireHandlers
from auditord.web.api.lake_source import Lake, hide_lake, lake_source
from auditord.web.api.operation import all_routes, open_routes
from auditord.web.api.records import RecordHandlers
from auditord.web.api.shapes import DOCUMENT_PATH
from auditord.web.api.sums import SumsHandler
from auditord.web.connections import ConnectionLimit, LimitedServer, limit_of_connections, server_log
from auditord.web.dispatch import AbortReason, Dispatcher, HttpMetrics, Route
from auditord.web.hosts import HostCheck, list_names
from auditord.web.listeners import accepting, bind_sockets, for_the_owner
from auditord.web.metrics import MonitoringHandlers
from auditord.web.operations import list_operations
from auditord.web.page import Parts, page_routes
from auditord.web.places import ReadingPlaces, Shares
from auditord.web.proxies import Proxies
from auditord.web.requests import visible_records
from auditord.web.streams import RateLimit, StreamedAnswers, Uploads, limit_uploads
from auditord.web.wire import ReadHandlers, WriteHandlers
from auditord_hookspecs import Permission

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 3_630
"""Longer than any client keeps an idle connection (reqwest, in every AUDITOR client: 90 s; proxies: up to an hour).
Otherwise the server could close a connection while a client sends a POST over it. Clients report that as an error and
do not retry."""

MAX_HEAD_BYTES: Final = 65_536
"""The longest request line (with the query) and the longest header, in bytes."""

MAX_HEADERS: Final = 100

_ABORT_SECONDS: Final = 1.0
_CONTROL_GRACE: Final = timedelta(seconds=1)
_HELD_WHOLE: Final = 2
"""The factor by which arrays of records count, because they are in memory as a whole. The records of ``POST /records``
take some eight times their text."""

_CONTROL_CONNECTIONS: Final = 64
_NAME: Final = plain_text(200, f"auditord {__version__}: the API is at {DOCUMENT_PATH}\n")


@asynccontextmanager
async def serve(
    api: ApiSection,
    ingest: Ingest,
    *,
    registry: CollectorRegistry,
    now: Callable[[], datetime],
    grace: timedelta,
    authorisation: Authorisation | None = None,
    control: Path | None = None,
    daemon: DaemonHandlers | tuple[()] = (),
    page: Parts | None = None,
    reads: Reads | None = None,
    lake: Lake | None = None,
    refused_hosts: set[str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> AsyncGenerator[Sequence[str], None]:
    """Serve AUDITOR's contract and our API on every address of ``api.listen``; yield the URLs once they work.

    On exit, stop accepting, wait for running requests within the grace period, then abort the rest.

    Args:
        api: the section ``api`` of the configuration.
        ingest: accepts clients' records; reads go to its store.
        registry: the metrics for ``/metrics``; those of HTTP are added.
        now: returns the current time.
        grace: the time for running requests to finish after the context is left.
        authorisation: recognises callers; without it, records are open to all, and only the control socket offers calls
            that act.
        control: the path of the control socket; None for no control socket.
        daemon: handles the API's calls about the daemon.
        page: the parts of the daemon that the page shows; None for no page.
        reads: reads the records; None for the store of ``ingest``.
        lake: the records of the lake; None if there is none.
        refused_hosts: receives the host names for which requests were refused.
        labels: the meta keys behind the names site, group and user, for clients; None if they are not known.

    Raises:
        ConfigurationError: an address cannot be bound.
    """
    metrics, places = HttpMetrics(lambda: ingest.spooled), ReadingPlaces(api.max_long_reads)
    records, source = visible_records(reads or ingest.store), lake_source(lake)
    answers = StreamedAnswers(places, Shares(api.max_unread), control and control.parent)
    read, written = (records, answers, source), (ingest, api.duplicates, api.max_body, now, metrics)
    data: DataHandlers = RecordHandlers(*read), AddHandler(*written), SumsHandler(*read)
    wire: WireHandlers = WriteHandlers(*written), ReadHandlers(records, answers), MonitoringHandlers(ingest, registry)
    described = [hide_lake(each) if lake is None else each for each in list_operations((*data, *daemon))]
    plain = [Route(each.method, each.path, each.handler, each.permission) for each in list_operations(wire)]
    plain.append(Route("GET", DOCUMENT_PATH, answering(described, labels or {}), Permission.READ))
    paged = partial(page_routes, page, records, ingest.store, answers, lake=source, now=now) if page else _no_page
    routes = _Routes(api, metrics, plain, all_routes(described), paged)
    registry.register(metrics)
    try:
        async with AsyncExitStack() as stack:
            if control is not None:
                await stack.enter_async_context(routes.listen_to_owner(control))
            dispatcher = routes.dispatch_clients(authorisation, control, refused_hosts)
            yield await stack.enter_async_context(routes.listen_to_clients(dispatcher, grace, now))
    finally:
        registry.unregister(metrics)
        places.close()


class _Routes(msgspec.Struct, frozen=True):
    """The routes of the server: for the owner on the control socket, and for clients on ``api.listen``.

    Args:
        plain: the routes of AUDITOR's contract, and the description of the API.
        calls: the routes of the API.
        paged: makes the routes of the page.
    """

    api: ApiSection
    metrics: HttpMetrics
    plain: Sequence[Route]
    calls: Sequence[Route]
    paged: Callable[..., Sequence[Route]]

    def listen_to_owner(self, control: Path) -> AbstractAsyncContextManager[Sequence[str]]:
        alone = self.api.model_copy(update={"listen": (UnixListen(control, mode=0o600),), "proxies": ()})
        owned = [replace(each, handler=for_the_owner(each)) for each in (*self.plain, *self.paged(), *self.calls)]
        dispatcher = Dispatcher(owned, self.metrics, HostCheck(list_names(alone.listen, alone.hosts)))
        # A client that is cut off there can look up the effect of its request.
        limit = ConnectionLimit(_CONTROL_CONNECTIONS, partial(self.metrics.count_abort, "too_many"))
        return listening(dispatcher, alone, _CONTROL_GRACE, limit, self.metrics.count_abort)

    def dispatch_clients(
        self, authorisation: Authorisation | None, control: Path | None, refused_hosts: set[str] | None
    ) -> Dispatcher:
        hosts = HostCheck(list_names(self.api.listen, self.api.hosts), refused_hosts)
        share = _sharing(self.api)
        if authorisation is None:
            routes = (*self.plain, *open_routes((*self.paged(), *self.calls), control))
            return Dispatcher([*map(share, routes)], self.metrics, hosts)
        routes = (*self.plain, *self.paged(authorisation=authorisation), *self.calls)
        guarded = authorisation.guard([*map(share, routes)])
        return Dispatcher(guarded, self.metrics, hosts, unmatched=authorisation.refuse_unmatched)

    def listen_to_clients(
        self, dispatcher: Dispatcher, grace: timedelta, now: Callable[[], datetime]
    ) -> AbstractAsyncContextManager[Sequence[str]]:
        api, too_many = self.api, partial(self.metrics.count_abort, "too_many")
        is_proxy = Proxies(api.proxies, api.proxy_headers).is_named
        limit = ConnectionLimit(limit_of_connections(api.max_connections), too_many, is_proxy)
        return listening(dispatcher, api, grace, limit, self.metrics.count_abort, now=now)


def _no_page(*, authorisation: Authorisation | None = None) -> Sequence[Route]:
    del authorisation
    return (Route("GET", "/", _name, Permission.READ),)


async def _name(_request: web.BaseRequest) -> web.StreamResponse:
    return _NAME


def _sharing(api: ApiSection) -> Callable[[Route], Route]:
    """Return a wrapper that limits each principal to its share on routes that need a permission."""
    uploads = Uploads(Shares(api.max_uploads), api.max_body)
    rate = None if api.requests_per_second is None else RateLimit(api.requests_per_second, monotonic)

    def share(route: Route) -> Route:
        if route.permission is None or (rate is None and route.method == "GET"):
            return route
        weight = _HELD_WHOLE if route.path in {"/records", "/api/v1/records"} else 1
        waiting = limit_uploads(route.handler, uploads, rate, weight)
        return replace(route, handler=waiting if rate is not None else route.handler, patient=waiting)

    return share


@asynccontextmanager
async def listening(
    dispatcher: Dispatcher,
    api: ApiSection,
    grace: timedelta,
    limit: ConnectionLimit | None = None,
    count: Callable[[AbortReason], None] = lambda _: None,
    *,
    now: Callable[[], datetime] | None = None,
) -> AsyncGenerator[Sequence[str], None]:
    """Pass connections to every address of ``api.listen`` to the dispatcher; see :func:`serve`.

    With a clock, the expiry of clients' certificates is checked at each request.
    """
    asked_for = any(isinstance(each, TcpListen) and each.tls and each.tls.client_ca for each in api.listen)
    handler = Proxies(api.proxies, api.proxy_headers).before(dispatcher.handle) if api.proxies else dispatcher.handle
    handler = while_valid(handler, now) if asked_for and now is not None else handler
    server = LimitedServer(
        handler,
        limit,
        stalled=partial(count, "stalled"),
        access_log=None,
        logger=server_log,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        max_line_size=MAX_HEAD_BYTES,
        max_field_size=MAX_HEAD_BYTES,
        max_headers=MAX_HEADERS,
        auto_decompress=False,  # bodies are decompressed within api.max_body
    )
    with bind_sockets(api.listen) as bound:
        try:
            async with accepting(bound, server):
                yield [each.url for each in bound]
        finally:
            with CancelScope(shield=True):  # a request that is being stored must not be lost
                await dispatcher.drain(grace)
                server.pre_shutdown()
                await server.shutdown(_ABORT_SECONDS)
