"""The life of the HTTP server: from bound sockets to the last answer."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final

from aiohttp import web
from anyio import CancelScope
from prometheus_client import CollectorRegistry

from auditord.config.model import ApiSection
from auditord.store import RecordStore
from auditord.web.dispatch import Dispatcher, Route
from auditord.web.figures import HttpFigures
from auditord.web.listeners import bound_sockets, url
from auditord.web.operations import Operations
from auditord.web.reading import Reading
from auditord.web.rubbish import server_log
from auditord.web.spooling import RequestSpool
from auditord.web.writing import Writing

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS: Final = 3_630
"""Longer than any client keeps an idle connection (reqwest, in every AUDITOR client: 90 s; proxies up to an hour).
Were it shorter, the server could close a connection in the instant in which a client sends a POST over it, which the
clients report as a fault and do not repeat."""

MAX_HEAD_BYTES: Final = 65_536
"""Of a request line (the longest query) and of one header."""

MAX_HEADERS: Final = 100

_BACKLOG: Final = 1_024
_ABORT_SECONDS: Final = 1.0


@asynccontextmanager
async def serve(
    api: ApiSection,
    *,
    store: RecordStore,
    spool: RequestSpool,
    destinations: Sequence[str],
    registry: CollectorRegistry,
    now: Callable[[], datetime],
    grace: timedelta,
) -> AsyncGenerator[Sequence[str], None]:
    """Serve the wire contract on every address of ``api.listen``; yields their URLs once clients can connect.

    Leaving stops accepting, lets running requests finish within the grace period, then aborts what is left.

    Args:
        api: the configuration.
        store: where records are.
        spool: where posts go while the store is away, and bodies that were refused.
        destinations: the senders that carry on what the spool took from the API.
        registry: gets the HTTP figures, and is what ``/metrics`` shows.
        now: the clock.
        grace: how long running requests may take once the context is left.

    Raises:
        ConfigurationError: an address cannot be had.
    """
    figures = HttpFigures()
    writing = Writing(store, spool, destinations, api.duplicates, api.max_body, now, figures)
    dispatcher = Dispatcher(
        wire_routes(writing, Reading(store), Operations(store, spool, destinations, registry)), figures
    )
    registry.register(figures)
    try:
        async with listening(dispatcher, api, grace) as urls:
            yield urls
    finally:
        registry.unregister(figures)


def wire_routes(writing: Writing, reading: Reading, operations: Operations) -> tuple[Route, ...]:
    """AUDITOR's routes."""
    return (
        Route("POST", "/record", writing.add_one),
        Route("PUT", "/record", writing.stop),
        Route("POST", "/records", writing.add_many),
        Route("GET", "/record/{record_id}", reading.get_one),
        Route("GET", "/records", reading.get_many),
        Route("GET", "/health_check", operations.health),
        Route("GET", "/metrics", operations.metrics),
    )


@asynccontextmanager
async def listening(dispatcher: Dispatcher, api: ApiSection, grace: timedelta) -> AsyncGenerator[Sequence[str], None]:
    """Connections to every address of ``api.listen`` reach the dispatcher; see :func:`serve`."""
    server = web.Server(
        dispatcher.handle,
        access_log=None,
        logger=server_log,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        max_line_size=MAX_HEAD_BYTES,
        max_field_size=MAX_HEAD_BYTES,
        max_headers=MAX_HEADERS,
        auto_decompress=False,  # bodies are unpacked within api.max_body
    )
    with bound_sockets(api.listen) as sockets:
        listeners = [await _listen(server, sock) for sock in sockets]
        try:
            yield [url(sock) for sock in sockets]
        finally:
            for listener in listeners:
                listener.close()
            with CancelScope(shield=True):  # a request that is being stored must not be forgotten
                await dispatcher.drain(grace)
                server.pre_shutdown()
                await server.shutdown(_ABORT_SECONDS)


async def _listen(server: web.Server, sock: socket.socket) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
    return await create(server, sock=sock, backlog=_BACKLOG)
