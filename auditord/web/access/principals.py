"""Whose request it is, for the handlers behind the gate."""

from typing import Final

from aiohttp import web

from auditord_hookspecs import Principal

_PRINCIPAL: Final = web.RequestKey("principal", Principal)


def remember(request: web.BaseRequest, principal: Principal) -> None:
    """Say whose request it is."""
    request[_PRINCIPAL] = principal


def principal_of(request: web.BaseRequest) -> Principal | None:
    """Whose request it is; None if nobody is asked: there is no authenticator, or it is the control socket."""
    # To look for what is not there raises inside of aiohttp: 1.4 µs, in each POST of a daemon that asks nobody.
    return request.get(_PRINCIPAL) if len(request) else None


def principal_name(request: web.BaseRequest) -> str | None:
    """The same as provenance keeps it."""
    principal = principal_of(request)
    return None if principal is None else principal.name
