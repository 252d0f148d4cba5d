"""The life of the HTTP server: from bound sockets to the last answer."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

from anyio import CancelScope
from prometheus_client import CollectorRegistry

from auditord.config.listen import TcpListen, UnixListen
from auditord.config.model import ApiSection
from auditord.ingest import Ingest
from auditord.store import RecordStore
from auditord.web.accepting import accepting
from auditord.web.access import Gate
from auditord.web.access.expiry import while_valid
from auditord.web.access.rows import seen_by_all
from auditord.web.api.adding import AddingDesk
from auditord.web.api.amending import AmendingDesk
from auditord.web.api.document import PATH as DOCUMENT_PATH
from auditord.web.api.document import answering
from auditord.web.api.inside import Inside
from auditord.web.api.operation import Operation, all_routes, open_routes
from auditord.web.api.problems import refuse
from auditord.web.api.records import RecordsDesk
from auditord.web.api.status import StatusDesk
from auditord.web.api.sums import SumsDesk
from auditord.web.api.table import amending_operations, inside_operations, record_operations
from auditord.web.connections import ImpatientServer
from auditord.web.control import for_the_owner
from auditord.web.crowd import Crowd, limit_of_connections
from auditord.web.dispatch import Dispatcher, Route
from auditord.web.figures import AbortReason, HttpFigures
from auditord.web.hosts import guarded, known_names
from auditord.web.listeners import bound_sockets
from auditord.web.operations import Operations
from auditord.web.rationing import Pace, Uploads, rationed
from auditord.web.reading import Reading
from auditord.web.rubbish import server_log
from auditord.web.sending import LongAnswers
from auditord.web.shares import Shares
from auditord.web.spooling import RequestSpool
from auditord.web.writing import Writing
from auditord_hookspecs import Permission

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 3_630
"""Longer than any client keeps an idle connection (reqwest, in every AUDITOR client: 90 s; proxies up to an hour).
Were it shorter, the server could close a connection in the instant in which a client sends a POST over it, which the
clients report as a fault and do not repeat."""

MAX_HEAD_BYTES: Final = 65_536
"""Of a request line (the longest query) and of one header."""

MAX_HEADERS: Final = 100

_ABORT_SECONDS: Final = 1.0
_CONTROL_GRACE: Final = timedelta(seconds=1)
_HELD_WHOLE: Final = 2
"""How many times its body ``POST /records`` counts: all records are held at once, at some eight times their text."""

_CONTROL_CONNECTIONS: Final = 64


@asynccontextmanager
async def serve(
    api: ApiSection,
    *,
    ingest: Ingest,
    store: RecordStore,
    spool: RequestSpool,
    destinations: Sequence[str],
    registry: CollectorRegistry,
    now: Callable[[], datetime],
    grace: timedelta,
    inside: Inside | None = None,
    gate: Gate | None = None,
) -> AsyncGenerator[Sequence[str], None]:
    """Serve AUDITOR's contract and our own API on every address of ``api.listen``; yields the URLs once they work.

    Leaving stops accepting, lets running requests finish within the grace period, then aborts what is left.

    Args:
        api: the configuration.
        ingest: where clients' records go.
        store: where records are.
        spool: where bodies go that were refused.
        destinations: the senders that forward what the spool took from the API; without one, it takes nothing.
        registry: gets the HTTP figures, and is what ``/metrics`` shows.
        now: the clock.
        grace: how long running requests may take once the context is left.
        inside: of a whole daemon: what else is shown and done.
        gate: asks who calls; without one, records are read and written by all, and only the control socket acts.

    Raises:
        ConfigurationError: an address cannot be had.
    """
    figures = HttpFigures(lambda: ingest.spooled)
    writing = Writing(ingest, spool, api.duplicates, api.max_body, now, figures)
    adding = AddingDesk(ingest, api.duplicates, api.max_body, now, figures)
    records = seen_by_all(store)
    folder = None if inside is None else inside.control.parent
    answers = LongAnswers(Shares(api.max_long_reads), Shares(api.max_unread), folder)
    operations = [*record_operations(RecordsDesk(records, answers), adding, SumsDesk(records, answers.places))]
    if inside is not None:
        operations += inside_operations(inside, StatusDesk(inside, store, destinations))
        operations += amending_operations(AmendingDesk(inside, store))
    plain = [
        *wire_routes(writing, Reading(records, answers), Operations(store, spool, destinations, registry)),
        Route("GET", DOCUMENT_PATH, answering(operations), Permission.READ),
    ]
    ration = _ration(api)
    registry.register(figures)
    try:
        async with AsyncExitStack() as stack:
            if inside is not None:
                owned = [*plain, *all_routes(operations)]
                await stack.enter_async_context(_controlled(owned, figures, api, inside.control))
            control = None if inside is None else inside.control
            dispatcher = _dispatcher(plain, operations, figures, gate, control, ration=ration)
            crowd = Crowd(limit_of_connections(api.max_connections), partial(figures.count_abort, "too_many"))
            yield await stack.enter_async_context(
                listening(dispatcher, api, grace, crowd, figures.count_abort, now=now)
            )
    finally:
        registry.unregister(figures)


def _dispatcher(
    plain: Sequence[Route],
    operations: Sequence[Operation],
    figures: HttpFigures,
    gate: Gate | None,
    control: Path | None,
    *,
    ration: Callable[[Route], Route],
) -> Dispatcher:
    """Who answers on the addresses that the configuration names."""
    if gate is None:
        return Dispatcher([*map(ration, plain), *map(ration, open_routes(operations, control))], figures, refuse)
    routes = gate.guarded([ration(route) for route in (*plain, *all_routes(operations))])
    return Dispatcher(routes, figures, refuse, unmatched=gate.unmatched)


def _ration(api: ApiSection) -> Callable[[Route], Route]:
    """Each principal's share; whoever may not come in has none."""
    uploads = Uploads(Shares(api.max_uploads), api.max_body)
    pace = None if api.requests_per_second is None else Pace(api.requests_per_second, monotonic)

    def ration(route: Route) -> Route:
        if route.permission is None or (pace is None and route.method == "GET"):
            return route
        weight = _HELD_WHOLE if route.path == "/records" else 1
        return replace(route, handler=rationed(route.handler, uploads, pace, weight))

    return ration


