"""Sessions of people who have logged in to the page: sealed cookies with an end.

A cookie holds the token with which its owner logged in, encrypted and signed (Fernet, of ``cryptography``) with a key
in the state folder. So the authenticators see the token at every request, and a session ends with its token; it also
ends after its time, and when its owner logs out. The daemon keeps no list of sessions, and a restart changes nothing.
"""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""Browsers keep cookies of up to 4,096 bytes, name and all."""


class Session(msgspec.Struct, frozen=True):
    """A session of a browser.

    Args:
        session_id: says which one it is; random.
        token: the bearer token with which its owner logged in.
        authenticator: at whose issuer its owner logged in, without a token.
        claims: that were proved there.
    """

    session_id: str
    token: str | None = None
    authenticator: str | None = None
    claims: Mapping[str, Any] | None = None  # Any: JSON

    @property
    def credentials(self) -> Credentials:
        """The credentials of its owner."""
        return Credentials(token=self.token, claims=self.claims)


_SESSION: Final = web.RequestKey("session", Session)


def new_session(
    token: str | None = None, authenticator: str | None = None, claims: Mapping[str, Any] | None = None
) -> Session:  # Any: JSON
    """A session with an id that nobody guesses."""
    return Session(secrets.token_urlsafe(16), token, authenticator, claims)


class TokenTooLong(AuditordError):
    """A token, or claims, do not fit into a cookie.

    Remedy:
        have the issuer put fewer claims into its tokens.
    """


class _Kept(msgspec.Struct):
    """The content of the file.

    Args:
        key: seals cookies.
        ended: the end of each session whose owner has logged out, by id; no longer kept than the cookie would count.
    """

    key: str
    ended: dict[str, datetime] = {}


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions of a daemon.

    Args:
        path: of the file with the key.
        kept: its content.
        length: the time after which a session ends.
        root: the path below which browsers find the page.
        now: the clock.
    """

    path: Path
    kept: _Kept
    length: timedelta
    root: str
    now: Callable[[], datetime]

    def begin(self, request: web.BaseRequest, response: web.StreamResponse, session: Session) -> None:
        """Have the browser keep a new session, whose credentials were recognised.

        Raises:
            TokenTooLong: it does not fit into a cookie.
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
        """Have the browser keep a value that scripts do not see, and no page of another site has sent."""
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
        """The session of a request; None if there is none, or it has ended."""
        if "Cookie" not in request.headers:
            return None
        known: Session | None = request.get(_SESSION)
        if known is not None:
            return known
        opened = self.open(request.cookies.get(self.name(request), ""), self.length)
        session = None if opened is None else _decoded(opened)
        if session is None or session.session_id in self.kept.ended:
            return None
        request[_SESSION] = session
        return session

    def has_ended(self, request: web.BaseRequest) -> bool:
        """Tell if the browser has sent a session that counts no more."""
        return self.name(request) in request.cookies and self.of(request) is None

    def end(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """End the session of a request, also for who has a copy of its cookie.

        Raises:
            OSError: that cannot be kept.
        """
        session, now = self.of(request), self.now()
        if session is not None:
            ended = {each: until for each, until in self.kept.ended.items() if until > now}
            self.kept.ended = {**ended, session.session_id: now + self.length}
            replace_private(self.path, msgspec.json.encode(self.kept))
        response.del_cookie(self.name(request), path=self.root, secure=request.secure, httponly=True, samesite="Strict")

    def name(self, request: web.BaseRequest) -> str:
        """The cookie's name: browsers do not tell the ports of a host apart, so each daemon has a name of its own."""
        own = sha256(self.kept.key.encode()).hexdigest()[:8]
        return f"{'__Secure-' if request.secure else ''}auditord_{own}"

    def proof(self, owner: str) -> str:
        """A proof that a form was made for its sender."""
        return self.seal(f"form:{owner}".encode())

    def is_proof(self, text: str, owner: str) -> bool:
        """Tell if a proof was made for this sender, and not too long ago."""
        return self.open(text, self.length) == f"form:{owner}".encode()

    def seal(self, content: bytes) -> str:
        """The content, which nobody else can read or make, and the time."""
        return self._fernet.encrypt_at_time(content, int(self.now().timestamp())).decode().rstrip("=")

    def open(self, sealed: str, length: timedelta) -> bytes | None:
        """The content that was sealed; None if it was not, or longer ago."""
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 see _fernet

        try:
            padded = sealed.encode() + b"=" * (-len(sealed) % 4)
            return self._fernet.decrypt_at_time(padded, int(length.total_seconds()), int(self.now().timestamp()))
        except (InvalidToken, UnicodeEncodeError):
            return None

    @property
    def _fernet(self) -> "Fernet":
        from cryptography.fernet import Fernet  # noqa: PLC0415 7 MB of memory, for daemons into which somebody logs in

        return Fernet(self.kept.key)


def open_sessions(state_dir: Path, length: timedelta, root: str, now: Callable[[], datetime]) -> Sessions:
    """The sessions of a daemon, whose key is made once.

    Raises:
        ConfigurationError: the file with the key cannot be read or written.
    """
    path = state_dir / FILE
    try:
        if path.exists():
            kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
            _require_key(kept.key)
        else:
            kept = _Kept(urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).decode())
            replace_private(path, msgspec.json.encode(kept))
    except (OSError, msgspec.DecodeError, ValueError) as error:
        text = f"the key of sessions in {path} cannot be used: {error}: remove the file, and people log in again"
        raise ConfigurationError(text) from error
    return Sessions(path, kept, length, root, now)


def _require_key(key: str) -> None:
    if len(urlsafe_b64decode(key)) != _KEY_BYTES:
        raise ValueError(f"it has not {_KEY_BYTES} bytes")


def _decoded(content: bytes) -> Session | None:
    try:
        return msgspec.json.decode(content, type=Session)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
