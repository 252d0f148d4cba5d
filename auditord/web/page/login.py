"""The page ``/login``, where people log in with a token or at an issuer, and ``/logout``, which ends the session.

``/login/{authenticator}`` redirects the browser to the issuer, which redirects it back to ``…/callback``.
"""

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

import msgspec
from aiohttp import web

from auditord.web.access import audit
from auditord.web.access.authorisation import Authorisation
from auditord.web.access.credentials import LONGEST_TOKEN, credentials_of
from auditord.web.access.sessions import Sessions, TokenTooLong, new_session
from auditord.web.page.rendering import PROOF, Navigation, Renderer, Visitors, read_fields
from auditord.web.problems import Refused
from auditord.web.requests import read_target
from auditord_hookspecs import AccessRefused, Credentials, Principal
from auditord_hookspecs.access import Login, LoginUnavailable

PATH: Final = "/login"
LOGOUT: Final = "/logout"

_TOO_LONG: Final = (
    "This login is too long for a browser cookie. Please use another token, or ask the operator of this server."
)
_FORM_LENGTH: Final = timedelta(hours=12)
_LONGEST_TARGET: Final = 2_000


class LoginPage(msgspec.Struct, frozen=True):
    """The page on which people log in.

    Args:
        authorisation: recognises callers; None if no authenticator is configured.
    """

    authorisation: Authorisation | None
    renderer: Renderer
    visitors: Visitors

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """Show the form; without authenticators, say why there is none."""
        sessions = self._sessions
        if sessions is None:
            return self.renderer.answer("login.html", {"form": None}, self.visitors.navigation(request, PATH))
        error = "Your session has ended. Please log in again." if sessions.has_ended(request) else None
        return self.form(request, sessions, read_next(request), error, HTTPStatus.OK)

    async def enter(self, request: web.BaseRequest) -> web.StreamResponse:
        """Begin a session with the token in the form."""
        fields = await read_fields(request)
        if self._sessions is None or self.authorisation is None:
            raise Refused(403, "This server does not need a login.")
        sessions, target, token = self._sessions, local_target(fields.get("next", "")), fields.get("token", "").strip()
        nonce = request.cookies.get(_nonce_name(sessions, request), "")
        if not nonce or not sessions.is_proof(fields.get(PROOF, ""), f"login {nonce}"):
            message = (
                "This form has expired, or your browser does not store cookies of this server. "
                "Please load the page again."
            )
            raise Refused(403, message)
        try:
            principal = await self._recognise(self.authorisation, request, token)
            response = self.renderer.redirect(target)
            sessions.begin(request, response, new_session(token))
        except AccessRefused as error:
            audit.log_refusal(request, None, str(error))
            reason = "This token is not accepted: it is wrong, has expired or was revoked."
            return self.form(request, sessions, target, reason, HTTPStatus.FORBIDDEN)
        except TokenTooLong:
            return self.form(request, sessions, target, _TOO_LONG, HTTPStatus.FORBIDDEN)
        audit.session(request, principal.name, "login")
        return response

    async def _recognise(self, authorisation: Authorisation, request: web.BaseRequest, token: str) -> Principal:
        if not 0 < len(token) <= LONGEST_TOKEN or not token.isascii():
            raise AccessRefused("the text that was sent to the login form is not a token")
        return await authorisation.recognise(Credentials(credentials_of(request).address, token=token))

    async def leave(self, request: web.BaseRequest) -> web.StreamResponse:
        """End the session. If it began at an issuer, end the issuer's session too."""
        session = None if self._sessions is None else self._sessions.of(request)
        if self._sessions is None or self.authorisation is None or session is None:
            return self.renderer.redirect(PATH)
        await self.visitors.forms.read(request)
        login = self.authorisation.logins.get(session.authenticator or "")
        elsewhere = None if login is None else await login.logout(self.renderer.url(request, PATH))
        # The policy form-action forbids a form to redirect to another server, so a page sends the browser there.
        response = self.renderer.redirect(PATH) if elsewhere is None else self.renderer.again(elsewhere)
        self._sessions.end(request, response)
        name: str | None = None
        with suppress(AccessRefused):  # no authenticator recognises the session any more
            name = (await self.authorisation.recognise(session.credentials, session.authenticator)).name
        audit.session(request, name, "logout")
        return response

    def refuse(self, request: web.BaseRequest, known: bool) -> web.StreamResponse | None:  # noqa: FBT001 a callback's
        """Return the response to a browser whose user is unknown or may not see the page; None for other clients."""
        if "text/html" not in request.headers.get("Accept", ""):
            return None
        if known:
            message = "You are logged in, but none of your roles allows this."
            values = {"status": HTTPStatus.FORBIDDEN, "text": message}
            navigation = self.visitors.navigation(request, "")
            return self.renderer.answer("error.html", values, navigation, HTTPStatus.FORBIDDEN)
        if request.method == "GET" and request.headers.get("Sec-Fetch-Site") == "cross-site":
            return self.renderer.again(self.renderer.path(request.raw_path))
        target = request.raw_path if request.method == "GET" else "/"
        return self.renderer.redirect(f"{PATH}?next={quote(local_target(target), safe='/')}")

    @property
    def _sessions(self) -> Sessions | None:
        return None if self.authorisation is None else self.authorisation.sessions

    def form(
        self, request: web.BaseRequest, sessions: Sessions, target: str, error: str | None, status: HTTPStatus
    ) -> web.Response:
        """Return the login form. Only the browser that receives it can submit it.

        ``target`` is the path to redirect to after the login, ``error`` why it failed.
        """
        name = _nonce_name(sessions, request)
        nonce = request.cookies.get(name) or secrets.token_urlsafe(16)
        logins: Mapping[str, Login] = {} if self.authorisation is None else self.authorisation.logins
        form: Mapping[str, object] = {
            "error": error,
            "next": target,
            "proof": sessions.proof(f"login {nonce}"),
            "logins": [(f"{PATH}/{each}?{urlencode({'next': target})}", login.title) for each, login in logins.items()],
        }
        response = self.renderer.answer("login.html", {"form": form}, Navigation(PATH, ()), status)
        sessions.set_cookie(request, response, name, nonce, _FORM_LENGTH)
        return response


