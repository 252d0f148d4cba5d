"""Limits of what one principal may hold at a time: memory of bodies, slots for long answers, disk, requests.

Nobody gets more than half of anything, and a request that asks for more waits. Nobody is answered 413, 429 or 503 for
posted records: the released clients take any answer for success. While a request waits its body is not read, so the
connection's own windows hold the client back.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

from aiohttp import web

from auditord.web.bodies import DEMAND, Demand, most_unpacked
from auditord.web.dispatch import Abort, Handler
from auditord.web.requests import holder
from auditord_hookspecs import AuditordError

PATIENCE: Final = 300.0
"""Seconds that a request waits for its turn before it is cut off."""

_REMEMBERED: Final = 10_000


class Shares:
    """Units that requests may hold together; no principal gets more than half of them at a time.

    A request that finds too little waits. Principals are served in turn, the longest ago served first, and requests of
    each in their order: however many requests one of them has waiting, another one's is next.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = most
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[asyncio.Future[None], tuple[str, int]] = OrderedDict()
        self._served: OrderedDict[str, int] = OrderedDict()
        self._numbers = count(1)

    @property
    def free(self) -> int:
        """Units that nobody holds."""
        return self._free

    def is_wanted(self, who: str) -> bool:
        """True if another request waits that could go on if this principal held less."""
        return any(who == waiting or self._may_hold(waiting, size) for waiting, size in self._waiting.values())

    @asynccontextmanager
    async def held(self, who: str, size: int) -> AsyncGenerator[None, None]:
        """Hold so many units (at most half of all), in turn."""
        size = min(size, self._half)
        if self._waiting or not self.take(who, size):
            await self._wait(who, size)
        try:
            yield
        finally:
            self.give_back(who, size)

    def take(self, who: str, size: int) -> bool:
        """Hold so many units from now on, if that can be; else False. To be given back."""
        if size > self._free or not self._may_hold(who, size):
            return False
        self._take(who, size)
        return True

    def give_back(self, who: str, size: int) -> None:
        """Hold so many less."""
        self._free += size
        left = self._held.pop(who, 0) - size  # nothing is held where all asked for no units at all
        if left > 0:
            self._held[who] = left
        self._serve()

    @property
    def _half(self) -> int:
        return max(1, self._most // 2)

    def _may_hold(self, who: str, size: int) -> bool:
        return self._held.get(who, 0) + size <= self._half

    def _take(self, who: str, size: int) -> None:
        self._free -= size
        self._held[who] = self._held.get(who, 0) + size
        self._served.pop(who, None)
        self._served[who] = next(self._numbers)
        if len(self._served) > _REMEMBERED:
            self._served.popitem(last=False)

    async def _wait(self, who: str, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = (who, size)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given in the same instant
                self.give_back(who, size)
            raise
        finally:
            if self._waiting.pop(turn, None) is not None:
                self._serve()  # others may have waited behind this one

    def _serve(self) -> None:
        while (turn := self._next()) is not None:
            self._take(*self._waiting.pop(turn))
            turn.set_result(None)

    def _next(self) -> "asyncio.Future[None] | None":
        """The next one to be served; a principal whose own share is used up holds up nobody else."""
        first: dict[str, asyncio.Future[None]] = {}
        for turn, (who, _) in self._waiting.items():
            if not turn.done():
                first.setdefault(who, turn)
        for who in sorted(first, key=lambda who: self._served.get(who, 0)):
            turn = first[who]
            _, size = self._waiting[turn]
            if self._may_hold(who, size):
                return turn if size <= self._free else None
        return None


class RateLimit:
    """A limit of requests per second for each principal.

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


def limited(handler: Handler, uploads: Uploads, rate: RateLimit | None, weight: int = 1) -> Handler:
    """The handler for requests that wait for their turn: all where there is a rate, else those with much to read.

    Args:
        handler: takes the request.
        uploads: the memory of bodies.
        rate: of each principal, if there is a limit.
        weight: how many times its body a request counts.
    """

    async def waiting(request: web.BaseRequest) -> web.StreamResponse:
        who = holder(request)
        if rate is not None and (delay := rate.delay(who)):
            if delay > PATIENCE:
                raise Abort("too_busy", "more requests than api.requests_per_second allows; the client was cut off")
            await asyncio.sleep(delay)
        if request.content.is_eof() and "Content-Encoding" not in request.headers:
            return await handler(request)
        late = Abort("too_busy", "other bodies held api.max_uploads for too long; the client was cut off")
        async with held_in_time(uploads.memory, who, weight * uploads.size(request), PATIENCE, late):
            request[DEMAND] = Demand(lambda: uploads.memory.is_wanted(who))
            return await handler(request)

    return waiting


@asynccontextmanager
async def held_in_time(
    shares: Shares, who: str, size: int, patience: float, late: AuditordError
) -> AsyncGenerator[None, None]:
    """Hold units in turn; raises ``late`` if others hold them for more seconds than the patience."""
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(patience):
                await stack.enter_async_context(shares.held(who, size))
        except TimeoutError as error:
            raise late from error
        yield
