"""The metrics of the HTTP server; ``GET /metrics`` and ``GET /health_check``.

Metrics are plain numbers that become Prometheus families on request. prometheus_client's own instruments take a lock
per number and look up their labels for every request. Counting by route, method and status costs a tenth of that, and
serves both our names and those that AUDITOR documents.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from auditord.errors import StoreDamaged, StoreMisconfigured, StoreUnavailable
from auditord.ingest import Ingest
from auditord.metrics import PlainGauge, PlainHistogram, exposition
from auditord.web.answers import Answer, plain_text

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BYTES: Final = (512.0, 4_096.0, 65_536.0, 1_048_576.0, 16_777_216.0)

AbortReason: TypeAlias = Literal["body_too_large", "not_durable", "stalled", "store_failed", "too_busy", "too_many"]
"""Why a connection was aborted on purpose."""

_LABELS: Final = ("route", "method", "status")
_HISTOGRAMS: Final = (
    "auditord_http_request_duration_seconds",
    "auditord_http_request_size_bytes",
    "auditord_http_response_size_bytes",
)
# Host and port are left out of AUDITOR's labels: clients choose them, so they would grow without bound.
_AUDITOR_LABELS: Final = ("http_route", "http_request_method", "http_response_status_code")
_AUDITOR_HISTOGRAMS: Final = (
    "http_server_duration_seconds",
    "http_server_request_size_bytes",
    "http_server_response_size_bytes",
)


class Histogram:
    """A histogram of numbers."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a number."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def add_to(self, family: PlainHistogram, labels: Iterable[str]) -> None:
        """Add the cumulative buckets to a family."""
        cumulated = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            cumulated += count
            buckets.append((bound, cumulated))
        family.add_metric(list(labels), buckets=buckets, sum_value=self._total)


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
        """Count a request with its duration and the bytes of both bodies."""
        self.count += 1
        self.duration.observe(seconds)
        self.request_size.observe(received)
        self.response_size.observe(sent)


class RouteMetrics:
    """The metrics of one route and method. The status is a code, or ``aborted`` without a response."""

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

    def counted(self) -> Iterable[RequestCounts]:
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
        """Return the families, under our names first."""
        counted = [counts for metrics in self._routes.values() for counts in metrics.counted()]
        yield from self._own_counters(counted)
        yield from _histograms(_HISTOGRAMS, _LABELS, counted)
        yield self._in_flight("auditord_http_requests_in_flight", _LABELS[:2])
        yield from _histograms(_AUDITOR_HISTOGRAMS, _AUDITOR_LABELS, counted)
        yield self._in_flight("http_server_active_requests", _AUDITOR_LABELS[:2])

    def _own_counters(self, counted: Iterable[RequestCounts]) -> Iterator[Metric]:
        requests = CounterMetricFamily("auditord_http_requests", "Finished HTTP requests.", labels=_LABELS)
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
            "Posted records kept in the spool while the record store was away.",
            value=self._spooled(),
        )

    def _in_flight(self, name: str, labels: tuple[str, ...]) -> Metric:
        family = PlainGauge(name, "HTTP requests in flight.", labels=labels)
        for metrics in self._routes.values():
            family.add_metric(metrics.labels, metrics.in_flight)
        return family


def _histograms(
    names: tuple[str, str, str], labels: tuple[str, ...], counted: Iterable[RequestCounts]
) -> tuple[PlainHistogram, ...]:
    durations = PlainHistogram(names[0], "Time until the answer was complete.", labels=labels)
    received = PlainHistogram(names[1], "Announced size of the request's body.", labels=labels)
    sent = PlainHistogram(names[2], "Size of the answer.", labels=labels)
    for counts in counted:
        counts.duration.add_to(durations, counts.labels)
        counts.request_size.add_to(received, counts.labels)
        counts.response_size.add_to(sent, counts.labels)
    return durations, received, sent


log = logging.getLogger(__name__)

HEALTH_SECONDS: Final = 2
"""The time limit in seconds for the write checks of store and spool, each."""

SOON_SECONDS: Final = 0.5
"""The seconds after which a check of the spool suffices, because a bulk write may delay the store."""

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"

_HEALTHY: Final = Answer(200)
_WAITING: Final = "{}: posts go to the send-queue; see auditord status"


@dataclass(frozen=True, slots=True)
class MonitoringHandlers:
    """Handles ``GET /health_check`` and ``GET /metrics``.

    Args:
        checking: the running check, if any.
    """

    ingest: Ingest
    registry: CollectorRegistry
    checking: "list[asyncio.Task[Answer]]" = field(default_factory=list["asyncio.Task[Answer]"])

    async def health(self, _request: web.BaseRequest) -> web.StreamResponse:
        """``GET /health_check``: 200 as long as a POST would be durable, in the store or in the spool.

        With a damaged store it is 500 in any case, because it needs an operator to recover. Requests during a check get
        its result, because each check writes to a disk and any client may request one.
        """
        if not self.checking:
            self.checking.append(asyncio.create_task(self._checked()))
            self.checking[0].add_done_callback(self.checking.remove)
        return await asyncio.shield(self.checking[0])

    async def _checked(self) -> Answer:
        checking = asyncio.create_task(_fault(self.ingest.store.check))
        try:
            await asyncio.wait({checking}, timeout=SOON_SECONDS)
            if not checking.done() and self.ingest.destinations and await _fault(self.ingest.spool.check) is None:
                return _HEALTHY
            return await self._answer(await checking)
        finally:
            checking.cancel()

    async def _answer(self, store: StoreUnavailable | None) -> Answer:
        if store is None:
            return _HEALTHY
        spooling = self.ingest.destinations and not isinstance(store, StoreDamaged)
        if not spooling or await _fault(self.ingest.spool.check) is not None:
            return plain_text(500, _name(store))
        return plain_text(200, _WAITING.format(_name(store)))

    async def metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        """``GET /metrics``: the registry in Prometheus' text format."""
        return Answer(200, exposition(self.registry), PROMETHEUS)


async def _fault(check: Callable[[], Awaitable[object]]) -> StoreUnavailable | None:
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            await check()
    except TimeoutError:
        fault = StoreUnavailable(f"no answer within {HEALTH_SECONDS} s")
    except StoreUnavailable as error:
        fault = error
    else:
        return None
    log.warning("health check: %s", fault)
    return fault


def _name(fault: StoreUnavailable) -> str:
    """Return a public description of a fault. The database's address and messages go only to the log."""
    match fault:
        case StoreDamaged():
            return "the record store is damaged"
        case StoreMisconfigured():
            return "the record store refuses the daemon"
        case _:
            return "the record store is away"
