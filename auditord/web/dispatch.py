"""Routing, the error boundary around handlers, and the metrics of requests.

A dictionary replaces aiohttp's router: the released clients use six paths, and it finds them in a tenth of the time.
Access control (:mod:`auditord.web.access`) wraps the handlers when the table is built, so that it costs nothing without
authenticators.

Metrics are plain numbers that become Prometheus families on request. prometheus_client's own instruments take a lock
per number and look up their labels for every request. Counting by route, method and status costs a tenth of that, and
serves both our names and those that AUDITOR documents.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from http import HTTPMethod
from itertools import accumulate
from time import perf_counter
from typing import Final, Literal, TypeAlias, get_args

import msgspec
from aiohttp import HttpVersion11, web
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from auditord.metrics import PlainFamily, PlainGauge, label_text
from auditord.web.answers import UNSENT, Answer
from auditord.web.hosts import HostCheck
from auditord.web.problems import refuse
from auditord.web.requests import path_for_logs, read_target
from auditord_hookspecs import AuditordError, Permission
from auditord_hookspecs.wording import counted

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
RefuseBrowser: TypeAlias = Callable[[web.BaseRequest, bool], web.StreamResponse | None]
"""Returns the answer to a refused browser, given whether its user is known; None for other programs."""

UNKNOWN_ROUTE: Final = "default"
"""The route label of all paths that do not exist."""

_METHODS: Final = frozenset(HTTPMethod)


SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BYTES: Final = (512.0, 4_096.0, 65_536.0, 1_048_576.0, 16_777_216.0)

AbortReason: TypeAlias = Literal["body_too_large", "not_durable", "stalled", "store_failed", "too_busy", "too_many"]
"""The reasons for aborting a connection."""

_NAMES: Final = (
    (
        ("route", "method", "status"),
        "auditord_http_request_duration_seconds",
        "auditord_http_request_size_bytes",
        "auditord_http_response_size_bytes",
        "auditord_http_requests_in_flight",
    ),
    (
        # Host and port are left out of AUDITOR's labels: clients choose them, so they would grow without bound.
        ("http_route", "http_request_method", "http_response_status_code"),
        "http_server_duration_seconds",
        "http_server_request_size_bytes",
        "http_server_response_size_bytes",
        "http_server_active_requests",
    ),
)
"""Our names and AUDITOR's: of the labels, the histograms and the gauge."""


class Histogram:
    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def buckets(self) -> tuple[Sequence[tuple[str, int]], float]:
        """Return the cumulative counts by upper bound, and the sum of all numbers."""
        return list(zip((*map(str, self._bounds), "+Inf"), accumulate(self._counts), strict=True)), self._total


class PlainHistogram(PlainFamily):
    """A family of histograms, which makes its text without a sample for each line."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], series: Sequence[tuple[Sequence[str], Histogram]]
    ) -> None:
        self._labels = labels
        self._series = series
        super().__init__(name, documentation, "histogram")

    @property
    def samples(self) -> list[Sample]:
        """The samples, for other readers of the registry."""
        family = HistogramMetricFamily(self.name, self.documentation, labels=self._labels)
        for values, histogram in self._series:
            buckets, total = histogram.buckets()
            family.add_metric(values, buckets, total)
        return family.samples

    @samples.setter
    def samples(self, _: list[Sample]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ignore the empty list of the base class."""

    @cached_property
    def text(self) -> str:
        """The samples in Prometheus' text format."""
        lines = [f"# HELP {self.name} {self.documentation}", f"# TYPE {self.name} histogram"]
        name = self.name
        for values, histogram in self._series:
            labels = dict(zip(self._labels, values, strict=True))
            before, after = label_text((*labels.items(), ("le", "\0"))).split("\0")
            buckets, total = histogram.buckets()
            lines += [f"{name}_bucket{before}{bound}{after} {count!r}.0" for bound, count in buckets]
            of_all = label_text(tuple(labels.items()))
            lines += [f"{name}_count{of_all} {buckets[-1][1]!r}.0", f"{name}_sum{of_all} {total!r}"]
        return "\n".join([*lines, ""])


class RequestCounts:
    """Counts of the finished requests of one route, method and status."""

    __slots__ = ("count", "duration", "labels", "request_size", "response_size")

    def __init__(self, *labels: str) -> None:
        self.labels = labels
        self.count = 0
        self.duration = Histogram(SECONDS)
        self.request_size = Histogram(BYTES)
        self.response_size = Histogram(BYTES)

    def observe(self, seconds: float, received: int, sent: int) -> None:
        """Count a request with its duration and the sizes of both bodies in bytes."""
        self.count += 1
        self.duration.observe(seconds)
        self.request_size.observe(received)
        self.response_size.observe(sent)


