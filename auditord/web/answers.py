"""Complete responses that are serialised once.

aiohttp's own ``Response`` builds, sorts and serialises headers for every answer. For ``POST /record``, whose answer is
nearly always the same, that costs more than parsing and decoding the request (20,000 instead of 35,000 requests per
second on two cores). An :class:`Answer` is serialised once and serves any number of requests.
"""

from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"

SERVER: Final = "auditord"
"""The header ``Server`` of streamed responses. aiohttp would name itself, Python and the versions of both."""


class Answer(web.StreamResponse):
    """An immutable response: a status, a complete body and the few headers of the wire contract.

    Args:
        status: is sent with its default reason phrase, which TARDIS reads.
        content_type: None for no header, as AUDITOR answers empty bodies and ``RECORD_EXISTS``.
        allow: the allowed methods, for a 405.
        challenge: the authentication challenge, for a 401.
        close: whether the connection is closed after this answer.
        missing: bytes that are announced but not sent, an error to clients that read the whole answer.
    """

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        content_type: str | None = None,
        *,
        allow: str | None = None,
        challenge: str | None = None,
        close: bool = False,
        missing: int = 0,
    ) -> None:
        super().__init__(status=status)
        self._parts = (status, body, content_type, allow, challenge)
        self._keep_alive, self._body_length = not close, len(body)  # read through aiohttp's properties
        self.status_line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        named = {
            "Content-Type": content_type,
            "Allow": allow,
            "WWW-Authenticate": challenge,
            "Connection": "close" if close else None,
        }
        headers = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value)
        self.remainder = f"Content-Length: {len(body) + missing}\r\n{headers}\r\n".encode() + body

    def closing(self, missing: int = 0) -> "Answer":
        """Return the same answer, closing the connection. Its Content-Length exceeds the body by ``missing`` bytes."""
        if not self._keep_alive and not missing:
            return self
        status, body, content_type, allow, challenge = self._parts
        return Answer(status, body, content_type, allow=allow, challenge=challenge, close=True, missing=missing)

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send the answer and wait until the client has read most of it, so that unread answers do not pile up."""
        if request.transport is None:
            raise ConnectionResetError("the client left before it was answered")
        request.transport.write(self.status_line + date_line(int(time())) + self.remainder)
        if request.protocol.writing_paused:
            await request.writer.drain()
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: :meth:`prepare` has sent everything."""


class Unsent(web.StreamResponse):
    """The response on an aborted connection: nothing is sent."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:  # noqa: ARG002 aiohttp's signature
        """Make aiohttp send nothing."""
        raise ConnectionResetError("the connection was aborted")


@lru_cache(maxsize=1)
def date_line(seconds: int) -> bytes:
    """Return the header ``Date``, which stands between the status line and the remainder of an answer."""
    return f"Date: {formatdate(seconds, usegmt=True)}\r\n".encode()


def sendable(text: str) -> str:
    """Return the text without lone surrogates, which clients may send but JSON cannot represent."""
    return text.encode("utf-8", "backslashreplace").decode()


def json_answer(value: object, status: int = 200) -> Answer:
    """Return a value as JSON."""
    return Answer(status, msgspec.json.encode(value), JSON)


def json_error(status: int, text: str) -> Answer:
    """Return ``{"error": "…"}``, the form of errors on routes that read."""
    return json_answer({"error": sendable(text)}, status)


def plain_text(status: int, text: str) -> Answer:
    """Return a sentence as text, the form of answers on routes that write."""
    return Answer(status, text.encode("utf-8", "backslashreplace"), TEXT)


STORED: Final = Answer(200)
RECORD_EXISTS: Final = Answer(500, b"RECORD_EXISTS")
"""Clients compare the body with exactly these 13 bytes and ignore the status."""
IGNORED: Final = json_answer({"warning": "At least one record id was known already; the stored record stays."})
NULL: Final = Answer(200, b"null", JSON)
NOT_FOUND: Final = Answer(404, b"There is nothing at this path.")
UNSENT: Final = Unsent()
