"""Where records come from: one protocol, an implementation for each way to AUDITOR's data."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from auditord_hookspecs import AuditordError

PAGE_ROWS: Final = 5_000
PAGE_BYTES: Final = 8 << 20
"""A page has about so much at most; a few pages are in memory at a time."""

T = TypeVar("T")


class SourceFailed(AuditordError):
    """The source cannot be read, or not to its end; nothing of what was imported before is lost."""


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
        """What it is, for messages and to know it again; without secrets."""
        ...

    def pages(self, position: str | None) -> AbstractAsyncContextManager[AsyncIterator[Page]]:
        """All rows, or those behind a position (and some of those before it, where a source wants to be sure).

        Raises:
            SourceFailed: also out of the iteration; an iteration that ends in order was complete.
        """
        ...


async def in_pages(
    rows: AsyncIterator[tuple[bytes, T]], make: Callable[[Sequence[bytes], Sequence[T]], Page]
) -> AsyncGenerator[Page, None]:
    """Gather rows into pages.

    Args:
        rows: each with what its source needs to know about it.
        make: a page of rows and what belongs to them.
    """
    texts: list[bytes] = []
    about: list[T] = []
    size = 0
    async for text, what in rows:
        texts.append(text)
        about.append(what)
        size += len(text)
        if len(texts) >= PAGE_ROWS or size >= PAGE_BYTES:
            yield make(texts, about)
            texts, about, size = [], [], 0
    if texts:
        yield make(texts, about)
