"""The routes for those who watch over the daemon: ``GET /health_check`` and ``GET /metrics``."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from auditord.errors import StoreDamaged, StoreMisconfigured, StoreUnavailable
from auditord.metrics import exposition
from auditord.store import RecordStore
from auditord.web.answers import Answer, plain_text
from auditord.web.spooling import RequestSpool

log = logging.getLogger(__name__)

HEALTH_SECONDS: Final = 2
"""How long the store and the spool may each take to say that they can write."""

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"

_HEALTHY: Final = Answer(200)
_WAITING: Final = "{}: posts go to the send-queue; see auditord status"


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
        """``GET /health_check``: 200 as long as a POST would be durable, in the store or in the spool.

        With a damaged store it is 500 all the same: that mends by no waiting, and should wake somebody.
        """
        if (store := await _fault(self.store.check)) is None:
            return _HEALTHY
        if isinstance(store, StoreDamaged) or not self.destinations or await _fault(self.spool.check) is not None:
            return plain_text(500, _name(store))
        return plain_text(200, _WAITING.format(_name(store)))

    async def metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        """``GET /metrics``: every figure of the registry in Prometheus' text format."""
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
    """What everybody may know of it; where the database is and what it says is for the log and the operator."""
    match fault:
        case StoreDamaged():
            return "the record store is damaged"
        case StoreMisconfigured():
            return "the record store refuses the daemon"
        case _:
            return "the record store is away"
