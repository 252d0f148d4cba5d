"""Check access tokens with PyJWT, by the public keys of their issuer. Needs auditord[jwt]."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import jwt
import msgspec

from auditord_builtin.access.connections import fits, identified
from auditord_builtin.access.jwt_config import JwtConfig, checked_url
from auditord_hookspecs import AccessRefused, AuditordError, AuthenticatorContext, Credentials, Identity
from auditord_hookspecs.http import HttpClient, HttpError, HttpOptions
from auditord_hookspecs.sources import TlsFiles

BETWEEN_FETCHES: Final = timedelta(minutes=1)
"""The shortest time between two fetches because of unknown keys."""

KEPT: Final = timedelta(days=1)
"""The time for which keys stay trusted while the issuer is unreachable. A revocation is delayed by as much."""

_PUBLIC: Final = frozenset({"RSA", "EC", "OKP"})

Fetch: TypeAlias = Callable[[], Awaitable[Any]]  # Any: JSON
Described: TypeAlias = Mapping[str, Any]
"""A key as JSON (RFC 7517)."""


class Discovery(msgspec.Struct, frozen=True):
    """The needed part of an issuer's description (OpenID Connect Discovery 1.0, section 3)."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class KeysUnavailable(Exception):
    """The issuer's keys cannot be fetched; the text says why."""


