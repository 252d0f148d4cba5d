"""The page ``/login``: people prove who they are, and a session begins; ``/logout`` ends it."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from aiohttp import web

from auditord.web.access import audit
from auditord.web.access.authorisation import Authorisation
from auditord.web.access.credentials import LONGEST_TOKEN, credentials_of
from auditord.web.access.sessions import Session, Sessions, TokenTooLong, new_session
from auditord.web.page.forms import PROOF, Forms, read_fields
from auditord.web.page.rendering import Navigation, Renderer
from auditord.web.page.visitors import Visitors
from auditord.web.problems import Refused
from auditord.web.requests import read_target
from auditord_hookspecs import AccessRefused, Credentials, Principal
from auditord_hookspecs.access import Login

PATH: Final = "/login"
LOGOUT: Final = "/logout"

_FORM_LENGTH: Final = timedelta(hours=12)
_LONGEST_TARGET: Final = 2_000


@dataclass(frozen=True, slots=True)
class LoginPage:
    """The page on which people log in.

    Args:
        authorisation: recognises them; None where nobody is asked.
        renderer: makes pages.
        visitors: knows who sees what.
        forms: checks what was sent.
    """

    authorisation: Authorisation | None
    renderer: Renderer
    visitors: Visitors
    forms: Forms

    async def show(self, request: web.BaseRequest) -> web.StreamResponse:
        """The form; where nobody is asked who they are, the reason why there is none."""
        sessions = self._sessions
        if sessions is None:
            return self.renderer.answer("login.html", {"form": None}, self.visitors.navigation(request, PATH))
        error = "login.ended" if sessions.has_ended(request) else None
        return self.form(request, sessions, asked_target(request), error, HTTPStatus.OK)

    async def enter(self, request: web.BaseRequest) -> web.StreamResponse:
        """Begin a session with the token that was sent."""
        fields = await read_fields(request)
        if self._sessions is None or self.authorisation is None:
            raise Refused(403, self.renderer.text("login.needless"))
        sessions, target, token = self._sessions, local_target(fields.get("next", "")), fields.get("token", "").strip()
        nonce = request.cookies.get(_nonce_name(sessions, request), "")
        if not nonce or not sessions.is_proof(fields.get(PROOF, ""), f"login {nonce}"):
            raise Refused(403, self.renderer.text("login.stale"))
        try:
            principal = await self._recognised(self.authorisation, request, token)
            response = self.renderer.redirect(target)
            sessions.begin(request, response, new_session(token))
        except AccessRefused as error:
            audit.refused(request, None, str(error))
            return self.form(request, sessions, target, "login.refused", HTTPStatus.FORBIDDEN)
        except TokenTooLong:
            return self.form(request, sessions, target, "login.too_long", HTTPStatus.FORBIDDEN)
        audit.session(request, principal.name, "login")
        return response

    async def _recognised(self, authorisation: Authorisation, request: web.BaseRequest, token: str) -> Principal:
        if not 0 < len(token) <= LONGEST_TOKEN or not token.isascii():
            raise AccessRefused("what was sent to the login form is no token")
        return await authorisation.recognise(Credentials(credentials_of(request).address, token=token))

    async def leave(self, request: web.BaseRequest) -> web.StreamResponse:
        """End the session, and the issuer's own if it began there."""
        session = None if self._sessions is None else self._sessions.of(request)
        if self._sessions is None or self.authorisation is None or session is None:
            return self.renderer.redirect(PATH)
        await self.forms.read(request)
        login = self.authorisation.logins.get(session.authenticator or "")
        elsewhere = None if login is None else await login.logout(self.renderer.url(request, PATH))
        # A form must not lead to another server (form-action), a page may.
        response = self.renderer.redirect(PATH) if elsewhere is None else self.renderer.again(elsewhere)
        self._sessions.end(request, response)
        audit.session(request, await _name(self.authorisation, session), "logout")
        return response

    def refuse(self, request: web.BaseRequest, known: bool) -> web.StreamResponse | None:  # noqa: FBT001 a callback's
        """The answer to a browser whose user is not known, or may not see the page; None for other programs."""
        if "text/html" not in request.headers.get("Accept", ""):
            return None
        if known:
            values = {"status": HTTPStatus.FORBIDDEN, "text": self.renderer.text("login.forbidden")}
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
        """The form, with a proof that only the browser can send back to which it is sent.

        Args:
            request: that it answers.
            sessions: of the daemon.
            target: the path to go on to.
            error: the name of a text that says why there is no session.
            status: of the answer.
        """
        name = _nonce_name(sessions, request)
        nonce = request.cookies.get(name) or secrets.token_urlsafe(16)
        logins: Mapping[str, Login] = {} if self.authorisation is None else self.authorisation.logins
        form: Mapping[str, object] = {
            "error": None if error is None else self.renderer.text(error),
            "next": target,
            "proof": sessions.proof(f"login {nonce}"),
            "logins": [(f"{PATH}/{each}?{urlencode({'next': target})}", login.title) for each, login in logins.items()],
        }
        response = self.renderer.answer("login.html", {"form": form}, Navigation(PATH, ()), status)
        sessions.set_cookie(request, response, name, nonce, _FORM_LENGTH)
        return response


async def _name(authorisation: Authorisation, session: Session) -> str | None:
    """The name of a session's owner; None if nobody knows them any more."""
    try:
        return (await authorisation.recognise(session.credentials, session.authenticator)).name
    except AccessRefused:
        return None


def _nonce_name(sessions: Sessions, request: web.BaseRequest) -> str:
    return f"{sessions.name(request)}_form"


def asked_target(request: web.BaseRequest) -> str:
    """The path to go on to after the login, as the request names it."""
    given = parse_qs(read_target(request.raw_path).query, max_num_fields=20)
    return local_target(given.get("next", [""])[0])


def local_target(text: str) -> str:
    """The path to go on to, if it is one of this server's; otherwise the overview."""
    parts = urlsplit(text[:_LONGEST_TARGET])
    plain = text.isascii() and text.isprintable() and "\\" not in text
    is_local = plain and not parts.scheme and not parts.netloc and text.startswith("/") and not text.startswith("//")
    return text if is_local and len(text) <= _LONGEST_TARGET else "/"
