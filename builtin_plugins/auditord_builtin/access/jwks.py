"""The public keys of an issuer: fetched, kept, fetched again."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiohttp
import jwt
import msgspec

from auditord_builtin.access.jwt_config import JwtConfig, checked_url
from auditord_hookspecs import AccessRefused

BETWEEN_FETCHES: Final = timedelta(minutes=1)
"""Tokens with keys that nobody knows cost the issuer a request at most so often."""

KEPT: Final = timedelta(days=1)
"""While an issuer is away its keys are trusted for so long; a key that it has taken back no longer."""

_MOST_BYTES: Final = 1 << 20
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
_PUBLIC: Final = frozenset({"RSA", "EC", "OKP"})

Fetch: TypeAlias = Callable[[], Awaitable[Any]]  # Any: JSON
Described: TypeAlias = Mapping[str, Any]
"""A key as JSON (RFC 7517)."""


class _Discovery(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class KeysUnavailable(Exception):
    """The issuer's keys cannot be had; the text says why."""


class KeyRing:
    """The keys of one issuer.

    Args:
        fetch: gets its key set; may raise :class:`KeysUnavailable`.
        refresh: how old the keys may get before they are fetched again.
        now: the present instant.
        log: hears of an issuer that is away.
    """

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
        """Fetch the keys, unless that was tried just now; whoever knows keys does not wait for a slow issuer."""
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


def fetching(config: JwtConfig, session: aiohttp.ClientSession) -> Fetch:
    """How the keys of an issuer are fetched."""
    if config.jwks is not None and config.jwks.startswith("file:"):
        path = Path(config.jwks.removeprefix("file:"))

        async def read() -> Any:  # Any: JSON
            return _read(path)

        return read

    async def fetch() -> Any:  # Any: JSON
        try:
            return await _get(session, config.jwks or await _discovered(session, config.issuer))
        except ValueError as error:
            raise KeysUnavailable(f"{config.issuer}: {error}") from error

    return fetch


async def _discovered(session: aiohttp.ClientSession, issuer: str) -> str:
    """Where the issuer's own description says that its keys are.

    Raises:
        KeysUnavailable: it is another issuer's.
        ValueError: it names no place that can be trusted.
    """
    found = await _get(session, issuer.rstrip("/") + "/.well-known/openid-configuration")
    try:
        document = msgspec.convert(found, type=_Discovery)
    except msgspec.ValidationError as error:
        raise KeysUnavailable(f"the discovery document of {issuer} is none: {error}") from error
    if document.issuer != issuer:
        raise KeysUnavailable(f"the discovery document of {issuer} is another issuer's: compare the option issuer")
    return checked_url(document.jwks_uri)


def _read(path: Path) -> Any:  # Any: JSON
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise KeysUnavailable(f"{path}: {error}") from error


async def _get(session: aiohttp.ClientSession, url: str) -> Any:  # Any: JSON
    try:
        async with session.get(url, allow_redirects=False, timeout=_TIMEOUT) as answer:
            if answer.status != 200:  # noqa: PLR2004 OK
                raise KeysUnavailable(f"{url} answers {answer.status}")
            return msgspec.json.decode(await _body(answer))
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        raise KeysUnavailable(f"{url}: {str(error) or 'no answer in time'}") from error


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    body = b""
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > _MOST_BYTES:
            raise KeysUnavailable(f"{answer.url} answers more than {_MOST_BYTES} bytes")
    return body


def tls_of(config: JwtConfig) -> ssl.SSLContext:
    """How the issuer's server is checked.

    Raises:
        OSError: the file with the authorities cannot be read, or holds none.
    """
    return ssl.create_default_context(cafile=config.ca)
