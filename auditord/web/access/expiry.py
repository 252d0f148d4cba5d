"""Client certificates that end while a connection is open: TLS looks at them when it opens, and never again."""

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

from aiohttp import web
from cryptography import x509

from auditord.web.access import audit
from auditord.web.access.refusals import refusal
from auditord.web.dispatch import Handler


def while_valid(handler: Handler, now: Callable[[], datetime]) -> Handler:
    """The handler for clients whose certificate is valid at each request, and for those that showed none."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        end = _end(request)
        if end is None or now() <= end:
            return await handler(request)
        audit.refused(request, None, f"the client's certificate has ended at {end.isoformat()}")
        return refusal(request, known=False)

    return answer


def _end(request: web.BaseRequest) -> datetime | None:
    """When the certificate ends with which the connection was opened; None without one."""
    tls: Any = None if request.transport is None else request.transport.get_extra_info("ssl_object")  # Any: of a loop
    der: bytes | None = None if tls is None else tls.getpeercert(binary_form=True)
    return _ends(der) if der else None


@lru_cache(maxsize=256)  # one connection brings the same certificate for thousands of requests
def _ends(der: bytes) -> datetime:
    return x509.load_der_x509_certificate(der).not_valid_after_utc
