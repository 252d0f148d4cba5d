"""What one principal may take of the daemon: memory of bodies under way, and requests per second.

Whoever asks for more waits. Nobody is answered 413, 429 or 503 for posted records: the released clients take any answer
for success. While a request waits its body is not read, so the connection's own windows hold the client back.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from auditord.web.access import principal_name
from auditord.web.dispatch import Abort, Handler

PATIENCE: Final = 300.0
"""Seconds that a request waits for its turn before it is cut off."""

_REMEMBERED: Final = 10_000
_SLOWEST: Final = 16_384
"""Bytes per second: slower than that, a large body holds memory that others wait for."""
_UPLOAD_GRACE: Final = 60.0


class Memory:
    """Bytes that bodies under way may take together; no principal gets more than half of them at a time.

    Args:
        most: so many bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = most
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[asyncio.Future[None], tuple[str, int]] = OrderedDict()

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self._free

    @asynccontextmanager
    async def held(self, who: str, size: int) -> AsyncGenerator[None, None]:
        """Hold so many bytes (at most half of all), in turn."""
        size = min(size, self._most // 2)
        if self._waiting or not self._fits(who, size):
            await self._wait(who, size)
        else:
            self._take(who, size)
        try:
            yield
        finally:
            self._give_back(who, size)

    def _fits(self, who: str, size: int) -> bool:
        return size <= self._free and self._held.get(who, 0) + size <= self._most // 2

    def _take(self, who: str, size: int) -> None:
        self._free -= size
        self._held[who] = self._held.get(who, 0) + size

    def _give_back(self, who: str, size: int) -> None:
        self._free += size
        left = self._held.pop(who, 0) - size  # nothing is held where all asked for no bytes at all
        if left > 0:
            self._held[who] = left
        self._serve()

    async def _wait(self, who: str, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = (who, size)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given in the same instant
                self._give_back(who, size)
            raise
        finally:
            self._waiting.pop(turn, None)

    def _serve(self) -> None:
        """Give to those who wait, the first ones first; one whose own share is used up holds up nobody else."""
        for turn, (who, size) in list(self._waiting.items()):
            if size > self._free:
                return
            if not turn.done() and self._fits(who, size):
                self._take(who, size)
                del self._waiting[turn]
                turn.set_result(None)


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


def rationed(handler: Handler, memory: Memory, pace: Pace | None, max_body: int) -> Handler:
    """The handler, for requests whose turn it is.

    Args:
        handler: takes the request.
        memory: of all bodies.
        pace: of each principal, if there is a limit.
        max_body: what a body may take whose size nobody knows before.
    """

    async def waiting(request: web.BaseRequest) -> web.StreamResponse:
        if pace is not None and (delay := pace.delay(_who(request))):
            await _sleep(delay)
        if request.content.is_eof() and "Content-Encoding" not in request.headers:
            return await handler(request)
        size = _size(request, max_body)
        async with _in_time(memory, _who(request), size):
            return await _within(handler, request, size)

    return waiting


async def _within(handler: Handler, request: web.BaseRequest, size: int) -> web.StreamResponse:
    timer = asyncio.get_running_loop().call_later(_UPLOAD_GRACE + size / _SLOWEST, _cut_off_if_sending, request)
    try:
        return await handler(request)
    finally:
        timer.cancel()


def _cut_off_if_sending(request: web.BaseRequest) -> None:
    """A body that drips holds memory; once it is here, the handler may take as long as it likes."""
    if not request.content.is_eof() and request.transport is not None:
        request.transport.abort()


async def _sleep(delay: float) -> None:
    if delay > PATIENCE:
        raise Abort("too_busy", "more requests than api.requests_per_second allows; the client was cut off")
    await asyncio.sleep(delay)


@asynccontextmanager
async def _in_time(memory: Memory, who: str, size: int) -> AsyncGenerator[None, None]:
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


def _size(request: web.BaseRequest, max_body: int) -> int:
    """Bytes that the body may take: a packed one, or one of unknown length, as much as is allowed."""
    if request.content_length is None or "Content-Encoding" in request.headers:
        return max_body
    return min(request.content_length, max_body)


def _who(request: web.BaseRequest) -> str:
    return principal_name(request) or request.remote or ""
