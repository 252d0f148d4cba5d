"""Rows gathered into pages."""

from collections.abc import AsyncGenerator, Sequence

import pytest

from auditord_builtin.auditor.conversion import PAGE_BYTES, PAGE_ROWS, in_pages

pytestmark = pytest.mark.anyio


async def given(pieces: Sequence[Sequence[bytes]]) -> AsyncGenerator[Sequence[bytes], None]:
    for piece in pieces:
        yield piece


async def test_pages_are_bounded_by_rows() -> None:
    pages = [len(page) async for page in in_pages(given([[b"x"] * 999] * 12))]
    assert pages == [PAGE_ROWS - 5 + 999, 12 * 999 - (PAGE_ROWS - 5 + 999)]


async def test_pages_are_bounded_by_bytes() -> None:
    rows = [b"x" * (PAGE_BYTES // 2 + 1)] * 3
    assert [len(page) async for page in in_pages(given([[row] for row in rows]))] == [2, 1]


async def test_no_rows_no_page() -> None:
    assert [page async for page in in_pages(given([[], []]))] == []
