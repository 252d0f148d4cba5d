"""Sessions of people who have logged in to the page: sealed cookies that expire.

A cookie holds the token (or the claims) from its owner's login, encrypted and signed (Fernet, of ``cryptography``) with
a key in the state folder. The authenticators check the token at every request, so a session ends with its token, after
its maximum length, or when its owner logs out. The daemon keeps no list of sessions, and they survive a restart.
"""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from auditord.errors import ConfigurationError
from auditord_hookspecs import AuditordError, Credentials
from auditord_hookspecs.folders import replace_private

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

FILE: Final = "sessions.json"

_KEY_BYTES: Final = 32  # https://github.com/fernet/spec/blob/master/Spec.md#key-format

LONGEST_COOKIE: Final = 3_900
"""Browsers accept cookies of up to 4,096 bytes including the name."""


class Session(msgspec.Struct, frozen=True):
    """A session of a browser.

    Args:
        token: the owner's bearer token; None after a login at an issuer.
        authenticator: the authenticator at whose issuer the owner logged in; None for a token.
        claims: the claims from that login.
    """

    session_id: str
    token: str | None = None
    authenticator: str | None = None
    claims: Mapping[str, Any] | None = None  # Any: JSON

    @property
    def credentials(self) -> Credentials:
        return Credentials(token=self.token, claims=self.claims)


_SESSION: Final = web.RequestKey("session", Session)


def new_session(
    token: str | None = None, authenticator: str | None = None, claims: Mapping[str, Any] | None = None
) -> Session:  # Any: JSON
    """Return a session with a random id."""
    return Session(secrets.token_urlsafe(16), token, authenticator, claims)


class TokenTooLong(AuditordError):
    """A token, or the claims of a login, do not fit into a cookie.

    Remedy:
        have the issuer put fewer claims into its tokens.
    """


class _Kept(msgspec.Struct):
    """The content of the file.

    Args:
        ended: ids of sessions whose owners have logged out, with the expiry of their cookies.
    """

    key: str
    ended: dict[str, datetime] = {}


class Sessions(msgspec.Struct, frozen=True):
    """The sessions of a daemon.

    Args:
        path: the file with the key.
        length: the maximum length of a session.
        root: the URL path of the page.
    """

    path: Path
    kept: _Kept
    length: timedelta
    root: str
    now: Callable[[], datetime]

    def begin(self, request: web.BaseRequest, response: web.StreamResponse, session: Session) -> None:
        """Set the cookie of a new session, whose credentials must have been recognised.

        Raises:
            TokenTooLong: the session does not fit into a cookie.
        """
        sealed = self.seal(msgspec.json.encode(session))
        if len(sealed) > LONGEST_COOKIE:
            raise TokenTooLong(f"this login is too long for a cookie ({len(sealed):,} bytes of {LONGEST_COOKIE:,})")
        self.set_cookie(request, response, self.name(request), sealed, self.length)

    def set_cookie(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        name: str,
        value: str,
        length: timedelta,
        *,
        samesite: str = "Strict",
    ) -> None:
        """Set a cookie that scripts cannot read and that is not sent with requests of other sites."""
        response.set_cookie(
            name,
            value,
            max_age=int(length.total_seconds()),
            path=self.root,
            secure=request.secure,
            httponly=True,
            samesite=samesite,
        )

    def of(self, request: web.BaseRequest) -> Session | None:
        """Return the session of a request; None if there is none or it has ended."""
        if "Cookie" not in request.headers:
            return None
        known: Session | None = request.get(_SESSION)
        if known is not None:
            return known
        opened = self.open(request.cookies.get(self.name(request), ""), self.length)
        try:
            session = None if opened is None else msgspec.json.decode(opened, type=Session)
        except (msgspec.DecodeError, UnicodeDecodeError):
            session = None
        if session is None or session.session_id in self.kept.ended:
            return None
        request[_SESSION] = session
        return session

    def has_ended(self, request: web.BaseRequest) -> bool:
        """Return whether the request has the cookie of an ended session."""
        return self.name(request) in request.cookies and self.of(request) is None

    def end(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """End the session of a request, also for copies of its cookie.

        Raises:
            OSError: the file cannot be written.
        """
        session, now = self.of(request), self.now()
        if session is not None:
            ended = {each: until for each, until in self.kept.ended.items() if until > now}
            self.kept.ended = {**ended, session.session_id: now + self.length}
            replace_private(self.path, msgspec.json.encode(self.kept))
        response.del_cookie(self.name(request), path=self.root, secure=request.secure, httponly=True, samesite="Strict")

    def name(self, request: web.BaseRequest) -> str:
        """Return the cookie's name, which differs between daemons, because cookies ignore the port of a host."""
        own = sha256(self.kept.key.encode()).hexdigest()[:8]
        return f"{'__Secure-' if request.secure else ''}auditord_{own}"

    def proof(self, owner: str) -> str:
        """Return a proof that a form was made for its sender."""
        return self.seal(f"form:{owner}".encode())

    def is_proof(self, text: str, owner: str) -> bool:
        """Return whether a proof was made for this owner and has not expired."""
        return self.open(text, self.length) == f"form:{owner}".encode()

    def seal(self, content: bytes) -> str:
        """Encrypt and sign content together with the time."""
        return self._fernet.encrypt_at_time(content, int(self.now().timestamp())).decode().rstrip("=")

    def open(self, sealed: str, length: timedelta) -> bytes | None:
        """Return sealed content; None if the seal is invalid or has expired."""
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 see _fernet

        try:
            padded = sealed.encode() + b"=" * (-len(sealed) % 4)
            return self._fernet.decrypt_at_time(padded, int(length.total_seconds()), int(self.now().timestamp()))
        except (InvalidToken, UnicodeEncodeError):
            return None

    @property
    def _fernet(self) -> "Fernet":
        from cryptography.fernet import Fernet  # noqa: PLC0415 7 MB of memory, only if people log in

        return Fernet(self.kept.key)


def open_sessions(state_dir: Path, length: timedelta, root: str, now: Callable[[], datetime]) -> Sessions:
    """Return the sessions of a daemon. Its key is created once.

    Raises:
        ConfigurationError: the file with the key cannot be read or written.
    """
    path = state_dir / FILE
    try:
        if path.exists():
            kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
            if len(urlsafe_b64decode(kept.key)) != _KEY_BYTES:
                raise ValueError(f"the key does not have {_KEY_BYTES} bytes")  # noqa: TRY301 told with its file below
        else:
            kept = _Kept(urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).decode())
            replace_private(path, msgspec.json.encode(kept))
    except (OSError, msgspec.DecodeError, ValueError) as error:
        text = f"the session key in {path} cannot be used: {error}: remove the file; users then have to log in again"
        raise ConfigurationError(text) from error
    return Sessions(path, kept, length, root, now)
