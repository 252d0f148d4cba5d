"""Connections that must say what they want within a time: who opens many and sends little would hold them for ever.

aiohttp limits how long an idle connection lives, but not how long a request's head may take.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

HEAD_SECONDS: Final = 30.0
"""How long the head of a request may take from its first byte to its last one."""

SILENT_SECONDS: Final = 120.0
"""How long a new connection may stay silent. HTTP libraries keep one in reserve that they opened and did not need, for
up to 90 s; a POST on it while it is being closed would be lost to clients that do not repeat."""


class ImpatientServer(web.Server):
    """aiohttp's server, whose connections do not wait for heads without end.

    Args:
        handler: answers requests.
        head_seconds: how long a head may take.
        silent_seconds: how long a new connection may stay silent.
        options: of aiohttp.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        head_seconds: float = HEAD_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
        **options: Any,  # Any: as aiohttp has them
    ) -> None:
        super().__init__(handler, **options)
        self._seconds = (head_seconds, silent_seconds)
        self._options = options

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new connection."""
        return ImpatientConnection(self, self._seconds, **self._options)


class ImpatientConnection(web.RequestHandler):
    """aiohttp's connection with a timer that runs while a head is awaited.

    It looks at two of aiohttp's own attributes, and a test says so should they ever be gone.
    """

    __slots__ = ("_head_seconds", "_head_timer", "_own_loop", "_silent", "_silent_seconds")

    def __init__(self, server: web.Server, seconds: tuple[float, float], **options: Any) -> None:  # Any: aiohttp's
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, **options)
        self._own_loop = loop
        self._head_seconds, self._silent_seconds = seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._silent = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the client time for its first byte."""
        super().connection_made(transport)
        self._head_timer = self._own_loop.call_later(self._silent_seconds, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Stop the timer behind a head, and start it where one has only begun."""
        super().data_received(data)
        if self._messages or self._current_request is not None:
            self._stop_timer()
        elif self._head_timer is None or self._silent:
            self._stop_timer()
            self._head_timer = self._own_loop.call_later(self._head_seconds, self._give_up)
        self._silent = False

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        if self.transport is not None:
            self.transport.abort()
