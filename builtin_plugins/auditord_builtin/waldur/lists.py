"""Lists in pages, believed only if they are as long as the server counts them.

Waldur names the next page in ``Link`` and the length of the whole list in ``X-Result-Count``. A proxy may remove the
first, and rows may come, go and move while pages are read.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from urllib.parse import parse_qs, urlsplit

from auditord_builtin.waldur.answers import decode
from auditord_builtin.waldur.errors import InvalidAnswer
from auditord_builtin.waldur.requests import Request
from auditord_hookspecs.http import HttpAnswer
from auditord_hookspecs.wording import counted

T = TypeVar("T")

COUNT: Final = "X-Result-Count"

READINGS: Final = 3
"""A list that changes meanwhile is read so often."""

Ask = Callable[[Request], Awaitable[HttpAnswer]]


async def read_list(ask: Ask, request: Request, kind: type[T], key: Callable[[T], object]) -> list[T]:
    """Read all rows of a list; no two rows have the same ``key``.

    Raises:
        InvalidAnswer: the list is not complete, does not say how long it is, or changed each time it was read.
        WaldurError: a page was not answered.
    """
    for _ in range(READINGS):
        rows, counts = await _read_pages(ask, request, kind)
        if len(counts) == 1 and len({key(row) for row in rows}) == len(rows):
            if len(rows) < (count := counts.pop()):
                raise InvalidAnswer(f"{request}: the list ended after {len(rows)} of {counted(count, 'row')}")
            return rows
    raise InvalidAnswer(f"{request}: the list changed each of {READINGS} times that it was read")


async def _read_pages(ask: Ask, request: Request, kind: type[T]) -> tuple[list[T], set[int]]:
    """The rows, and every length that an answer gave meanwhile."""
    rows: list[T] = []
    counts: set[int] = set()
    number: int | None = 1
    while number is not None:
        asked = request.page(number)
        answer = await ask(asked)
        page = decode(answer.body, list[kind], asked)  # type: ignore[valid-type] # a type in a variable
        rows += page
        counts.add(_count(answer, asked))
        following = _next_page(answer, number, asked)
        number = number + 1 if following is None and page and len(rows) < max(counts) else following
    return rows, counts


def _count(answer: HttpAnswer, request: Request) -> int:
    text = answer.headers.get(COUNT, "")
    if not text.isascii() or not text.isdigit():
        raise InvalidAnswer(
            f"{request}: the answer does not say how long the list is ({COUNT}: {text!r}): does a proxy remove it?"
        )
    return int(text)


def _next_page(answer: HttpAnswer, number: int, request: Request) -> int | None:
    """The number of the next page. Nothing else of its URL counts: behind proxies it often names another host.

    Raises:
        InvalidAnswer: pages that do not count up would never end.
    """
    if (page := answer.links.get("next")) is None:
        return None
    following = parse_qs(urlsplit(page).query).get("page", [""])[-1]
    if not following.isascii() or not following.isdigit() or int(following) <= number:
        raise InvalidAnswer(f"{request}: after page {number} comes {page!r}")
    return int(following)
