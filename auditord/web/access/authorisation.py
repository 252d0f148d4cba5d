"""Authorisation around the handlers. A refusal is the same whether or not the path exists."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from auditord.config.model import Configuration, kind_of
from auditord.contexts.instances import InstanceContext
from auditord.errors import ConfigurationError
from auditord.hooks import Hooks
from auditord.ingest import Forbidden
from auditord.web.access import audit
from auditord.web.access.credentials import credentials_of
from auditord.web.access.sessions import Sessions, open_sessions
from auditord.web.answers import TEXT, Answer
from auditord.web.dispatch import Handler, RefuseBrowser, Route
from auditord.web.problems import PREFIX, Refused
from auditord.web.requests import read_target, set_principal
from auditord_hookspecs import AccessRefused, Authenticate, Credentials, Principal, Role
from auditord_hookspecs.access import Login

log: Final = logging.getLogger(__name__)

LONGEST_NAME: Final = 200

SESSION_LENGTH: Final = timedelta(hours=12)
"""The length of a login to the page. Revoking a token ends its session at once."""


_UNKNOWN: Final = "The caller is not authenticated: send a bearer token or a client certificate."

_FORBIDDEN: Final = "Insufficient permissions"

_CHALLENGE: Final = 'Bearer realm="auditord"'


class Authorisation(msgspec.Struct, frozen=True):
    """Recognises callers and enforces their roles.

    Args:
        authenticators: by instance name, in order. The first that recognises the caller decides.
        sessions: the sessions of people who have logged in to the page.
    """

    authenticators: Mapping[str, Authenticate]
    roles: Mapping[str, Role]
    sessions: Sessions | None = None

    def guard(self, routes: Sequence[Route]) -> list[Route]:
        """Return the routes with authorisation around their handlers."""
        guarded = list[Route]()
        for route in routes:
            if route.permission is None:
                guarded.append(route)
            else:
                patient = None if route.patient is None else self._behind(route, route.patient)
                guarded.append(replace(route, handler=self._behind(route, route.handler), patient=patient))
        return guarded

    async def refuse_unmatched(self, request: web.BaseRequest) -> web.StreamResponse:
        """Refuse a request for an unknown path or method as if it were forbidden."""
        try:
            principal = await self._recognise_request(request, by_session=request.method == "GET")
        except AccessRefused as error:
            return self._refuse(request, None, str(error))
        return self._refuse(request, principal, "there is nothing at this path")

    def _behind(self, route: Route, handler: Handler) -> Handler:
        permission, by_session, browser = route.permission, route.form or route.method == "GET", route.refuse_browser

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            try:
                principal = await self._recognise_request(request, by_session=by_session)
            except AccessRefused as error:
                return self._refuse(request, None, str(error), browser)
            set_principal(request, principal)
            if permission is None or not principal.may(permission):
                return self._refuse(request, principal, f"no role with {permission and permission.value}", browser)
            if route.audited:
                audit.acting(request, principal.name)
            try:
                return await handler(request)
            except Forbidden as error:
                return self._refuse(request, principal, str(error))

        return handle

    def _refuse(
        self,
        request: web.BaseRequest,
        principal: Principal | None,
        reason: str,
        refuse_browser: RefuseBrowser | None = None,
    ) -> web.StreamResponse:
        audit.log_refusal(request, None if principal is None else principal.name, reason)
        if refuse_browser is None:
            return refusal(request, known=principal is not None)
        page = refuse_browser(request, principal is not None)
        return page or _TEXTS[principal is not None]  # not cut short, because no AUDITOR client posts to the page

    async def _recognise_request(self, request: web.BaseRequest, *, by_session: bool) -> Principal:
        credentials = credentials_of(request)
        if by_session and self.sessions is not None and credentials.token is None:
            session = self.sessions.of(request)
            if session is not None:
                return await self.recognise(session.credentials, session.authenticator)
        return await self.recognise(credentials)

    @property
    def logins(self) -> Mapping[str, Login]:
        """The authenticators that offer a login, by name."""
        opened: Mapping[str, object] = self.authenticators
        return {name: each for name, each in opened.items() if isinstance(each, Login)}

    async def recognise(self, credentials: Credentials, only: str | None = None) -> Principal:
        """Return the principal with these credentials, asking only one authenticator if ``only`` names it.

        Raises:
            AccessRefused: no authenticator recognises them, or they are invalid.
        """
        for name, authenticate in self.authenticators.items():
            if only not in {None, name}:
                continue
            try:
                identity = await authenticate(credentials)
            except AccessRefused:
                raise
            except Exception as error:  # the error boundary of an authenticator: a failure refuses access
                log.exception("authenticator %s failed; the request is refused", name)
                raise AccessRefused(f"authenticator {name} failed") from error
            if identity is not None:
                shown = "".join(char if char.isprintable() else "?" for char in identity.name)[:LONGEST_NAME]
                # Roles missing in the configuration (a token may be older) allow nothing.
                roles = tuple(self.roles[role].of_user(identity.user) for role in identity.roles if role in self.roles)
                return Principal(f"{name}:{shown}", roles, identity.user)
        has_any = credentials != Credentials(credentials.address)
        raise AccessRefused("no authenticator recognises these credentials" if has_any else "there are no credentials")


@dataclass(eq=False, kw_only=True)
class HostAuthenticatorContext(InstanceContext):
    """The context of an authenticator; ``state_dir`` is the daemon's folder."""

    state_dir: Path


