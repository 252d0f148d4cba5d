"""HTTP over the control socket with the standard library, whose import takes a tenth of aiohttp's."""

import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Final, TypeVar

from anyio import to_thread

from auditord_hookspecs.http import HttpAnswer, HttpStatusError, NoHttpAnswer

T = TypeVar("T")

_PIECE: Final = 65_536


class ControlSocket:
    """The requests of :class:`auditord.cli.daemon_client.DaemonClient`, each on a connection of its own, made once.

    Args:
        path: of the socket.
        silence: seconds without progress after which a request has failed.
    """

    def __init__(self, path: str, silence: float) -> None:
        self._path = path
        self._silence = silence

    async def request(self, method: str, url: str, *, body: bytes | None = None) -> HttpAnswer:
        """Ask; raises NoHttpAnswer."""
        async with self._answered(method, url, body) as answer:
            return await answer.whole()

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, body: bytes | None = None
    ) -> AsyncGenerator["ControlSocketStream", None]:
        """Ask what may be answered at length; raises NoHttpAnswer, and HttpStatusError for what is none of 2xx."""
        async with self._answered(method, url, body) as answer:
            if not answer.ok:
                raise HttpStatusError(await answer.whole())
            yield answer

    @asynccontextmanager
    async def _answered(self, method: str, url: str, body: bytes | None) -> AsyncGenerator["ControlSocketStream", None]:
        name = f"{method} {url}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(self._silence)
            try:
                sock.connect(self._path)
            except OSError as error:
                raise NoHttpAnswer(f"{name}: cannot connect: {self._path}: {error.strerror}", sent=False) from error
            connection = HTTPConnection("auditord")
            connection.sock = sock
            headers = {} if body is None else {"Content-Type": "application/json"}
            response: HTTPResponse | None = None
            try:
                target = "/" + url.partition("://")[2].partition("/")[2]
                await _in_thread(name, partial(connection.request, method, target, body, headers))
                response = await _in_thread(name, connection.getresponse)
                yield ControlSocketStream(name, response)
            finally:
                with suppress(OSError):  # ends a thread that waits for more than anybody wants now
                    sock.shutdown(socket.SHUT_RDWR)
                if response is not None:
                    response.close()


class ControlSocketStream:
    """Implements :class:`auditord_hookspecs.http.HttpStream`."""

    def __init__(self, name: str, response: HTTPResponse) -> None:
        self._name = name
        self._response = response

    @property
    def ok(self) -> bool:
        """True for 2xx."""
        return 200 <= self._response.status < 300  # noqa: PLR2004 the classes of HTTP

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer, in lower case."""
        return {key.lower(): value for key, value in self._response.getheaders()}

    async def whole(self) -> HttpAnswer:
        """The whole answer."""
        body = await _in_thread(self._name, self._response.read)
        return HttpAnswer(self._name, self._response.status, self.headers, body)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Pieces of its body; raises NoHttpAnswer if it is cut."""
        while piece := await _in_thread(self._name, partial(self._response.read1, _PIECE)):
            yield piece


async def _in_thread(name: str, work: Callable[[], T]) -> T:
    try:
        return await to_thread.run_sync(work, abandon_on_cancel=True)
    except (OSError, HTTPException) as error:
        raise NoHttpAnswer(f"{name}: {type(error).__name__}: {error}", sent=True) from error