def _nonce_name(sessions: Sessions, request: web.BaseRequest) -> str:
    return f"{sessions.name(request)}_form"


def read_next(request: web.BaseRequest) -> str:
    """Return the requested path to redirect to after the login."""
    given = parse_qs(read_target(request.raw_path).query, max_num_fields=20)
    return local_target(given.get("next", [""])[0])


def local_target(text: str) -> str:
    """Return the path if it belongs to this server, else that of the overview, to prevent open redirects."""
    parts = urlsplit(text[:_LONGEST_TARGET])
    plain = text.isascii() and text.isprintable() and "\\" not in text
    is_local = plain and not parts.scheme and not parts.netloc and text.startswith("/") and not text.startswith("//")
    return text if is_local and len(text) <= _LONGEST_TARGET else "/"


log: Final = logging.getLogger(__name__)

ROUTE: Final = f"{PATH}/{{authenticator}}"
CALLBACK: Final = f"{ROUTE}/callback"

_PATIENCE: Final = timedelta(minutes=10)
_MOST_FIELDS: Final = 50


class _PendingLogin(msgspec.Struct, frozen=True):
    """A login that a browser has begun, sealed in a cookie until the browser returns.

    Args:
        target: the path to redirect to after the login.
        kept: the authenticator's secrets.
    """

    authenticator: str
    target: str
    kept: dict[str, str]


class _Chosen(msgspec.Struct, frozen=True):
    """The authenticator that a request is about."""

    name: str
    authorisation: Authorisation
    sessions: Sessions
    issuer: Login