def _controlled(
    routes: Iterable[Route], figures: HttpFigures, api: ApiSection, path: Path
) -> AbstractAsyncContextManager[Sequence[str]]:
    """The control socket; whoever is cut off there finds what was done until then."""
    owned = [replace(route, handler=for_the_owner(route)) for route in routes]
    alone = api.model_copy(update={"listen": (UnixListen(path, mode=0o600),)})
    crowd = Crowd(_CONTROL_CONNECTIONS, partial(figures.count_abort, "too_many"))
    return listening(Dispatcher(owned, figures, refuse), alone, _CONTROL_GRACE, crowd, figures.count_abort)


def wire_routes(writing: Writing, reading: Reading, operations: Operations) -> tuple[Route, ...]:
    """AUDITOR's routes."""
    return (
        Route("POST", "/record", writing.add_one, Permission.WRITE),
        Route("PUT", "/record", writing.stop, Permission.UPDATE),
        Route("POST", "/records", writing.add_many, Permission.WRITE),
        Route("GET", "/record/{record_id}", reading.get_one, Permission.READ),
        Route("GET", "/records", reading.get_many, Permission.READ),
        Route("GET", "/health_check", operations.health, None),
        Route("GET", "/metrics", operations.metrics, Permission.METRICS),
    )


@asynccontextmanager
async def listening(
    dispatcher: Dispatcher,
    api: ApiSection,
    grace: timedelta,
    crowd: Crowd | None = None,
    count: Callable[[AbortReason], None] = lambda _: None,
    *,
    now: Callable[[], datetime] | None = None,
) -> AsyncGenerator[Sequence[str], None]:
    """Connections to every address of ``api.listen`` reach the dispatcher; see :func:`serve`.

    With a clock, clients' certificates are looked at for each request.
    """
    asked_for = any(isinstance(each, TcpListen) and each.tls and each.tls.client_ca for each in api.listen)
    handler = while_valid(dispatcher.handle, now) if asked_for and now is not None else dispatcher.handle
    server = ImpatientServer(
        guarded(handler, known_names(api.listen, api.hosts)),
        crowd,
        stalled=partial(count, "stalled"),
        access_log=None,
        logger=server_log,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        max_line_size=MAX_HEAD_BYTES,
        max_field_size=MAX_HEAD_BYTES,
        max_headers=MAX_HEADERS,
        auto_decompress=False,  # bodies are unpacked within api.max_body
    )
    with bound_sockets(api.listen) as bound:
        try:
            async with accepting(bound, server):
                yield [each.url for each in bound]
        finally:
            with CancelScope(shield=True):  # a request that is being stored must not be forgotten
                await dispatcher.drain(grace)
                server.pre_shutdown()
                await server.shutdown(_ABORT_SECONDS)