class RouteMetrics:
    """The metrics of one route and method, by status: a code, or ``aborted`` without a response."""

    __slots__ = ("_by_status", "in_flight", "labels")

    def __init__(self, route: str, method: str) -> None:
        self.labels = (route, method)
        self.in_flight = 0
        self._by_status: dict[int | str, RequestCounts] = {}

    def __getitem__(self, status: int | str) -> RequestCounts:
        counts = self._by_status.get(status)
        if counts is None:
            counts = self._by_status[status] = RequestCounts(*self.labels, str(status))
        return counts

    def list_counts(self) -> Iterable[RequestCounts]:
        """Return the counts by status, in the order of their first appearance."""
        return list(self._by_status.values())


class HttpMetrics(Collector):
    """The metrics of the server, to be registered for ``/metrics``.

    Args:
        spooled: returns the number of posted records that went to the spool.
    """

    def __init__(self, spooled: Callable[[], int] = lambda: 0) -> None:
        self._spooled = spooled
        self._routes: dict[tuple[str, str], RouteMetrics] = {}
        self._aborted: dict[AbortReason, int] = dict.fromkeys(get_args(AbortReason), 0)
        self.refused_bodies = 0
        self.large_records = 0

    def route(self, route: str, method: str) -> RouteMetrics:
        """Return the metrics of a route. Both labels must be from a closed set."""
        return self._routes.setdefault((route, method), RouteMetrics(route, method))

    def count_abort(self, reason: AbortReason) -> None:
        """Count a connection that was aborted on purpose."""
        self._aborted[reason] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, first under our names, then under AUDITOR's."""
        counted = [counts for metrics in self._routes.values() for counts in metrics.list_counts()]
        requests = CounterMetricFamily("auditord_http_requests", "Finished HTTP requests.", labels=_NAMES[0][0])
        for counts in counted:
            requests.add_metric(counts.labels, counts.count)
        aborted = CounterMetricFamily(
            "auditord_http_aborted_connections", "Connections aborted instead of answered.", labels=("reason",)
        )
        for reason, count in self._aborted.items():
            aborted.add_metric((reason,), count)
        yield requests
        yield aborted
        yield CounterMetricFamily(
            "auditord_http_refused_bodies", "POST bodies answered 400, kept in quarantine.", value=self.refused_bodies
        )
        yield CounterMetricFamily(
            "auditord_http_large_records",
            "Stored records whose wire text AUDITOR's asynchronous client cannot read.",
            value=self.large_records,
        )
        yield CounterMetricFamily(
            "auditord_http_spooled_records",
            "Posted records kept in the spool while the record store was unavailable.",
            value=self._spooled(),
        )
        for labels, duration, received, sent, in_flight in _NAMES:
            yield PlainHistogram(
                duration,
                "Time until the answer was complete.",
                labels,
                [(each.labels, each.duration) for each in counted],
            )
            yield PlainHistogram(
                received,
                "Announced size of the request's body.",
                labels,
                [(each.labels, each.request_size) for each in counted],
            )
            yield PlainHistogram(
                sent, "Size of the answer.", labels, [(each.labels, each.response_size) for each in counted]
            )
            family = PlainGauge(in_flight, "HTTP requests in flight.", labels=labels[:2])
            for metrics in self._routes.values():
                family.add_metric(metrics.labels, metrics.in_flight)
            yield family


class Abort(AuditordError):
    """Cut the connection instead of answering: the released clients take any answer to a POST as success.

    Args:
        reason: the label in metrics.
        text: the reason and the remedy, for the operator.

    Remedy:
        none is needed: the client sees a broken connection and posts again, and no record is stored twice. If it
        happens often, see the log for the reason.
    """

    def __init__(self, reason: AbortReason, text: str) -> None:
        super().__init__(text)
        self.reason: AbortReason = reason


