"""Reading of request bodies within limits of size, time and decompression."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Final, NoReturn, Protocol

import msgspec
from aiohttp import web

from auditord_hookspecs import AuditordError

PAUSE_SECONDS: Final = 20.0
"""Seconds for which a client may send nothing in the middle of a body, or lag behind :data:`SLOWEST`."""

SLOWEST: Final = 16_384
"""The least bytes per second."""

WANTED_PAUSE_SECONDS: Final = 5.0
""":data:`PAUSE_SECONDS` while others wait for the memory that the body holds."""

WANTED_SLOWEST: Final = 16 * SLOWEST
""":data:`SLOWEST` while others wait."""

LARGEST_RATIO: Final = 250
"""The largest ratio of a body's decompressed size to its compressed size. Records of jobs reach some 20, those of
identical jobs 70 to 200, and a body that was made to exhaust memory a thousand."""

_ANY_RATIO: Final = 4 << 20
"""Bytes to which any body may decompress, at any ratio."""

_PIECE: Final = 256 * 1024
_LOOK_SECONDS: Final = 1.0
_ZLIB_OR_GZIP: Final = zlib.MAX_WBITS | 32
_RAW_DEFLATE: Final = -zlib.MAX_WBITS


class Demand(msgspec.Struct, frozen=True):
    """The demand of others for the memory that a request holds.

    Args:
        exists: returns whether others are waiting for it.
    """

    exists: Callable[[], bool]


DEMAND: Final = web.RequestKey("demand", Demand)


class BodyTooLarge(AuditordError):
    """The body exceeds the limit, compressed or decompressed, or decompresses to more than 250 times its size.

    The limit is ``api.max_body`` for posts of records, and fixed for other requests.

    Remedy:
        send fewer records at once, or raise api.max_body; if the text says 250 times, send the body uncompressed.
    """


class UnreadableBody(AuditordError):
    """The body cannot be read as its Content-Type and Content-Encoding say; the text is the answer to the client.

    Remedy:
        correct these headers in the client. Bodies of POST /record and POST /records are kept in quarantine, those of
        other requests are not.
    """


async def read_pieces(request: web.BaseRequest, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the decompressed body as it arrives, in pieces of some 256 KiB.

    Raises:
        UnreadableBody: the body cannot be decompressed.
        BodyTooLarge, ConnectionError, TimeoutError: see :func:`auditord.web.requests.read_body`.
        aiohttp.web.RequestPayloadError: see there.
    """
    unpacking = _unpacking(request, limit)
    async for packed in receive_pieces(request, limit):
        for piece in unpacking.feed(packed):
            yield piece
            await asyncio.sleep(0)  # a small piece can decompress to many
    unpacking.end()


async def receive_pieces(request: web.BaseRequest, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a body as received; raises like :func:`auditord.web.requests.read_body`."""
    if (request.content_length or 0) > limit:
        raise BodyTooLarge(f"{request.content_length} bytes announced")
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    pace, size = _Pace(request), 0
    while not request.content.at_eof():
        piece = await pace.read_any()
        size += len(piece)
        if size > limit:
            raise BodyTooLarge(f"more than {limit} bytes")
        yield piece


class _Pace:
    """Cuts off clients that send too slowly. The server's own processing time does not count."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._content = request.content
        self._clock = asyncio.get_running_loop().time
        self._demand = request.get(DEMAND) if len(request) else None
        self._left = PAUSE_SECONDS

    async def read_any(self) -> bytes:
        """Return the buffered bytes, or wait for the next ones.

        Raises:
            TimeoutError: the body has arrived too slowly for too long.
        """
        while True:
            started = self._clock()
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    piece = await self._content.readany()
            except TimeoutError:
                piece = None
            self._left -= self._clock() - started
            self._limit(len(piece or b""))
            if piece is not None:
                return piece

    def _limit(self, received: int) -> None:
        wanted = self._demand is not None and self._demand.exists()
        pause, slowest = (WANTED_PAUSE_SECONDS, WANTED_SLOWEST) if wanted else (PAUSE_SECONDS, SLOWEST)
        self._left = min(pause, self._left + received / slowest)
        if self._left < 0:
            raise TimeoutError(f"a body arrives more slowly than {slowest} bytes per second")


async def unpack(request: web.BaseRequest, body: bytes, limit: int) -> bytes | bytearray:
    """Return the decompressed body, pausing for other requests.

    Raises:
        UnreadableBody: the body cannot be decompressed.
        BodyTooLarge: it decompresses to more than the limit, or to more than :data:`LARGEST_RATIO` times its size.
    """
    if "Content-Encoding" not in request.headers:
        return body
    unpacking, text = _unpacking(request, limit), bytearray()
    for begin in range(0, len(body), _PIECE):
        for piece in unpacking.feed(body[begin : begin + _PIECE]):
            text += piece
            await asyncio.sleep(0)
    unpacking.end()
    return text


def most_unpacked(packed: int, limit: int) -> int:
    """Return the largest decompressed size, in bytes, that is allowed for a compressed size."""
    return min(limit, max(_ANY_RATIO, LARGEST_RATIO * packed))


class _Unpacking:
    """Passes on an uncompressed body, with the same methods as :class:`_Inflating`."""

    def feed(self, packed: bytes) -> Iterable[bytes]:
        return (packed,)

    def end(self) -> None:
        """Do nothing: an uncompressed body has no end of its own."""


def _unpacking(request: web.BaseRequest, limit: int) -> _Unpacking:
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    match encoding:
        case "identity":
            return _Unpacking()
        case "gzip" | "x-gzip" | "deflate":
            return _Inflating(limit)
        case _:
            raise UnreadableBody(f"Content-Encoding '{encoding[:40]}' is not supported: use gzip, deflate or identity")


class _Inflater(Protocol):
    """The result of :func:`zlib.decompressobj`."""

    @property
    def eof(self) -> bool: ...

    @property
    def unconsumed_tail(self) -> bytes: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Inflating(_Unpacking):
    """Decompresses gzip and deflate. Some senders omit the header of deflate.

    Args:
        limit: the largest decompressed size, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = self._made = 0
        self._decompressor: _Inflater | None = None

    def feed(self, packed: bytes) -> Iterator[bytes]:
        if not packed:
            return
        if self._decompressor is not None and self._decompressor.eof:
            self._refuse()
        if self._decompressor is None:
            has_no_header = packed[0] & 0x0F != zlib.DEFLATED and packed[:2] != b"\x1f\x8b"
            self._decompressor = zlib.decompressobj(_RAW_DEFLATE if has_no_header else _ZLIB_OR_GZIP)
        inflater = self._decompressor
        self._taken += len(packed)
        while packed:
            try:
                piece = inflater.decompress(packed, _PIECE)
            except zlib.error as error:
                raise UnreadableBody(f"Content-Encoding: the body cannot be decompressed: {error}") from error
            packed = inflater.unconsumed_tail
            self._made += len(piece)
            if self._made > self._limit:
                raise BodyTooLarge(f"more than {self._limit} bytes when decompressed")
            if self._made > max(_ANY_RATIO, LARGEST_RATIO * self._taken):
                raise BodyTooLarge(f"more than {LARGEST_RATIO} times its size when decompressed")
            if piece:
                yield piece

    def end(self) -> None:
        """Raise UnreadableBody unless the compressed body was complete and nothing followed it."""
        if self._decompressor is None or not self._decompressor.eof or self._decompressor.unused_data:
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnreadableBody("Content-Encoding: the compressed body is incomplete, or is followed by other data")
