"""From a request to its handler, and the border that no fault of a handler crosses.

One table instead of aiohttp's router: the released clients use six paths, and a dictionary finds them in a tenth of the
time. Access control (:mod:`auditord.web.access`) is put around the handlers when the table is built, so that it costs
nothing where there is none.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPMethod
from time import perf_counter
from typing import Final, TypeAlias

from aiohttp import HttpVersion11, web

from auditord.web.answers import UNSENT, Answer
from auditord.web.hosts import HostCheck
from auditord.web.metrics import AbortReason, HttpMetrics, RouteMetrics
from auditord.web.problems import refuse_bare
from auditord.web.requests import read_target
from auditord_hookspecs import AuditordError, Permission
from auditord_hookspecs.wording import counted

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refuse: TypeAlias = Callable[[str, Collection[str]], Answer]
RefuseBrowser: TypeAlias = Callable[[web.BaseRequest, bool], web.StreamResponse | None]
"""Makes the answer to a browser that is refused, knowing whether its user is known; None for all other programs."""

UNKNOWN_ROUTE: Final = "default"
"""The one route label of all paths that do not exist."""

_METHODS: Final = frozenset(HTTPMethod)


class Abort(AuditordError):
    """Cut the connection instead of answering: the released clients take any answer to a POST as success.

    Args:
        reason: why, as a metric's label.
        text: why and what to do, for the operator.

    Remedy:
        none is needed: the client sees a broken connection and posts again, and nothing of the request is stored twice.
        If it happens often, see the log for the reason.
    """

    def __init__(self, reason: AbortReason, text: str) -> None:
        super().__init__(text)
        self.reason: AbortReason = reason


@dataclass(frozen=True, slots=True)
class Route:
    """The handler of a method and a path.

    Args:
        method: of the request.
        path: literal text; a segment in braces matches any one segment.
        handler: makes the answer.
        permission: the permission that a call needs if there are authenticators; None for public routes.
        audited: whether each call is noted in the audit log.
        patient: makes the answer to requests whose body takes time or memory to read; None for the handler itself.
        form: whether it is a form of the page. Sessions count only for forms and for GET, since browsers send cookies
            even if another site has made the request. The form's handler checks that the form was made for its sender.
        refuse_browser: shows people why they are refused, or where they log in.
    """

    method: str
    path: str
    handler: Handler
    permission: Permission | None
    audited: bool = False
    patient: Handler | None = None
    form: bool = False
    refuse_browser: RefuseBrowser | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The handlers of a route, and its metrics."""

    handler: Handler
    patient: Handler
    metrics: RouteMetrics


