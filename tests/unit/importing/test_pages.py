"""Rows gathered into pages, and pages worked on ahead."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from auditord.importing.source import PAGE_BYTES, PAGE_ROWS, Page, in_order, in_pages

pytestmark = pytest.mark.anyio


async def given(pieces: Sequence[Sequence[bytes]]) -> AsyncIterator[Sequence[bytes]]:
    for piece in pieces:
        yield piece


async def numbered(count: int) -> AsyncIterator[Page]:
    for number in range(count):
        yield Page([], str, str(number), 0.0)


async def test_pages_are_bounded_by_rows() -> None:
    pages = [len(page) async for page in in_pages(given([[b"x"] * 999] * 12))]
    assert pages == [PAGE_ROWS - 5 + 999, 12 * 999 - (PAGE_ROWS - 5 + 999)]


async def test_pages_are_bounded_by_bytes() -> None:
    rows = [b"x" * (PAGE_BYTES // 2 + 1)] * 3
    assert [len(page) async for page in in_pages(given([[row] for row in rows]))] == [2, 1]


async def test_no_rows_no_page() -> None:
    assert [page async for page in in_pages(given([[], []]))] == []


async def test_pages_come_in_their_order_whichever_is_done_first() -> None:
    done: list[str] = []
    second = asyncio.Event()

    async def work(page: Page) -> str:
        if page.position == "0":
            await second.wait()
        if page.position == "1":
            second.set()
        done.append(page.position)
        return page.position

    assert [(page.position, result) async for page, result in in_order(numbered(4), work)] == [
        (str(number), str(number)) for number in range(4)
    ]
    assert done.index("1") < done.index("0")


async def test_a_fault_is_raised_in_its_place_and_nothing_goes_on_behind_it() -> None:
    ended: list[str] = []

    async def work(page: Page) -> None:
        if page.position == "1":
            raise ValueError("one")
        try:
            await asyncio.sleep(0 if page.position == "0" else 60)
        finally:
            ended.append(page.position)

    pages = in_order(numbered(9), work)
    assert (await anext(pages))[0].position == "0"
    with pytest.raises(ValueError, match="one"):
        await anext(pages)
    assert set(ended) == {"0", "2"}
