"""``GET /metrics`` and ``GET /health_check``."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from auditord.errors import StoreDamaged, StoreMisconfigured, StoreUnavailable
from auditord.ingest import Ingest
from auditord.metrics import exposition
from auditord.web.answers import Answer, plain_text
from auditord.web.operations import Operation
from auditord_hookspecs import Permission

log = logging.getLogger(__name__)

HEALTH_SECONDS: Final = 2
"""The time limit in seconds for each write check of store and spool."""

SOON_SECONDS: Final = 0.5
"""Seconds after which a check of the spool suffices, because a bulk write may delay the store."""

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"

_HEALTHY: Final = Answer(200)
_WAITING: Final = "{}: posts go to the send-queue; see auditord status"


class MonitoringHandlers(msgspec.Struct, frozen=True):
    """Handles ``GET /health_check`` and ``GET /metrics``."""

    ingest: Ingest
    registry: CollectorRegistry
    checking: "list[asyncio.Task[Answer]]" = msgspec.field(default_factory=list["asyncio.Task[Answer]"])

    @Operation("GET", "/health_check", "", "200 as long as a POST would be durable", None)
    async def health(self, _request: web.BaseRequest) -> web.StreamResponse:
        """Answer ``GET /health_check`` with 200 as long as a POST would be durable, in the store or in the spool.

        A damaged store is always a 500, because an operator has to recover it. Concurrent requests share one check,
        because each check writes to a disk and any client may request one.
        """
        if not self.checking:
            self.checking.append(asyncio.create_task(self._check()))
            self.checking[0].add_done_callback(self.checking.remove)
        return await asyncio.shield(self.checking[0])

    async def _check(self) -> Answer:
        checking = asyncio.create_task(_log_fault(self.ingest.store.check))
        try:
            await asyncio.wait({checking}, timeout=SOON_SECONDS)
            if not checking.done() and self.ingest.destinations and await _log_fault(self.ingest.spool.check) is None:
                return _HEALTHY
            store = await checking
            if store is None:
                return _HEALTHY
            spooling = self.ingest.destinations and not isinstance(store, StoreDamaged)
            if not spooling or await _log_fault(self.ingest.spool.check) is not None:
                return plain_text(500, _name(store))
            return plain_text(200, _WAITING.format(_name(store)))
        finally:
            checking.cancel()

    @Operation("GET", "/metrics", "", "Prometheus' text format", Permission.METRICS)
    async def metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        """Answer ``GET /metrics`` with the registry in Prometheus' text format."""
        return Answer(200, exposition(self.registry), PROMETHEUS)


async def _log_fault(check: Callable[[], Awaitable[object]]) -> StoreUnavailable | None:
    if (fault := await fault_of(check)) is not None:
        log.warning("health check: %s", fault)
    return fault


async def fault_of(check: Callable[[], Awaitable[object]]) -> StoreUnavailable | None:
    """Check a database and return why it does not work, or None."""
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            await check()
    except TimeoutError:
        return StoreUnavailable(f"no answer within {HEALTH_SECONDS} s")
    except StoreUnavailable as error:
        return error
    return None


def _name(fault: StoreUnavailable) -> str:
    """Return a public description of a fault. The database's address and messages go only to the log."""
    match fault:
        case StoreDamaged():
            return "the record store is damaged"
        case StoreMisconfigured():
            return "the record store refuses the daemon"
        case _:
            return "the record store is unavailable"
