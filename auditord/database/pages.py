"""Long answers in pages."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Page(NamedTuple, Generic[T]):
    """Some rows of an answer, and whether there are no more: nobody waits to find that out."""

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
