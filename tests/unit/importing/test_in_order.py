"""Pages that are worked on ahead."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from auditord.importing.writing import in_order
from auditord_hookspecs import ImportPage, ImportRow

pytestmark = pytest.mark.anyio


async def numbered(count: int) -> AsyncGenerator[ImportPage, None]:
    for number in range(count):
        yield ImportPage([], str(number), 0.0, lambda _: ImportRow("", b""))


async def test_pages_come_in_their_order_whichever_is_done_first() -> None:
    done: list[str] = []
    second = asyncio.Event()

    async def work(page: ImportPage) -> str:
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

    async def work(page: ImportPage) -> None:
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
