"""The routes for those who watch over the daemon: ``GET /health_check`` and ``GET /metrics``."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from auditord.errors import StoreUnavailable
from auditord.metrics import exposition
from auditord.store import RecordStore
from auditord.web.answers import Answer
from auditord.web.spooling import RequestSpool

log = logging.getLogger(__name__)

HEALTH_SECONDS: Final = 2
"""How long the store and the spool may each take to say that they can write."""

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"

_HEALTHY: Final = Answer(200)
_UNHEALTHY: Final = Answer(500)


@dataclass(frozen=True, slots=True)
class Operations:
    """The handlers of the routes for operators.

    Args:
        store: where records go.
        spool: where they go while the store is away.
        destinations: the senders that carry on what the spool took; without one, it takes nothing.
        registry: what ``/metrics`` shows.
    """

    store: RecordStore
    spool: RequestSpool
    destinations: Sequence[str]
    registry: CollectorRegistry

    async def health(self, _request: web.BaseRequest) -> web.StreamResponse:
        """``GET /health_check``: 200 as long as a POST would be durable, in the store or in the spool."""
        for check in (self.store.check, self.spool.check) if self.destinations else (self.store.check,):
            try:
                async with asyncio.timeout(HEALTH_SECONDS):
                    await check()
            except (StoreUnavailable, TimeoutError) as error:
                log.warning("health check: %s", str(error) or f"no answer within {HEALTH_SECONDS} s")
            else:
                return _HEALTHY
        return _UNHEALTHY

    async def metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        """``GET /metrics``: every figure of the registry in Prometheus' text format."""
        return Answer(200, exposition(self.registry), PROMETHEUS)
