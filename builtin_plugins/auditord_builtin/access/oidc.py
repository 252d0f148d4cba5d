"""Login of people at an OpenID Connect issuer: authorization code with PKCE (RFC 7636), state, nonce and logout.

OpenID Connect Core 1.0, section 3.1; RP-Initiated Logout 1.0. The ID token is verified like access tokens, and its
claims get roles by the same rules.
"""

import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import msgspec

from auditord_builtin.access.connections import fits
from auditord_builtin.access.jwt_checking import (
    BETWEEN_FETCHES,
    Claims,
    Discovery,
    Issuer,
    KeysUnavailable,
    discovered,
    groups_of,
    identity_of,
    is_lacking,
)
from auditord_builtin.access.jwt_config import JwtConfig, LoginSection, checked_url
from auditord_hookspecs import AccessRefused, Credentials, Identity
from auditord_hookspecs.access import LoginStart, LoginUnavailable
from auditord_hookspecs.http import HttpAnswer, HttpClient, HttpError

_OK: Final = 200

T = TypeVar("T")


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str | None = None


class Description:
    """An issuer's description, fetched again after ``refresh``."""

    def __init__(self, config: JwtConfig, http: HttpClient, now: Callable[[], datetime]) -> None:
        self._config = config
        self._http = http
        self._now = now
        self._known: tuple[datetime, Discovery] | None = None
        self._failed: tuple[datetime, KeysUnavailable] | None = None

    async def get(self) -> Discovery:
        """Return the description. If the issuer is down, it is asked once a minute at most, however many requests come.

        Raises:
            LoginUnavailable: it cannot be fetched.
        """
        if self._known is not None and not self._is_past(self._known[0], self._config.refresh):
            return self._known[1]
        if self._failed is not None and not self._is_past(self._failed[0], BETWEEN_FETCHES):
            raise LoginUnavailable(str(self._failed[1]))
        try:
            found = await discovered(self._http, self._config.issuer)
        except KeysUnavailable as error:
            self._failed = (self._now(), error)
            raise LoginUnavailable(str(error)) from error
        self._known, self._failed = (self._now(), found), None
        return found

    def _is_past(self, since: datetime, length: timedelta) -> bool:
        return self._now() - since >= length


