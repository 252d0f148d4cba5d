"""What one principal may take of the daemon: memory of bodies under way, places for long answers, requests per second.

Whoever asks for more waits. Nobody is answered 413, 429 or 503 for posted records: the released clients take any answer
for success. While a request waits its body is not read, so the connection's own windows hold the client back.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from auditord.errors import StoreUnavailable
from auditord.web.access import principal_name
from auditord.web.bodies import DEMAND, Demand, most_unpacked
from auditord.web.dispatch import Abort, Handler
from auditord.web.shares import Shares

PATIENCE: Final = 300.0
"""Seconds that a request waits for its turn before it is cut off."""

READING_PATIENCE: Final = 60.0
"""Seconds that a long answer waits for its turn."""

_REMEMBERED: Final = 10_000


class Pace:
    """When each principal's next request may go on.

    Args:
        rate: requests per second; as many may come at once.
        clock: seconds that only go forward.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._next: OrderedDict[str, float] = OrderedDict()

    def delay(self, who: str) -> float:
        """Seconds that this request must wait; it counts from now on."""
        now = self._clock()
        due = max(self._next.pop(who, 0.0), now - 1.0)
        self._next[who] = due + 1.0 / self._rate
        if len(self._next) > _REMEMBERED:
            self._next.popitem(last=False)
        return max(0.0, due - now)


@dataclass(frozen=True, slots=True)
class Uploads:
    """Memory of bodies.

    Args:
        memory: of all of them, in bytes.
        max_body: what a body may take whose size nobody knows before.
    """

    memory: Shares
    max_body: int

    def size(self, request: web.BaseRequest) -> int:
        """Bytes that the body may take once it is unpacked; one of unknown length, as much as is allowed."""
        if request.content_length is None:
            return self.max_body
        if "Content-Encoding" in request.headers:
            return most_unpacked(request.content_length, self.max_body)
        return min(request.content_length, self.max_body)


def rationed(handler: Handler, uploads: Uploads, pace: Pace | None, weight: int = 1) -> Handler:
    """The handler, for requests whose turn it is.

    Args:
        handler: takes the request.
        uploads: the memory of bodies.
        pace: of each principal, if there is a limit.
        weight: how many times its body a request counts.
    """

    async def waiting(request: web.BaseRequest) -> web.StreamResponse:
        who = holder(request)
        if pace is not None and (delay := pace.delay(who)):
            await _sleep(delay)
        if request.content.is_eof() and "Content-Encoding" not in request.headers:
            return await handler(request)
        async with _in_time(uploads.memory, who, weight * uploads.size(request)):
            request[DEMAND] = Demand(lambda: uploads.memory.is_wanted(who))
            return await handler(request)

    return waiting


@asynccontextmanager
async def place(places: Shares, request: web.BaseRequest) -> AsyncGenerator[None, None]:
    """Hold one of the places for long answers, in turn.

    Raises:
        StoreUnavailable: others held them for too long.
    """
    held = places.held(holder(request), 1)
    try:
        async with asyncio.timeout(READING_PATIENCE):
            await held.__aenter__()
    except TimeoutError as error:
        raise StoreUnavailable("api.max_long_reads other answers have been under way for too long") from error
    try:
        yield
    finally:
        await held.__aexit__(None, None, None)


def holder(request: web.BaseRequest) -> str:
    """In whose name a request holds what it holds: the principal's or, where nobody is asked, the address's."""
    return principal_name(request) or request.remote or ""


async def _sleep(delay: float) -> None:
    if delay > PATIENCE:
        raise Abort("too_busy", "more requests than api.requests_per_second allows; the client was cut off")
    await asyncio.sleep(delay)


@asynccontextmanager
async def _in_time(memory: Shares, who: str, size: int) -> AsyncGenerator[None, None]:
    held = memory.held(who, size)
    try:
        async with asyncio.timeout(PATIENCE):
            await held.__aenter__()
    except TimeoutError as error:
        raise Abort("too_busy", "other bodies held api.max_uploads for too long; the client was cut off") from error
    try:
        yield
    finally:
        await held.__aexit__(None, None, None)
