"""Long answers in pages."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

PAGE_BYTES: Final = 128 * 1024
"""A page of texts ends after so many; together with the largest of them it bounds an answer's memory."""


class Page(NamedTuple, Generic[T]):
    """Some rows of an answer.

    Args:
        rows: in order; there may be none.
        is_last: whether none follow: nobody waits to find that out.
    """

    rows: list[T]
    is_last: bool


async def following(page: Page[T], read: Callable[[], Awaitable[Page[T]]]) -> AsyncGenerator[list[T], None]:
    """The rows of a page, and of those behind it, which are read when they are asked for; none is empty."""
    while True:
        if page.rows:
            yield page.rows
        if page.is_last:
            return
        page = await read()
