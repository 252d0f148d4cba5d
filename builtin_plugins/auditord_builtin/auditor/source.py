"""Rows of AUDITOR's records: one protocol, an implementation for each place that has them."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final, Protocol

import msgspec

from auditord_hookspecs import AuditordError

PAGE_ROWS: Final = 5_000
PAGE_BYTES: Final = 8 << 20
"""The approximate limit of a page; a few pages are in memory at a time."""


class SourceFailed(AuditordError):
    """The source cannot be read, or not to its end; no record that was imported before is lost.

    Remedy:
        mend the fault that the text names and give the same command again: it resumes where it stopped.
    """


class Rows(msgspec.Struct, frozen=True):
    """Some rows of a source.

    Args:
        texts: of each row, a JSON object in the form of the wire contract; nothing has checked it.
        places: where each row is, for people who look it up.
        position: a source continues behind these rows from here; only the source knows its form.
        fraction: how much of the source has been read, from 0 to 1.
    """

    texts: Sequence[bytes]
    places: Callable[[int], str]
    position: str
    fraction: float


class Source(Protocol):
    """One place that has AUDITOR's records."""

    @property
    def name(self) -> str:
        """The name of the source, for messages; without secrets."""
        ...

    def rows(self, position: str | None) -> AsyncGenerator[Rows, None]:
        """Read all rows, or those behind a position, and some of those before it where a source needs to be sure.

        Raises:
            SourceFailed: the source cannot be read to its end.
        """
        ...


async def in_pages(pieces: AsyncGenerator[Sequence[bytes], None]) -> AsyncGenerator[list[bytes], None]:
    """Gather pieces of rows into pages of about the size limit, without losing or cutting a row."""
    texts: list[bytes] = []
    size = 0
    async with aclosing(pieces):
        async for piece in pieces:
            texts += piece
            size += sum(map(len, piece))
            if len(texts) >= PAGE_ROWS or size >= PAGE_BYTES:
                yield texts
                texts, size = [], 0
    if texts:
        yield texts
