"""The bodies of requests to ``/api/v1``: read within bounds, with problems for answers."""

from aiohttp import web

from auditord.web.api.problems import Refused
from auditord.web.bodies import BodyTooLarge, UnreadableBody, read_body, unpacked


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
