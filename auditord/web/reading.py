"""Limits of what one principal may hold at a time: memory for bodies, places for long answers, disk, requests.

No principal gets more than half of anything; a request that needs more waits. Posted records are never answered with
413, 429 or 503, because the released clients take any answer for success. While a request waits, its body is not read,
so that TCP holds the client back.

Most sums have few groups. A query with more groups is repeated in a place for large answers. There are two of these, at
most one for each principal. So memory is bounded for any query, and other queries continue.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Final, TypeAlias, TypeVar

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.database.readers import Threads
from auditord.errors import StoreUnavailable
from auditord.web.bodies import DEMAND, Demand, most_unpacked
from auditord.web.dispatch import Abort, Handler
from auditord.web.requests import holder
from auditord_hookspecs import AggregateQuery, Aggregates, AuditordError, TooManyGroups

UPLOAD_PATIENCE: Final = 300.0
"""Seconds that an upload waits for its turn before it is cut off."""

_REMEMBERED: Final = 10_000


class Shares:
    """A number of units that requests share. No principal holds more than half of them at a time.

    A request that finds too few units waits. Waiting principals are served in turn, the one served longest ago first,
    and the requests of each in order. Thus a long queue of one principal does not delay another principal.
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
        """The number of free units."""
        return self._free

    def is_wanted(self, who: str) -> bool:
        """Return whether another request waits that could go on if this principal held less."""
        return any(who == waiting or self._may_hold(waiting, size) for waiting, size in self._waiting.values())

    @asynccontextmanager
    async def held(self, who: str, size: int) -> AsyncGenerator[None, None]:
        """Hold units (at most half of all) within the context, after waiting in turn."""
        size = min(size, self._half)
        if self._waiting or not self.take(who, size):
            await self._wait(who, size)
        try:
            yield
        finally:
            self.give_back(who, size)

    def take(self, who: str, size: int) -> bool:
        """Take units, which must be given back; return False if there are too few."""
        if size > self._free or not self._may_hold(who, size):
            return False
        self._take(who, size)
        return True

    def give_back(self, who: str, size: int) -> None:
        """Give back units."""
        self._free += size
        left = self._held.pop(who, 0) - size  # 0 for requests of no units
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
            if turn.done() and not turn.cancelled():  # granted in the same instant
                self.give_back(who, size)
            raise
        finally:
            if self._waiting.pop(turn, None) is not None:
                self._serve()  # others may have waited for this one

    def _serve(self) -> None:
        while (turn := self._next()) is not None:
            self._take(*self._waiting.pop(turn))
            turn.set_result(None)

    def _next(self) -> "asyncio.Future[None] | None":
        """Return the next waiter to serve. A principal that has used up its share does not block others."""
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
        rate: requests per second, and the size of a burst.
        clock: monotonic seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._next: OrderedDict[str, float] = OrderedDict()

    def delay(self, who: str) -> float:
        """Count a request and return the seconds that it must wait."""
        now = self._clock()
        due = max(self._next.pop(who, 0.0), now - 1.0)
        self._next[who] = due + 1.0 / self._rate
        if len(self._next) > _REMEMBERED:
            self._next.popitem(last=False)
        return max(0.0, due - now)


class Uploads(msgspec.Struct, frozen=True):
    """The memory for request bodies.

    Args:
        memory: the bytes for all bodies.
        max_body: the bytes for a body of unknown size.
    """

    memory: Shares
    max_body: int

    def size(self, request: web.BaseRequest) -> int:
        """Return the most bytes that the unpacked body may take."""
        if request.content_length is None:
            return self.max_body
        if "Content-Encoding" in request.headers:
            return most_unpacked(request.content_length, self.max_body)
        return min(request.content_length, self.max_body)