class Route(msgspec.Struct, frozen=True):
    """The handler of a method and a path.

    Args:
        path: literal text; a segment in braces matches any one segment.
        permission: the permission that a caller needs if there are authenticators; None for public routes.
        audited: whether each call is written to the audit log.
        patient: handles requests whose body takes time or memory to read; None for the handler itself.
        form: whether it receives a form of the page. Sessions count only for forms and GET, because browsers also send
            cookies with requests from other sites. The handler checks that the form was made for its sender.
        refuse_browser: tells people why they are refused, or redirects them to the login.
    """

    method: str
    path: str
    handler: Handler
    permission: Permission | None
    audited: bool = False
    patient: Handler | None = None
    form: bool = False
    refuse_browser: RefuseBrowser | None = None


class Endpoint(msgspec.Struct, frozen=True):
    """The handlers of a route, and its metrics."""

    handler: Handler
    patient: Handler
    metrics: RouteMetrics


class Dispatcher:
    """Finds the handler of each request and handles its errors.

    Args:
        hosts: refuses requests that foreign pages made a browser send.
        unmatched: handles requests without a route; None to refuse them with 404 or 405.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        metrics: HttpMetrics,
        hosts: HostCheck,
        unmatched: Handler | None = None,
    ) -> None:
        self._metrics = metrics
        self._hosts = hosts
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
        """Answer one request; this is the handler of aiohttp's server."""
        headers, method = request.headers, request.method
        if "Origin" in headers or (method != "POST" and headers.get("Host") not in self._hosts.known):
            refusal = self._hosts.refusal(request)
            if refusal is not None:
                return refusal
        methods = self._endpoints.get(request.raw_path)
        endpoint = (methods.get(method) if methods else None) or self._find(request)
        metrics, started = endpoint.metrics, perf_counter()
        response: web.StreamResponse | None = None
        metrics.in_flight += 1
        self._running.add(request.task)
        try:
            # Most bodies are already in memory and need no more of it.
            is_whole = request.content.is_eof() and "Content-Encoding" not in headers
            response = answer = await (endpoint.handler if is_whole else endpoint.patient)(request)
        except Abort as error:
            self._metrics.count_abort(error.reason)
            log.warning("%s %s from %s: %s", method, path_for_logs(request), _peer(request), error)
            _abort(request)
            return UNSENT
        except (ConnectionError, web.RequestPayloadError, TimeoutError) as error:
            # The text of a RequestPayloadError may quote the body.
            log.info("%s from %s: the client disconnected: %s", method, _peer(request), type(error).__name__)
            _abort(request)
            return UNSENT
        except BaseException:
            # aiohttp logs it and answers 500, which a POST's client would take for success, and which cannot follow
            # the beginning of another response.
            if method == "POST" or request.writer.output_size:
                _abort(request)
            raise
        finally:
            self._running.discard(request.task)
            metrics.in_flight -= 1
            seconds = perf_counter() - started
            received = request.content_length or 0
            if response is not None and response is not UNSENT:
                metrics[response.status].observe(seconds, received, response.body_length)
            else:
                cut_off = request.transport is None or request.transport.is_closing()
                metrics["aborted" if cut_off else 500].observe(seconds, received, 0)
            if self._stopping and not self._running:
                self._idle.set()
        # HTTP/1.0 keeps a connection open only with a header that our answers lack.
        stays = request.keep_alive and request.version == HttpVersion11 and not self._stopping
        return answer.closing() if not stays and isinstance(answer, Answer) else answer

    async def drain(self, grace: timedelta) -> None:
        """Wait for running requests within the grace period and abort the others; each connection closes afterwards.

        An idle connection may still bring a last request meanwhile.
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
        """Return the endpoint of a request: of a literal path, else of a pattern, else the refusal."""
        plain = self._endpoints.get(request.raw_path.partition("?")[0], {}).get(request.method)
        if plain is not None:
            return plain
        target = read_target(request.raw_path)
        methods, segments = self._endpoints.get(target.path, {}), target.segments
        for pattern, found in self._patterns if not methods else ():
            if len(pattern) == len(segments) and all(
                each == segment or each.startswith("{") for each, segment in zip(pattern, segments, strict=True)
            ):
                methods = found
                break
        if (endpoint := methods.get(request.method)) is not None:
            return endpoint

        async def answer_refusal(_request: web.BaseRequest) -> web.StreamResponse:
            return refuse(target.path, methods)

        unmatched = self._unmatched or answer_refusal
        method = request.method if request.method in _METHODS else "other"
        return Endpoint(unmatched, unmatched, self._metrics.route(UNKNOWN_ROUTE, method))


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:  # None once the client has left
        request.transport.abort()


def _peer(request: web.BaseRequest) -> str:
    return request.remote or "a unix socket"
