"""Work on several pages at a time, finished in their order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeVar

from auditord.importing.source import Page

T = TypeVar("T")

_AT_ONCE: Final = 2
"""While the database works on one page, another one is being put together."""


async def in_order(
    pages: AsyncIterator[Page], work: Callable[[Page], Coroutine[Any, Any, T]]
) -> AsyncGenerator[tuple[Page, T], None]:
    """Each page with what was made of it; a page is given only after all before it are done."""
    waiting: deque[tuple[Page, asyncio.Task[T]]] = deque()
    try:
        async for page in pages:
            waiting.append((page, asyncio.create_task(work(page))))
            if len(waiting) > _AT_ONCE:
                yield await _first(waiting)
        while waiting:
            yield await _first(waiting)
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)


async def _first(waiting: "deque[tuple[Page, asyncio.Task[T]]]") -> tuple[Page, T]:
    page, task = waiting[0]
    result = await task
    waiting.popleft()
    return page, result