class KeyRing:
    """The keys of one issuer, fetched again after ``refresh``."""

    def __init__(
        self,
        fetch: Fetch,
        refresh: timedelta,
        now: Callable[[], datetime],
        log: "logging.LoggerAdapter[logging.Logger]",
    ) -> None:
        self._fetch = fetch
        self._refresh = refresh
        self._now = now
        self._log = log
        self._keys: Mapping[str | None, Described] = {}
        self._fetched: datetime | None = None
        self._tried: datetime | None = None
        self._fetching = asyncio.Lock()

    async def key(self, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        """Return the key with this id for signatures of this algorithm; without an id, the only one.

        Raises:
            AccessRefused: there is no such key, or it is for another use.
        """
        if self._is_old(self._refresh) or (key_id is not None and key_id not in self._keys):
            await self._renew()
        if self._is_old(KEPT):
            raise AccessRefused("the keys of the issuer cannot be fetched")
        described = self._keys.get(key_id) if key_id is not None else self._only()
        if described is None or described.get("alg", algorithm) != algorithm:
            raise AccessRefused("signed with a key that the issuer does not have for this algorithm")
        return jwt.PyJWK(dict(described), algorithm)  # refuses a key that does not fit the algorithm

    def _only(self) -> Described | None:
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    def _is_old(self, age: timedelta) -> bool:
        return self._fetched is None or self._now() - self._fetched >= age

    async def _renew(self) -> None:
        """Fetch the keys, unless that was tried just now. If keys are known, requests do not wait for a slow issuer."""
        if self._keys and self._fetching.locked():
            return
        async with self._fetching:
            if self._tried is not None and self._now() - self._tried < BETWEEN_FETCHES:
                return
            self._tried = self._now()
            try:
                self._keys, self._fetched = public_keys(await self._fetch()), self._now()
            except KeysUnavailable as error:
                self._log.warning(
                    "the keys of the issuer cannot be fetched; known keys stay valid for a day: %s", error
                )


def public_keys(document: Any) -> Mapping[str | None, Described]:  # Any: JSON
    """Return the keys of a key set that verify signatures, by id, without shared keys.

    Raises:
        KeysUnavailable: it is no key set.
    """
    try:
        listed = msgspec.convert(document, type=_KeySet).keys
    except msgspec.ValidationError as error:
        raise KeysUnavailable(f"the answer is no key set: {error}") from error
    usable = [each for each in listed if each.get("kty") in _PUBLIC and each.get("use", "sig") == "sig"]
    return {each.get("kid"): each for each in usable if isinstance(each.get("kid"), str | None)}


def http_options(config: JwtConfig) -> HttpOptions:
    """Return the options of connections to the issuer: one attempt only, since a request waits for the answer."""
    return HttpOptions(tls=TlsFiles(ca=config.ca), timeout=timedelta(seconds=10), max_answer=1 << 20, attempts=1)


async def key_set(config: JwtConfig, http: HttpClient) -> Any:  # Any: JSON
    """Fetch the key set of an issuer.

    Raises:
        KeysUnavailable: it cannot be fetched.
    """
    if config.jwks is not None and config.jwks.startswith("file:"):
        return _read(Path(config.jwks.removeprefix("file:")))
    return await _get(http, config.jwks or (await discovered(http, config.issuer)).jwks_uri)


async def discovered(http: HttpClient, issuer: str) -> Discovery:
    """Fetch the issuer's own description.

    Raises:
        KeysUnavailable: it cannot be fetched, belongs to another issuer, or names no trusted address of keys.
    """
    found = await _get(http, issuer.rstrip("/") + "/.well-known/openid-configuration")
    try:
        document = msgspec.convert(found, type=Discovery)
    except msgspec.ValidationError as error:
        raise KeysUnavailable(f"the discovery document of {issuer} is none: {error}") from error
    if document.issuer != issuer:
        raise KeysUnavailable(f"the discovery document of {issuer} is another issuer's: compare the option issuer")
    try:
        checked_url(document.jwks_uri)
    except ValueError as error:
        raise KeysUnavailable(f"{issuer}: {error}") from error
    return document


def _read(path: Path) -> Any:  # Any: JSON
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise KeysUnavailable(f"{path}: {error}") from error


async def _get(http: HttpClient, url: str) -> Any:  # Any: JSON
    try:
        answer = await http.request("GET", url)
    except HttpError as error:
        raise KeysUnavailable(str(error)) from error
    if answer.status != 200:  # noqa: PLR2004 OK
        raise KeysUnavailable(f"{url} answers {answer.status}")
    try:
        return msgspec.json.decode(answer.body)
    except msgspec.DecodeError as error:
        raise KeysUnavailable(f"{url}: {error}") from error


Claims = Mapping[str, Any]  # Any: JSON

_NEEDED: Final = ("exp", "iss", "aud", "sub")
_UNREADABLE: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""PyJWT's errors, and those of its callees: deeply nested brackets, a time out of range."""

_UNCHECKED: Final[dict[str, Any]] = {"verify_signature": False}


@asynccontextmanager
async def opened_issuer(
    config: JwtConfig, context: AuthenticatorContext
) -> AsyncGenerator[tuple["Issuer", HttpClient], None]:
    """Open an authenticator for an issuer's tokens, and the HTTP client for it.

    Raises:
        ValueError: the file with the authorities cannot be read.
    """
    async with AsyncExitStack() as stack:
        try:
            http = await stack.enter_async_context(context.http(http_options(config)))
        except AuditordError as error:
            raise ValueError(str(error)) from error
        yield Issuer(config, KeyRing(lambda: key_set(config, http), config.refresh, context.now, context.log)), http


class Issuer(msgspec.Struct, frozen=True):
    """Authenticates the tokens of one issuer."""

    config: JwtConfig
    keys: KeyRing

    async def __call__(self, credentials: Credentials) -> Identity | None:
        """Return the identity behind a token, or behind claims that were verified when a session began."""
        if credentials.claims is not None:
            return identity_of(self.config, credentials.claims)
        if credentials.token is None or not _is_from(self.config.issuer, credentials.token):
            return None
        return identity_of(self.config, await self.checked(credentials.token, self.config.audience))

    async def checked(self, token: str, audience: Sequence[str]) -> Claims:
        """Return the verified claims of a token.

        Raises:
            AccessRefused: the token is not valid.
        """
        config = self.config
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if algorithm not in config.algorithms:
                raise AccessRefused("signed by an algorithm that is not accepted")
            key = await self.keys.key(key_id, str(algorithm))
            claims: Claims = jwt.decode(
                token,
                key,
                algorithms=[str(algorithm)],
                audience=list(audience),
                issuer=config.issuer,
                leeway=config.leeway,
                options={"require": list(_NEEDED)},
            )
        except _UNREADABLE as error:
            raise AccessRefused(f"a token of {config.issuer} is refused: {error}") from error
        return claims


def _is_from(issuer: str, token: str) -> bool:
    """Return True if a token names this issuer. This verifies nothing yet."""
    try:
        return bool(jwt.decode(token, options=_UNCHECKED).get("iss") == issuer)  # type: ignore[arg-type]
    except _UNREADABLE:
        return False


def identity_of(config: JwtConfig, claims: Claims) -> Identity | None:
    """Return the identity that the rules give to verified claims; None if no rule matches."""
    subject, groups = str(claims["sub"]), groups_of(config, claims)
    fitting = [rule for rule in config.rules if fits(rule.subject, subject) and fits(rule.group, *groups)]
    user = claims.get(config.user_claim) if config.user_claim is not None else None
    return identified(subject, fitting, user if isinstance(user, str) else None)


def groups_of(config: JwtConfig, claims: Claims) -> Sequence[str]:
    """Return the groups in a claim: a list, or one text. Other forms name no group."""
    found: list[str] = []
    for claim in config.group_claims:
        value = claims.get(claim)
        items: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]
        found += [group for group in items if isinstance(group, str)]
    return found


def is_lacking(config: JwtConfig, claims: Claims) -> bool:
    """Return True if the claims lack groups or the user's name, and rules or roles may need them."""
    no_groups = not any(claim in claims for claim in config.group_claims)
    return no_groups or (config.user_claim is not None and config.user_claim not in claims)