class IssuerPages(msgspec.Struct, frozen=True):
    """Begins and finishes logins at issuers.

    Args:
        authorisation: the authenticators; None if none is configured.
        login: the page with the form, which also shows why a login failed.
    """

    authorisation: Authorisation | None
    login: LoginPage

    async def begin(self, request: web.BaseRequest) -> web.StreamResponse:
        """Redirect the browser to the issuer."""
        chosen, target = self._choose(request), read_next(request)
        try:
            start = await chosen.issuer.start(self._callback(request, chosen.name))
        except LoginUnavailable as error:
            return self._away(request, chosen, target, error)
        headers = {"Location": start.url, "Cache-Control": "no-store"}
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers=headers)
        sealed = chosen.sessions.seal(msgspec.json.encode(_PendingLogin(chosen.name, target, dict(start.kept))))
        # Lax, because the browser returns from another site's page and would withhold a Strict cookie.
        name = _cookie(chosen.sessions, request)
        chosen.sessions.set_cookie(request, response, name, sealed, _PATIENCE, samesite="Lax")
        return response

    async def come_back(self, request: web.BaseRequest) -> web.StreamResponse:
        """Begin a session if the issuer vouches for the user."""
        chosen = self._choose(request)
        opened = chosen.sessions.open(request.cookies.get(_cookie(chosen.sessions, request), ""), _PATIENCE)
        pending: _PendingLogin | None = None
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            pending = None if opened is None else msgspec.json.decode(opened, type=_PendingLogin)
        if pending is not None and pending.authenticator != chosen.name:
            pending = None
        target = "/" if pending is None else pending.target
        try:
            response = await self._finish(request, chosen, pending)
        except AccessRefused as error:
            audit.log_refusal(request, None, str(error))
            message = "The login failed. Please try again; the audit log of this server has the reason."
            response = self.login.form(request, chosen.sessions, target, message, HTTPStatus.FORBIDDEN)
        except LoginUnavailable as error:
            response = self._away(request, chosen, target, error)
        except TokenTooLong as error:
            log.warning("a login at %s is refused: %s", chosen.name, error)
            response = self.login.form(request, chosen.sessions, target, _TOO_LONG, HTTPStatus.FORBIDDEN)
        response.del_cookie(_cookie(chosen.sessions, request), path=chosen.sessions.root)
        return response

    async def _finish(self, request: web.BaseRequest, chosen: _Chosen, pending: _PendingLogin | None) -> web.Response:
        if pending is None:
            raise AccessRefused(f"no login at {chosen.name} was started in this browser, or it has expired")
        try:
            answer = dict(parse_qsl(read_target(request.raw_path).query, max_num_fields=_MOST_FIELDS))
        except ValueError as error:
            raise AccessRefused("the issuer's answer has too many parameters") from error
        claims = await chosen.issuer.finish(self._callback(request, chosen.name), pending.kept, answer)
        session = new_session(authenticator=chosen.name, claims=claims)
        principal = await chosen.authorisation.recognise(session.credentials, chosen.name)
        response = self.login.renderer.again(self.login.renderer.path(pending.target))
        chosen.sessions.begin(request, response, session)
        audit.session(request, principal.name, "login")
        return response

    def _choose(self, request: web.BaseRequest) -> _Chosen:
        name = read_target(request.raw_path).segment(1)
        authorisation = self.authorisation
        issuer = None if authorisation is None else authorisation.logins.get(name)
        if issuer is None or authorisation is None or authorisation.sessions is None:
            raise Refused(HTTPStatus.NOT_FOUND, "This login does not exist.")
        return _Chosen(name, authorisation, authorisation.sessions, issuer)

    def _away(self, request: web.BaseRequest, chosen: _Chosen, target: str, error: LoginUnavailable) -> web.Response:
        log.warning("no user can log in at %s: %s", chosen.name, error)
        message = "The login server is unavailable. Please try again later."
        return self.login.form(request, chosen.sessions, target, message, HTTPStatus.SERVICE_UNAVAILABLE)

    def _callback(self, request: web.BaseRequest, name: str) -> str:
        return self.login.renderer.url(request, f"{PATH}/{name}/callback")


def _cookie(sessions: Sessions, request: web.BaseRequest) -> str:
    return f"{sessions.name(request)}_login"
