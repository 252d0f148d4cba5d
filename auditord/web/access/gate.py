"""The gate before the handlers: recognises the caller, asks whether they may, and refuses alike whatever is there."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiohttp import web

from auditord.ingest import Forbidden
from auditord.web.access import audit
from auditord.web.access.credentials import credentials_of
from auditord.web.access.principals import remember
from auditord.web.access.refusals import refusal
from auditord.web.dispatch import Route
from auditord_hookspecs import AccessRefused, Authenticate, Credentials, Identity, Principal, Role

log: Final = logging.getLogger(__name__)

LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class Gate:
    """Who comes in.

    Args:
        authenticators: by the instance's name, in the order in which they are asked; the first that knows somebody
            counts.
        roles: what may be done, by name.
    """

    authenticators: Mapping[str, Authenticate]
    roles: Mapping[str, Role]

    def guarded(self, routes: Sequence[Route]) -> list[Route]:
        """The same routes, each for those who may use it."""
        return [route if route.permission is None else self._guarded(route) for route in routes]

    async def unmatched(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer where there is no such path, or the method is not taken: as if it were forbidden."""
        try:
            principal = await self._recognised(request)
        except AccessRefused as error:
            return self._refuse(request, None, str(error))
        return self._refuse(request, principal, "there is nothing at this path")

    def _guarded(self, route: Route) -> Route:
        permission, handler = route.permission, route.handler

        async def guarded(request: web.BaseRequest) -> web.StreamResponse:
            try:
                principal = await self._recognised(request)
            except AccessRefused as error:
                return self._refuse(request, None, str(error))
            if permission is None or not principal.may(permission):
                return self._refuse(request, principal, f"no role with {permission and permission.value}")
            remember(request, principal)
            if route.audited:
                audit.acting(request, principal.name)
            try:
                return await handler(request)
            except Forbidden as error:
                return self._refuse(request, principal, str(error))

        return replace(route, handler=guarded)

    def _refuse(self, request: web.BaseRequest, principal: Principal | None, reason: str) -> web.StreamResponse:
        audit.refused(request, None if principal is None else principal.name, reason)
        return refusal(request, known=principal is not None)

    async def _recognised(self, request: web.BaseRequest) -> Principal:
        """Whoever sent the request.

        Raises:
            AccessRefused: nobody knows them, or their credentials are wrong.
        """
        credentials = credentials_of(request)
        for name, authenticate in self.authenticators.items():
            identity = await _asked(name, authenticate, credentials)
            if identity is not None:
                return self._principal(name, identity)
        raise AccessRefused(
            "nobody knows these credentials" if _shows_something(credentials) else "there are no credentials"
        )

    def _principal(self, authenticator: str, identity: Identity) -> Principal:
        """Roles that the configuration does not have (a token may be older than it) allow nothing."""
        name = "".join(char if char.isprintable() else "?" for char in identity.name)[:LONGEST_NAME]
        roles = tuple(self.roles[role] for role in identity.roles if role in self.roles)
        return Principal(f"{authenticator}:{name}", roles)


async def _asked(name: str, authenticate: Authenticate, credentials: Credentials) -> Identity | None:
    try:
        return await authenticate(credentials)
    except AccessRefused:
        raise
    except Exception as error:  # the boundary of an authenticator: whatever fails, nobody comes in
        log.exception("authenticator %s failed; the request is refused", name)
        raise AccessRefused(f"authenticator {name} failed") from error


def _shows_something(credentials: Credentials) -> bool:
    return not (credentials.token is None and credentials.certificate is None and credentials.peer is None)
