"""Logins at an issuer: ``/login/{authenticator}`` leads the browser there, ``…/callback`` is where it comes back."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from auditord.web.access import audit
from auditord.web.access.authorisation import Authorisation
from auditord.web.access.sessions import Sessions, TokenTooLong, new_session
from auditord.web.page.login import PATH, LoginPage, asked_target
from auditord.web.problems import Refused
from auditord.web.requests import read_target
from auditord_hookspecs import AccessRefused
from auditord_hookspecs.access import Login, LoginUnavailable

log: Final = logging.getLogger(__name__)

ROUTE: Final = f"{PATH}/{{authenticator}}"
CALLBACK: Final = f"{ROUTE}/callback"

_PATIENCE: Final = timedelta(minutes=10)
_MOST_FIELDS: Final = 50


class _Begun(msgspec.Struct, frozen=True):
    """A login that a browser has begun, sealed in a cookie of its own until it comes back.

    Args:
        authenticator: at which.
        target: the path to go on to.
        kept: the authenticator's secrets.
    """

    authenticator: str
    target: str
    kept: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The authenticator that a request is about."""

    name: str
    authorisation: Authorisation
    sessions: Sessions
    issuer: Login


@dataclass(frozen=True, slots=True)
class IssuerPages:
    """The two ends of a login at an issuer.

    Args:
        authorisation: has the authenticators; None where nobody is asked who they are.
        login: the page with the form, which also says why a login failed.
    """

    authorisation: Authorisation | None
    login: LoginPage

    async def begin(self, request: web.BaseRequest) -> web.StreamResponse:
        """Lead the browser to the issuer."""
        chosen, target = self._chosen(request), asked_target(request)
        try:
            start = await chosen.issuer.start(self._callback(request, chosen.name))
        except LoginUnavailable as error:
            return self._away(request, chosen, target, error)
        headers = {"Location": start.url, "Cache-Control": "no-store"}
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers=headers)
        sealed = chosen.sessions.seal(msgspec.json.encode(_Begun(chosen.name, target, dict(start.kept))))
        # Lax: the browser comes back from another site's page, and Strict would keep the cookie back.
        name = _cookie(chosen.sessions, request)
        chosen.sessions.set_cookie(request, response, name, sealed, _PATIENCE, samesite="Lax")
        return response

    async def come_back(self, request: web.BaseRequest) -> web.StreamResponse:
        """Begin a session, if the issuer has proved who it is."""
        chosen = self._chosen(request)
        begun = _begun(request, chosen)
        target = "/" if begun is None else begun.target
        try:
            response = await self._finished(request, chosen, begun)
        except AccessRefused as error:
            audit.refused(request, None, str(error))
            response = self.login.form(request, chosen.sessions, target, "login.failed", HTTPStatus.FORBIDDEN)
        except LoginUnavailable as error:
            response = self._away(request, chosen, target, error)
        except TokenTooLong as error:
            log.warning("a login at %s is refused: %s", chosen.name, error)
            response = self.login.form(request, chosen.sessions, target, "login.too_long", HTTPStatus.FORBIDDEN)
        response.del_cookie(_cookie(chosen.sessions, request), path=chosen.sessions.root)
        return response

    async def _finished(self, request: web.BaseRequest, chosen: _Chosen, begun: _Begun | None) -> web.Response:
        if begun is None:
            raise AccessRefused(f"no login at {chosen.name} was begun in this browser, or too long ago")
        claims = await chosen.issuer.finish(self._callback(request, chosen.name), begun.kept, _answer(request))
        session = new_session(authenticator=chosen.name, claims=claims)
        principal = await chosen.authorisation.recognise(session.credentials, chosen.name)
        response = self.login.renderer.again(self.login.renderer.path(begun.target))
        chosen.sessions.begin(request, response, session)
        audit.session(request, principal.name, "login")
        return response

    def _chosen(self, request: web.BaseRequest) -> _Chosen:
        name = read_target(request.raw_path).segment(1)
        authorisation = self.authorisation
        issuer = None if authorisation is None else authorisation.logins.get(name)
        if issuer is None or authorisation is None or authorisation.sessions is None:
            raise Refused(HTTPStatus.NOT_FOUND, self.login.renderer.text("login.unknown"))
        return _Chosen(name, authorisation, authorisation.sessions, issuer)

    def _away(self, request: web.BaseRequest, chosen: _Chosen, target: str, error: LoginUnavailable) -> web.Response:
        log.warning("nobody can log in at %s: %s", chosen.name, error)
        return self.login.form(request, chosen.sessions, target, "login.away", HTTPStatus.SERVICE_UNAVAILABLE)

    def _callback(self, request: web.BaseRequest, name: str) -> str:
        return self.login.renderer.url(request, f"{PATH}/{name}/callback")


def _begun(request: web.BaseRequest, chosen: _Chosen) -> _Begun | None:
    """The login that the browser has begun at this authenticator."""
    opened = chosen.sessions.open(request.cookies.get(_cookie(chosen.sessions, request), ""), _PATIENCE)
    try:
        begun = None if opened is None else msgspec.json.decode(opened, type=_Begun)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return begun if begun is not None and begun.authenticator == chosen.name else None


def _cookie(sessions: Sessions, request: web.BaseRequest) -> str:
    return f"{sessions.name(request)}_login"


def _answer(request: web.BaseRequest) -> Mapping[str, str]:
    try:
        return dict(parse_qsl(read_target(request.raw_path).query, max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise AccessRefused("the issuer's answer has too many parameters") from error
