"""Reading the body of a request, within bounds of size and time."""

import asyncio
import zlib
from typing import Final

from aiohttp import web

from auditord_hookspecs import AuditordError

STALL_SECONDS: Final = 60
"""A client that sends nothing for so long in the middle of a body has gone."""

_ZLIB_OR_GZIP: Final = zlib.MAX_WBITS | 32
_RAW_DEFLATE: Final = -zlib.MAX_WBITS


class BodyTooLarge(AuditordError):
    """The body, or what it unpacks to, is larger than ``api.max_body``."""


class UnreadableBody(AuditordError):
    """The body is not what its headers say; the text is the answer to the client."""


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """The body as it came over the wire (still packed, if it was).

    Raises:
        BodyTooLarge: as soon as that is known; the rest is not read.
        ConnectionError: the client left.
        TimeoutError: the client stopped sending.
        aiohttp.web.RequestPayloadError: the transfer encoding is broken, or the connection ended too early.
    """
    content = request.content
    if content.is_eof():  # nearly every body comes in one piece with its head
        body = content.read_nowait(-1)
    else:
        body = await _collect(request, limit)
    if len(body) > limit:
        raise BodyTooLarge(f"{len(body)} bytes")
    return body


async def _collect(request: web.BaseRequest, limit: int) -> bytes:
    if (request.content_length or 0) > limit:
        raise BodyTooLarge(f"{request.content_length} bytes announced")
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    chunks: list[bytes] = []
    size = 0
    while not request.content.at_eof():
        async with asyncio.timeout(STALL_SECONDS):
            chunks.append(await request.content.readany())
        size += len(chunks[-1])
        if size > limit:
            raise BodyTooLarge(f"more than {limit} bytes")
    return b"".join(chunks)


def json_body(request: web.BaseRequest, body: bytes, limit: int) -> bytes:
    """The JSON text that a body holds.

    Raises:
        UnreadableBody: it is not declared to be JSON, or is packed in a way that cannot be undone.
        BodyTooLarge: it unpacks to more than the limit.
    """
    content_type = request.headers.get("Content-Type", "")
    if content_type != "application/json" and not is_json(content_type):
        raise UnreadableBody("Content type error")
    return unpacked(request, body, limit)


def unpacked(request: web.BaseRequest, body: bytes, limit: int) -> bytes:
    """The body without its ``Content-Encoding``.

    Raises:
        UnreadableBody: it is packed in a way that cannot be undone.
        BodyTooLarge: it unpacks to more than the limit.
    """
    encoding = request.headers.get("Content-Encoding")
    return body if encoding is None else _unpack(body, encoding.strip().lower(), limit)


def is_json(content_type: str) -> bool:
    """Whether the type is ``…/json`` or ``…/…+json``, with or without parameters."""
    main, slash, subtype = content_type.partition(";")[0].strip().lower().partition("/")
    return bool(main and slash) and (subtype == "json" or (subtype.endswith("+json") and subtype != "+json"))


def _unpack(body: bytes, encoding: str, limit: int) -> bytes:
    match encoding:
        case "identity":
            return body
        case "gzip" | "x-gzip" | "deflate":
            return _inflate(body, limit)
        case _:
            raise UnreadableBody(f"Content-Encoding '{encoding[:40]}' is not supported: gzip, deflate or identity")


def _inflate(body: bytes, limit: int) -> bytes:
    raw = body[:1] and body[0] & 0x0F != zlib.DEFLATED and body[:2] != b"\x1f\x8b"  # some send deflate without a header
    unpacker = zlib.decompressobj(_RAW_DEFLATE if raw else _ZLIB_OR_GZIP)
    try:
        text = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise UnreadableBody(f"Content-Encoding: the body cannot be unpacked: {error}") from error
    if len(text) > limit:
        raise BodyTooLarge(f"more than {limit} bytes once unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise UnreadableBody("Content-Encoding: the packed body is cut short or has something behind it")
    return text
