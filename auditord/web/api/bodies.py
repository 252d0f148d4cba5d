"""The bodies of requests to ``/api/v1``: read within bounds, with problems for answers."""

from typing import Final, TypeVar

import msgspec
from aiohttp import web

from auditord.web.api.problems import Refused
from auditord.web.bodies import BodyTooLarge, UnreadableBody, read_body, unpacked
from auditord_hookspecs import InvalidRecord

T = TypeVar("T")

MAX_WISH: Final = 1 << 20
"""Bytes of a body that asks for something to be done."""


async def decoded(request: web.BaseRequest, shape: type[T]) -> T:
    """What a body of this shape asks for.

    Raises:
        Refused: it is not of the shape, too large, or packed in a way that cannot be undone.
    """
    try:
        return msgspec.json.decode(await read(request, MAX_WISH), type=shape)
    except (msgspec.DecodeError, InvalidRecord, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, str(error), parameter="body", remedy=f"see {shape.__name__} in /openapi.json") from error


async def read(request: web.BaseRequest, limit: int) -> bytes:
    """The unpacked body.

    Raises:
        Refused: it is too large, or packed in a way that cannot be undone.
    """
    try:
        return unpacked(request, await read_body(request, limit), limit)
    except BodyTooLarge as error:
        remedy = "send fewer records at once, or raise api.max_body"
        raise Refused(
            413, f"the body is larger than {limit} bytes ({error})", parameter="body", remedy=remedy
        ) from error
    except UnreadableBody as error:
        raise Refused(415, str(error), parameter="Content-Encoding") from error