class IssuerLogin:
    """An issuer whose tokens are accepted, and at which people log in."""

    def __init__(self, issuer: Issuer, login: LoginSection, http: HttpClient, description: Description) -> None:
        self._issuer = issuer
        self._login = login
        self._http = http
        self._description = description

    @property
    def title(self) -> str:
        """The issuer's name, for the page."""
        return self._login.title or urlsplit(self._issuer.config.issuer).hostname or self._issuer.config.issuer

    async def __call__(self, credentials: Credentials) -> Identity | None:
        """Return the identity behind a token, or behind a session's claims."""
        return await self._issuer(credentials)

    async def start(self, callback: str) -> LoginStart:
        """Begin a login."""
        endpoint = _endpoint(await self._description.get(), "authorization_endpoint")
        kept = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
        digest = sha256(kept["verifier"].encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._login.client_id,
            "redirect_uri": callback,
            "scope": " ".join(dict.fromkeys(["openid", *self._login.scopes])),
            "state": kept["state"],
            "nonce": kept["nonce"],
            "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return LoginStart(f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", kept)

    async def finish(self, callback: str, kept: Mapping[str, str], answer: Mapping[str, str]) -> Mapping[str, object]:
        """Return the claims that the rules use, verified with the issuer."""
        issuer = self._issuer.config.issuer
        if not compare_digest(kept["state"].encode(), answer.get("state", "").encode(errors="replace")):
            raise AccessRefused(f"the answer of {issuer} is to another login (state)")
        if answer.get("iss", issuer) != issuer:  # RFC 9207
            raise AccessRefused(f"another issuer than {issuer} answered")
        if "code" not in answer:
            raise AccessRefused(f"{issuer} refused the login: {answer.get('error', 'it sent no code')[:100]}")
        tokens = await self._exchanged(callback, answer["code"], kept["verifier"])
        claims = await self._issuer.checked(tokens.id_token, (self._login.client_id,))
        if not compare_digest(kept["nonce"].encode(), str(claims.get("nonce", "")).encode(errors="replace")):
            raise AccessRefused(f"the ID token of {issuer} is for another login (nonce)")
        if claims.get("azp", self._login.client_id) != self._login.client_id:
            raise AccessRefused(f"the ID token of {issuer} is for another client (azp)")
        reduced = _reduced(self._issuer.config, await self._completed(claims, tokens.access_token))
        if identity_of(self._issuer.config, reduced) is None:
            raise AccessRefused(f"no rule is about {claims['sub']} of {issuer}")
        return reduced

    async def logout(self, back: str) -> str | None:
        """Return the URL at which the issuer ends its session; None if there is none."""
        try:
            endpoint = (await self._description.get()).end_session_endpoint
        except LoginUnavailable:
            return None
        query = urlencode({"client_id": self._login.client_id, "post_logout_redirect_uri": back})
        return None if endpoint is None else f"{checked_url(endpoint)}{'&' if '?' in endpoint else '?'}{query}"

    async def _exchanged(self, callback: str, code: str, verifier: str) -> _Tokens:
        found = await self._description.get()
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": callback, "code_verifier": verifier}
        headers = dict[str, str]()
        client, secret = self._login.client_id, self._login.client_secret
        if secret is not None and "client_secret_basic" in found.token_endpoint_auth_methods_supported:
            pair = f"{quote_plus(client)}:{quote_plus(secret.get_secret_value())}"  # RFC 6749, section 2.3.1
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": client} | ({} if secret is None else {"client_secret": secret.get_secret_value()})
        answer = await self._asked("POST", _endpoint(found, "token_endpoint"), headers, form)
        return _read(answer, _Tokens)

    async def _completed(self, claims: Claims, access_token: str | None) -> Claims:
        """Return the claims, completed by the UserInfo endpoint. Signed claims take precedence."""
        config, found = self._issuer.config, await self._description.get()
        if found.userinfo_endpoint is None or access_token is None or not is_lacking(config, claims):
            return claims
        headers = {"Authorization": f"Bearer {access_token}"}
        more = _read(await self._asked("GET", _endpoint(found, "userinfo_endpoint"), headers), dict[str, Any])
        if more.get("sub") != claims["sub"]:
            raise AccessRefused(f"{config.issuer} tells about another user than {claims['sub']}")
        return {**more, **claims}

    async def _asked(
        self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        try:
            return await self._http.request(method, url, headers=headers, form=form, idempotent=False)
        except HttpError as error:
            raise LoginUnavailable(str(error)) from error


def _endpoint(found: Discovery, name: str) -> str:
    url: str | None = getattr(found, name)
    try:
        return checked_url(url or "")
    except ValueError as error:
        raise LoginUnavailable(f"the description of {found.issuer} has no {name} that can be trusted") from error


def _read(answer: HttpAnswer, shape: type[T]) -> T:
    """Return the content of an answer.

    Raises:
        AccessRefused: it is a refusal, or malformed. The error does not quote it.
        LoginUnavailable: the server cannot answer now.
    """
    if answer.status >= 500:  # noqa: PLR2004 the classes of HTTP
        raise LoginUnavailable(f"{answer.request} was answered {answer.status}")
    if answer.status != _OK:
        raise AccessRefused(f"{answer.request} was answered {answer.status} {_error_of(answer)}".rstrip())
    try:
        return msgspec.json.decode(answer.body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AccessRefused(f"{answer.request} was answered by something that cannot be read") from error


def _error_of(answer: HttpAnswer) -> str:
    """Return the error code (RFC 6749, section 5.2), such as ``invalid_grant``."""
    try:
        found = msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return str(found.get("error", ""))[:100]


def _reduced(config: JwtConfig, claims: Claims) -> Mapping[str, object]:
    """Return the claims that the rules use: a cookie should hold as little as possible."""
    patterns = [rule.group for rule in config.rules if rule.group is not None]
    groups = [group for group in groups_of(config, claims) if any(fits(pattern, group) for pattern in patterns)]
    kept: dict[str, object] = {"sub": claims["sub"]}
    kept |= {config.group_claims[0]: list(dict.fromkeys(groups))} if config.group_claims else {}
    return kept | ({config.user_claim: claims.get(config.user_claim)} if config.user_claim is not None else {})
