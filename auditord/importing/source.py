"""Sources of records: one protocol, an implementation for each way to AUDITOR's data."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from auditord_hookspecs import AuditordError

T = TypeVar("T")

_AT_ONCE: Final = 2
"""While the database works on one page, another one is being put together."""

PAGE_ROWS: Final = 5_000
PAGE_BYTES: Final = 8 << 20
"""A page has about so much at most; a few pages are in memory at a time."""


class SourceFailed(AuditordError):
    """The source cannot be read, or not to its end; nothing of what was imported before is lost.

    Remedy:
        mend what the text names and give the same command again: it goes on where it was.
    """


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a source.

    Args:
        texts: of each row, a JSON object in the form of the wire contract (which nobody has checked yet).
        places: where each row is, for people who look it up.
        position: from here a source goes on behind this page; only it knows what it means.
        fraction: how much of the source lies behind, from 0 to 1.
    """

    texts: Sequence[bytes]
    places: Callable[[int], str]
    position: str
    fraction: float


class Source(Protocol):
    """AUDITOR's records."""

    @property
    def name(self) -> str:
        """The name of the source, for messages and to know it again; without secrets."""
        ...

    def pages(self, position: str | None) -> AbstractAsyncContextManager[AsyncIterator[Page]]:
        """All rows, or those behind a position (and some of those before it, where a source wants to be sure).

        Raises:
            SourceFailed: also out of the iteration; an iteration that ends in order was complete.
        """
        ...


async def in_pages(pieces: AsyncIterator[Sequence[bytes]]) -> AsyncGenerator[list[bytes], None]:
    """Gather pieces of rows into as many as a page should have; none is left out, none cut."""
    texts: list[bytes] = []
    size = 0
    async for piece in pieces:
        texts += piece
        size += sum(map(len, piece))
        if len(texts) >= PAGE_ROWS or size >= PAGE_BYTES:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


async def in_order(
    pages: AsyncIterator[Page], work: Callable[[Page], Coroutine[Any, Any, T]]
) -> AsyncGenerator[tuple[Page, T], None]:
    """Work on several pages at a time; each is given with its result, in order, after all before it are done."""
    waiting: deque[tuple[Page, asyncio.Task[T]]] = deque()
    try:
        async for page in pages:
            waiting.append((page, asyncio.create_task(work(page))))
            if len(waiting) > _AT_ONCE:
                yield waiting[0][0], await waiting[0][1]
                waiting.popleft()
        while waiting:
            yield waiting[0][0], await waiting[0][1]
            waiting.popleft()
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)