def limited(handler: Handler, uploads: Uploads, rate: RateLimit | None, weight: int = 1) -> Handler:
    """Wrap a handler so that requests wait for their turn: all if there is a rate, else those with a long body.

    Args:
        handler: handles the request.
        uploads: the memory for bodies.
        rate: the rate limit of each principal, if any.
        weight: the factor by which a body counts.
    """

    async def waiting(request: web.BaseRequest) -> web.StreamResponse:
        who = holder(request)
        if rate is not None and (delay := rate.delay(who)):
            if delay > UPLOAD_PATIENCE:
                raise Abort("too_busy", "more requests than api.requests_per_second allows; the client was cut off")
            await asyncio.sleep(delay)
        if request.content.is_eof() and "Content-Encoding" not in request.headers:
            return await handler(request)
        late = Abort("too_busy", "other bodies held api.max_uploads for too long; the client was cut off")
        async with held_in_time(uploads.memory, who, weight * uploads.size(request), UPLOAD_PATIENCE, late):
            request[DEMAND] = Demand(lambda: uploads.memory.is_wanted(who))
            return await handler(request)

    return waiting


@asynccontextmanager
async def held_in_time(
    shares: Shares, who: str, size: int, patience: float, late: AuditordError
) -> AsyncGenerator[None, None]:
    """Hold units within the context; raise ``late`` if waiting takes longer than the patience in seconds."""
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(patience):
                await stack.enter_async_context(shares.held(who, size))
        except TimeoutError as error:
            raise late from error
        yield


T = TypeVar("T")

Aggregate: TypeAlias = Callable[[AggregateQuery], Awaitable[Aggregates]]

PATIENCE: Final = 60.0
"""Seconds that an answer waits for its turn."""

FEW_GROUPS: Final = 10_000
"""The most groups of a query in any place: some 10 MB."""

MANY_GROUPS: Final = 50_000
"""The most groups of a query in a place for large answers: some 60 MB including the response."""

_LARGE: Final = 2
_THREADS: Final = 4


class ReadingPlaces:
    """Places for answers that read the store, and threads that process the results.

    Args:
        most: the most answers that may read at a time.
    """

    def __init__(self, most: int) -> None:
        self._any = Shares(most)
        self._large = Shares(_LARGE)
        self._threads = Threads(_THREADS, "answers")

    def close(self) -> None:
        """End the threads; blocks until they have finished."""
        self._threads.close()

    def is_wanted(self, who: str) -> bool:
        """Return whether others wait for a place that a principal may hold."""
        return self._any.is_wanted(who) or self._large.is_wanted(who)

    def one(self, who: str) -> AbstractAsyncContextManager[None]:
        """Hold a place, after waiting in turn.

        Raises:
            StoreUnavailable: other answers held all places for too long.
        """
        late = StoreUnavailable("api.max_long_reads other answers have been under way for too long")
        return held_in_time(self._any, who, 1, PATIENCE, late)

    @asynccontextmanager
    async def large(self, who: str) -> AsyncGenerator[None, None]:
        """Hold a place for a large answer, after waiting in turn.

        Raises:
            StoreUnavailable: other answers held all places for too long.
        """
        late = StoreUnavailable("other large answers have been under way for too long")
        async with held_in_time(self._large, who, 1, PATIENCE, late), self.one(who):
            yield

    @asynccontextmanager
    async def few(self, who: str, aggregate: Aggregate, query: AggregateQuery) -> AsyncGenerator[Aggregates, None]:
        """Sums of few groups, with the place that they were made in.

        Raises:
            TooManyGroups: there are more.
        """
        async with self.one(who):
            yield await aggregate(replace(query, most_groups=FEW_GROUPS))

    @asynccontextmanager
    async def summed(self, who: str, aggregate: Aggregate, query: AggregateQuery) -> AsyncGenerator[Aggregates, None]:
        """Sums, with the place that they were made in.

        Raises:
            TooManyGroups: there are more than :data:`MANY_GROUPS`.
        """
        async with AsyncExitStack() as stack:
            found = None
            with suppress(TooManyGroups):  # left before the retry, because the traceback refers to the sums
                found = await stack.enter_async_context(self.few(who, aggregate, query))
            if found is None:
                await stack.enter_async_context(self.large(who))
                found = await aggregate(replace(query, most_groups=MANY_GROUPS))
            yield found

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in a thread.

        A cancelled caller waits for its end, because a place is not free while work for it is running.
        """
        working = self._threads.run(work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            while not working.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([working])
            working.exception()  # marks an error as retrieved
            raise