@asynccontextmanager
async def open_authorisation(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]
) -> AsyncGenerator[Authorisation | None, None]:
    """Open the configured authenticators; yield None if there are none.

    Raises:
        ConfigurationError: an authenticator cannot be opened.
    """
    enabled = {name: config for name, config in configuration.authenticators.items() if config.enabled}
    async with AsyncExitStack() as stack:
        opened: dict[str, Authenticate] = {}
        for name, config in enabled.items():
            context = HostAuthenticatorContext(name, kind_of(config), now, state_dir=configuration.state_dir)
            try:
                opening = hooks.kinds.authenticators[kind_of(config)].open(config, context)
                opened[name] = await stack.enter_async_context(opening)
            except (ValueError, OSError) as error:
                raise ConfigurationError(f"authenticators.{name} cannot be opened: {error}") from error
        if not opened:
            yield None
            return
        sessions = open_sessions(configuration.state_dir, SESSION_LENGTH, configuration.ui.root_path or "/", now)
        yield Authorisation(opened, configuration.access.known_roles(), sessions)


def refusal(request: web.BaseRequest, *, known: bool) -> Answer:
    """Return the refusal of a known or unknown caller. It closes the connection, so the rest of a body is not read."""
    path = read_target(request.raw_path).path
    if path.startswith(PREFIX):
        return _PROBLEMS[known]
    return _CUT_SHORT[known] if request.method == "POST" else _TEXTS[known]


def _text(*, known: bool) -> Answer:
    status, text = (403, _FORBIDDEN) if known else (401, _UNKNOWN)
    return Answer(status, text.encode(), TEXT, challenge=None if known else _CHALLENGE, close=True)


def _problem(*, known: bool) -> Answer:
    if known:
        remedy = "ask the operator of this server for a role; or the path does not exist"
        return Refused(403, _FORBIDDEN, remedy=remedy).answer().closing()
    remedy = "send Authorization: Bearer <token>, or use a client certificate"
    return Refused(401, _UNKNOWN, remedy=remedy, challenge=_CHALLENGE).answer().closing()


_TEXTS: Final = (_text(known=False), _text(known=True))
_PROBLEMS: Final = (_problem(known=False), _problem(known=True))
_CUT_SHORT: Final = tuple(each.closing(missing=1) for each in _TEXTS)
"""Refusals of ``POST``. AUDITOR's clients take any complete answer for success and drop the record. An answer that ends
before its announced length is an error to them, and its text is still readable."""


def while_valid(handler: Handler, now: Callable[[], datetime]) -> Handler:
    """Wrap a handler so that each request of a client with an expired certificate is refused."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        tls: Any = request.transport and request.transport.get_extra_info("ssl_object")  # Any: of a loop
        der: bytes | None = tls and tls.getpeercert(binary_form=True)
        if not der:
            return await handler(request)
        from auditord.web.access.client_certificates import end_of  # noqa: PLC0415 cryptography, only with TLS

        if now() <= (end := end_of(der)):
            return await handler(request)
        audit.log_refusal(request, None, f"the client's certificate expired at {end.isoformat()}")
        return refusal(request, known=False)

    return answer