class Dispatcher:
    """Finds the handler of each request and answers for its faults.

    Args:
        routes: who answers what.
        metrics: of all routes.
        hosts: refuses what browsers were made to send.
        refuse: makes the answer where no route takes a request, from the path and the methods that are taken there.
        unmatched: answers instead where no route takes a request.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        metrics: HttpMetrics,
        hosts: HostCheck,
        refuse: Refuse = refuse_bare,
        unmatched: Handler | None = None,
    ) -> None:
        self._metrics = metrics
        self._hosts = hosts
        self._refuse = refuse
        self._unmatched = unmatched
        self._endpoints: dict[str, dict[str, Endpoint]] = {}
        for route in routes:
            endpoint = Endpoint(route.handler, route.patient or route.handler, metrics.route(route.path, route.method))
            self._endpoints.setdefault(route.path, {})[route.method] = endpoint
        self._patterns = [(path.split("/")[1:], found) for path, found in self._endpoints.items() if "{" in path]
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._idle = asyncio.Event()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; this is the handler of the aiohttp server."""
        headers, method = request.headers, request.method
        if "Origin" in headers or (method != "POST" and headers.get("Host") not in self._hosts.known):
            refusal = self._hosts.refusal(request)
            if refusal is not None:
                return refusal
        methods = self._endpoints.get(request.raw_path)
        endpoint = methods.get(method) if methods else None
        response = await self._run(endpoint or self._find(request), request)
        # HTTP/1.0 would need a header that no answer has for the connection to stay open.
        stays = request.keep_alive and request.version == HttpVersion11 and not self._stopping
        return response.closing() if not stays and isinstance(response, Answer) else response

    async def drain(self, grace: timedelta) -> None:
        """Let running requests finish within the grace period and abort the others; each connection ends behind them.

        Connections that idle may still bring a last request meanwhile.
        """
        self._stopping = True
        if self._running:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace.total_seconds()):
                    await self._idle.wait()
        if self._running:
            log.warning(
                "%s not finish within %s: cut off", counted(len(self._running), "request did", "requests did"), grace
            )
        for task in self._running:
            task.cancel()

    def _find(self, request: web.BaseRequest) -> Endpoint:
        plain = self._endpoints.get(request.raw_path.partition("?")[0], {}).get(request.method)
        if plain is not None:
            return plain
        target = read_target(request.raw_path)
        methods = self._endpoints.get(target.path) or self._matching(target.segments)
        return methods.get(request.method) or self._refusing(request, self._refuse(target.path, methods))

    def _matching(self, segments: Sequence[str]) -> Mapping[str, Endpoint]:
        """The endpoints of the pattern that a path fits; literal paths were looked for before."""
        for pattern, methods in self._patterns:
            if len(pattern) == len(segments) and all(
                each == segment or each.startswith("{") for each, segment in zip(pattern, segments, strict=True)
            ):
                return methods
        return {}

    def _refusing(self, request: web.BaseRequest, answer: Answer) -> Endpoint:
        async def handler(_request: web.BaseRequest) -> web.StreamResponse:
            return answer

        method = request.method if request.method in _METHODS else "other"
        unmatched = self._unmatched or handler
        return Endpoint(unmatched, unmatched, self._metrics.route(UNKNOWN_ROUTE, method))

    async def _run(self, endpoint: Endpoint, request: web.BaseRequest) -> web.StreamResponse:
        metrics = endpoint.metrics
        response: web.StreamResponse | None = None
        begun = perf_counter()
        metrics.in_flight += 1
        self._running.add(request.task)
        try:
            # Most bodies are in memory by now, and take no more of it.
            is_whole = request.content.is_eof() and "Content-Encoding" not in request.headers
            response = await (endpoint.handler if is_whole else endpoint.patient)(request)
        except BaseException as error:
            if not self._is_cut_off(request, error):
                raise
            return UNSENT
        else:
            return response
        finally:
            self._running.discard(request.task)
            metrics.in_flight -= 1
            _count(metrics, request, response, perf_counter() - begun)
            if self._stopping and not self._running:
                self._idle.set()

    def _is_cut_off(self, request: web.BaseRequest, error: BaseException) -> bool:
        """Abort the connection where any answer would mislead the client; False for a fault of our own.

        That is to be raised: aiohttp logs it and answers 500, except that a POST was aborted before (the client would
        take the 500 as success) and so was an answer under way.
        """
        match error:
            case Abort():
                self._metrics.count_abort(error.reason)
                log.warning("%s %s from %s: %s", request.method, request.raw_path[:200], _peer(request), error)
            case ConnectionError() | web.RequestPayloadError() | TimeoutError():
                log.info("%s from %s: the client left: %r", request.method, _peer(request), error)
            case _:
                if request.method == "POST" or request.writer.output_size:
                    _abort(request)
                return False
        _abort(request)
        return True


def _count(
    metrics: RouteMetrics, request: web.BaseRequest, response: web.StreamResponse | None, seconds: float
) -> None:
    received = request.content_length or 0
    if response is not None and response is not UNSENT:
        sent = response.body_length
        metrics[response.status].observe(seconds, received, sent)
    else:  # aiohttp answers a fault of our own with 500, where the connection was not aborted
        cut_off = request.transport is None or request.transport.is_closing()
        metrics["aborted" if cut_off else 500].observe(seconds, received, 0)


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:  # None once the client has left
        request.transport.abort()


def _peer(request: web.BaseRequest) -> str:
    return request.remote or "a unix socket"
