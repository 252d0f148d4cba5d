"""Places for answers that read the store, and how large an answer may become in each of them.

Most sums have few groups. One that turns out to have more is asked for again in a place for large ones, of which there
are two, for each principal one: so memory is bounded whatever is asked for, and others go on.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from auditord.database.readers import Threads
from auditord.errors import StoreUnavailable
from auditord.web.limits import Shares, held_in_time
from auditord_hookspecs import AggregateQuery, Aggregates, TooManyGroups

T = TypeVar("T")

Aggregate: TypeAlias = Callable[[AggregateQuery], Awaitable[Aggregates]]

PATIENCE: Final = 60.0
"""Seconds that an answer waits for its turn."""

FEW_GROUPS: Final = 10_000
"""Of sums in any place: some 10 MB."""

MANY_GROUPS: Final = 50_000
"""Of sums in a place for large ones: some 60 MB with what is made of them."""

_LARGE: Final = 2
_THREADS: Final = 4


class ReadingPlaces:
    """Places for answers that read the store, and threads that work on what was read.

    Args:
        most: answers that may read at a time.
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
        """Hold a place, in turn.

        Raises:
            StoreUnavailable: others held them for too long.
        """
        late = StoreUnavailable("api.max_long_reads other answers have been under way for too long")
        return held_in_time(self._any, who, 1, PATIENCE, late)

    @asynccontextmanager
    async def large(self, who: str) -> AsyncGenerator[None, None]:
        """Hold a place for a large answer, in turn.

        Raises:
            StoreUnavailable: others held them for too long.
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
            with suppress(TooManyGroups):  # left before the next one begins: its traceback holds what was summed up
                found = await stack.enter_async_context(self.few(who, aggregate, query))
            if found is None:
                await stack.enter_async_context(self.large(who))
                found = await aggregate(replace(query, most_groups=MANY_GROUPS))
            yield found

    async def run(self, work: Callable[[], T]) -> T:
        """Do a piece of work in a thread.

        Whoever is cancelled meanwhile waits for its end: a place is not free as long as somebody works in it.
        """
        working = self._threads.run(work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            while not working.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([working])
            working.exception()  # nobody asks for it any more
            raise
