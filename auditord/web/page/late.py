"""Pages that take long to make: their frame is sent first, and the rest in the same answer once it is there.

Who waits sees where he is, the form and a notice, which a rule of the style sheet hides as soon as anything follows it;
that needs no script. Up to then an answer is what it is without: status, headers and all. Wrong input and refusals are
known at once; what fails behind the frame is said in the page, whose status is sent by then.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import HttpVersion11, web

FIGURES: Final = "<!-- figures -->"
"""The place in a page up to which it is its frame."""

_PATIENCE_SECONDS: Final = 0.2
_GZIP: Final = 31

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Frame:
    """Makes the frame of the page that a request asks for, if it has more in it than the navigation."""

    make: Callable[[], web.Response]


FRAME: Final = web.RequestKey("frame", Frame)


async def frame_first(
    request: web.BaseRequest,
    making: Coroutine[Any, Any, web.StreamResponse],  # Any: it takes and gives nothing
    frame: Frame,
    failed: Callable[[], web.Response],
) -> web.StreamResponse:
    """The answer that is being made; if that takes long, its frame is sent before.

    Args:
        request: to answer.
        making: of the page.
        frame: makes that of any page.
        failed: makes a page that says that there is none.
    """
    task = asyncio.create_task(making)
    try:
        await asyncio.wait([task], timeout=_PATIENCE_SECONDS)
        if task.done() or request.version != HttpVersion11:
            return await task
        answer = _Answer(request, request.get(FRAME, frame).make())
        await answer.begin()
        try:
            page = await task
        except Exception:  # a fault of ours, after the status was sent
            log.exception("the page %s cannot be shown", request.raw_path[:200])
            page = failed()
        return await answer.end(page)
    finally:
        task.cancel()


class _Answer:
    """An answer in two parts, each of which the browser can show at once.

    Args:
        request: to answer.
        frame: a page with nothing behind its frame.
    """

    def __init__(self, request: web.BaseRequest, frame: web.Response) -> None:
        self._request = request
        self._frame = _text(frame)
        self._response = web.StreamResponse(headers=frame.headers)
        self._response.headers.popall("Content-Length", None)
        self._gzip = None
        if "gzip" in request.headers.get("Accept-Encoding", "").lower():
            self._response.headers["Content-Encoding"] = "gzip"
            self._gzip = zlib.compressobj(wbits=_GZIP)

    async def begin(self) -> None:
        """Send the frame."""
        await self._response.prepare(self._request)
        await self._response.write(self._part(self._frame.partition(FIGURES)[0], zlib.Z_SYNC_FLUSH))

    async def end(self, page: web.StreamResponse) -> web.StreamResponse:
        """Send what a page has behind its frame."""
        rest = _text(page).partition(FIGURES)[2]
        await self._response.write(await asyncio.to_thread(self._part, rest, zlib.Z_FINISH))
        await self._response.write_eof()
        return self._response

    def _part(self, text: str, flush: int) -> bytes:
        return text.encode() if self._gzip is None else self._gzip.compress(text.encode()) + self._gzip.flush(flush)


def _text(page: web.StreamResponse) -> str:
    if not isinstance(page, web.Response) or not isinstance(page.body, bytes):
        raise TypeError("a page is whole when it is made")
    return page.body.decode()
