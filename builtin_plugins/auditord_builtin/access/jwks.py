"""The public keys of an issuer: fetched, kept, fetched again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import jwt
import msgspec

from auditord_builtin.access.jwt_config import JwtConfig, checked_url
from auditord_hookspecs import AccessRefused
from auditord_hookspecs.http import HttpClient, HttpError, HttpOptions
from auditord_hookspecs.sources import TlsFiles

BETWEEN_FETCHES: Final = timedelta(minutes=1)
"""Tokens with unknown keys cost the issuer a request at most so often."""

KEPT: Final = timedelta(days=1)
"""While an issuer is away its keys are trusted for so long; a key that it has taken back no longer."""

_PUBLIC: Final = frozenset({"RSA", "EC", "OKP"})

Fetch: TypeAlias = Callable[[], Awaitable[Any]]  # Any: JSON
Described: TypeAlias = Mapping[str, Any]
"""A key as JSON (RFC 7517)."""


class Discovery(msgspec.Struct, frozen=True):
    """An issuer's description of itself (OpenID Connect Discovery 1.0, section 3), as far as it is needed."""

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
    """The issuer's keys cannot be had; the text says why."""


class KeyRing:
    """The keys of one issuer, fetched again once they are as old as ``refresh``."""

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
        """The key of this id for signatures of this algorithm; without an id, the only one.

        Raises:
            AccessRefused: there is none, or it is for something else.
        """
        if self._is_old(self._refresh) or (key_id is not None and key_id not in self._keys):
            await self._renew()
        if self._is_old(KEPT):
            raise AccessRefused("the keys of the issuer cannot be had")
        described = self._keys.get(key_id) if key_id is not None else self._only()
        if described is None or described.get("alg", algorithm) != algorithm:
            raise AccessRefused("signed with a key that is none of the issuer's for this algorithm")
        return jwt.PyJWK(dict(described), algorithm)  # refuses a key of another kind than the algorithm's

    def _only(self) -> Described | None:
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    def _is_old(self, age: timedelta) -> bool:
        return self._fetched is None or self._now() - self._fetched >= age

    async def _renew(self) -> None:
        """Fetch the keys, unless that was tried just now; where keys are known no request waits for a slow issuer."""
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
                    "the keys of the issuer cannot be had, those that are known stay for a day: %s", error
                )


def public_keys(document: Any) -> Mapping[str | None, Described]:  # Any: JSON
    """The keys of a key set that verify signatures, by id; shared keys are left out.

    Raises:
        KeysUnavailable: it is no key set.
    """
    try:
        listed = msgspec.convert(document, type=_KeySet).keys
    except msgspec.ValidationError as error:
        raise KeysUnavailable(f"what was fetched is no key set: {error}") from error
    usable = [each for each in listed if each.get("kty") in _PUBLIC and each.get("use", "sig") == "sig"]
    return {each.get("kid"): each for each in usable if isinstance(each.get("kid"), str | None)}


def http_options(config: JwtConfig) -> HttpOptions:
    """The options of connections to the issuer's server: a request waits for the answer, so there is one attempt."""
    return HttpOptions(tls=TlsFiles(ca=config.ca), timeout=timedelta(seconds=10), max_answer=1 << 20, attempts=1)


async def key_set(config: JwtConfig, http: HttpClient) -> Any:  # Any: JSON
    """Fetch the key set of an issuer.

    Raises:
        KeysUnavailable: it cannot be had.
    """
    if config.jwks is not None and config.jwks.startswith("file:"):
        return _read(Path(config.jwks.removeprefix("file:")))
    return await _get(http, config.jwks or (await discovered(http, config.issuer)).jwks_uri)


async def discovered(http: HttpClient, issuer: str) -> Discovery:
    """Fetch the issuer's own description.

    Raises:
        KeysUnavailable: it cannot be had, is another issuer's, or names no address of keys that can be trusted.
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
