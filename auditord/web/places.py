"""Places for answers: shares of a limited resource, for which principals take turns.

No principal gets more than half of any resource; a request that needs more waits.

Most sums have few groups. A query with more groups is repeated in a place for large answers. There are two of these, at
most one for each principal. So memory is bounded for any query, and other queries continue.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from auditord.database.readers import Threads
from auditord.errors import StoreUnavailable
from auditord.web.limits import FEW_GROUPS, MANY_GROUPS
from auditord_hookspecs import AggregateQuery, Aggregates, AuditordError, TooManyGroups

MOST_REMEMBERED: Final = 10_000
"""The principals whose last turns are remembered."""


class Shares:
    """A pool of units that requests share. No principal holds more than half of them at a time.

    A request waits if too few units are free. The least recently served principal is next, and the requests of each
    principal are served in order. So a long queue of one principal does not delay another.
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
        return self._free

    def is_wanted(self, who: str) -> bool:
        """Return whether a request is waiting that could proceed if this principal held less."""
        return any(who == waiting or self._may_hold(waiting, size) for waiting, size in self._waiting.values())

    @asynccontextmanager
    async def hold(self, who: str, size: int) -> AsyncGenerator[None, None]:
        """Hold units (at most half of all) within the context, waiting for them if necessary."""
        size = min(size, self._half)
        if self._waiting or not self.take(who, size):
            turn = asyncio.get_running_loop().create_future()
            self._waiting[turn] = (who, size)
            self._serve()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # granted at the same moment
                    self.give_back(who, size)
                raise
            finally:
                if self._waiting.pop(turn, None) is not None:
                    self._serve()  # others may have waited behind this request
        try:
            yield
        finally:
            self.give_back(who, size)

    def take(self, who: str, size: int) -> bool:
        """Take units, which must be given back; return False if too few are free for this principal."""
        if size > self._free or not self._may_hold(who, size):
            return False
        self._take(who, size)
        return True

    def give_back(self, who: str, size: int) -> None:
        """Return units to the pool and serve waiting requests."""
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
        if len(self._served) > MOST_REMEMBERED:
            self._served.popitem(last=False)

    def _serve(self) -> None:
        while (turn := self._next()) is not None:
            self._take(*self._waiting.pop(turn))
            turn.set_result(None)

    def _next(self) -> "asyncio.Future[None] | None":
        """Return the next request to serve. A principal that has used up its share does not block others."""
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


@asynccontextmanager
async def hold_in_time(
    shares: Shares, who: str, size: int, patience: float, late: AuditordError
) -> AsyncGenerator[None, None]:
    """Hold units within the context; raise ``late`` after waiting for ``patience`` seconds."""
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(patience):
                await stack.enter_async_context(shares.hold(who, size))
        except TimeoutError as error:
            raise late from error
        yield


T = TypeVar("T")

Aggregate: TypeAlias = Callable[[AggregateQuery], Awaitable[Aggregates]]

PATIENCE: Final = 30.0
"""Seconds that an answer may wait for its turn, counted from its first wait. So half of a client's patience remains."""

_LARGE: Final = 2
_THREADS: Final = 4


def _now() -> float:
    return asyncio.get_running_loop().time()


class GrowingPlace:
    """The place of an answer that may turn out to be large. All its waits together last for :data:`PATIENCE`."""

    def __init__(self, stack: AsyncExitStack, take_large: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._stack = stack
        self._take_large = take_large
        self._is_large = False

    async def grow(self) -> None:
        """Exchange an ordinary place for a large one. The caller should hold nothing large while it waits.

        Raises:
            StoreUnavailable: no place became free in time.
        """
        if not self._is_large:
            await self._stack.aclose()
            await self._stack.enter_async_context(self._take_large())
            self._is_large = True

    async def sum_up(self, aggregate: Aggregate, query: AggregateQuery) -> Aggregates:
        """Return sums. If there are many groups, exchange the place for a large one first.

        Raises:
            TooManyGroups: there are more than :data:`MANY_GROUPS`.
        """
        if not self._is_large:
            with suppress(TooManyGroups):  # left before the retry, because the traceback refers to the sums
                return await aggregate(replace(query, most_groups=FEW_GROUPS))
            await self.grow()
        return await aggregate(replace(query, most_groups=MANY_GROUPS))


class ReadingPlaces:
    """Places for answers that read the store, and threads that process the results.

    Args:
        most: the number of answers that may read at a time.
    """

    def __init__(self, most: int) -> None:
        self._any = Shares(most)
        self._large = Shares(_LARGE)
        self._threads = Threads(_THREADS, "answers")

    def close(self) -> None:
        """Stop the threads; blocks until they have finished."""
        self._threads.close()

    def is_wanted(self, who: str) -> bool:
        """Return whether others wait for a place that this principal may hold."""
        return self._any.is_wanted(who) or self._large.is_wanted(who)

    def one(self, who: str, patience: float = PATIENCE) -> AbstractAsyncContextManager[None]:
        """Hold a place within the context, waiting for it if necessary.

        Raises:
            StoreUnavailable: no place became free in time.
        """
        late = StoreUnavailable("other answers used up api.max_long_reads for too long")
        return hold_in_time(self._any, who, 1, patience, late)

    @asynccontextmanager
    async def large(self, who: str, patience: float = PATIENCE) -> AsyncGenerator[None, None]:
        """Hold a place for a large answer and an ordinary place within the context.

        Raises:
            StoreUnavailable: no place became free in time.
        """
        late, until = StoreUnavailable("other large answers took too long"), _now() + patience
        async with hold_in_time(self._large, who, 1, patience, late), self.one(who, until - _now()):
            yield

    @asynccontextmanager
    async def growing(self, who: str) -> AsyncGenerator["GrowingPlace", None]:
        """Hold an ordinary place within the context, which can be exchanged for a large one.

        Raises:
            StoreUnavailable: no place became free in time.
        """
        until = _now() + PATIENCE
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.one(who))
            yield GrowingPlace(stack, lambda: self.large(who, until - _now()))

    @asynccontextmanager
    async def few(self, who: str, aggregate: Aggregate, query: AggregateQuery) -> AsyncGenerator[Aggregates, None]:
        """Yield sums of at most :data:`FEW_GROUPS` groups, while holding the place in which they were made.

        Raises:
            TooManyGroups: there are more.
        """
        async with self.one(who):
            yield await aggregate(replace(query, most_groups=FEW_GROUPS))

    @asynccontextmanager
    async def sum_up(self, who: str, aggregate: Aggregate, query: AggregateQuery) -> AsyncGenerator[Aggregates, None]:
        """Yield sums, while holding the place in which they were made.

        Raises:
            TooManyGroups: there are more than :data:`MANY_GROUPS`.
        """
        async with self.growing(who) as place:
            yield await place.sum_up(aggregate, query)

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in a thread.

        A cancelled caller still waits for the function to end, because its place is in use until then.
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
