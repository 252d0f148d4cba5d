"""The check of access tokens, which PyJWT makes; needs auditord[jwt]."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import jwt

from auditord_builtin.access.jwks import KeyRing, http_options, key_set
from auditord_builtin.access.jwt_config import JwtConfig
from auditord_builtin.access.rules import fits, identified
from auditord_hookspecs import AccessRefused, AuditordError, AuthenticatorContext, Credentials, Identity
from auditord_hookspecs.http import HttpClient

Claims = Mapping[str, Any]  # Any: JSON

_NEEDED: Final = ("exp", "iss", "aud", "sub")
_UNREADABLE: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""PyJWT's own, and those of what it calls: a deep nest of brackets, a time beyond all numbers."""

_UNCHECKED: Final[dict[str, Any]] = {"verify_signature": False}


@asynccontextmanager
async def opened_issuer(
    config: JwtConfig, context: AuthenticatorContext
) -> AsyncGenerator[tuple["Issuer", HttpClient], None]:
    """Recognise the tokens of an issuer; yields the client to ask it with as well.

    Raises:
        ValueError: the file with the authorities cannot be read.
    """
    async with AsyncExitStack() as stack:
        try:
            http = await stack.enter_async_context(context.http(http_options(config)))
        except AuditordError as error:
            raise ValueError(str(error)) from error
        yield Issuer(config, KeyRing(lambda: key_set(config, http), config.refresh, context.now, context.log)), http


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer whose tokens are recognised."""

    config: JwtConfig
    keys: KeyRing

    async def __call__(self, credentials: Credentials) -> Identity | None:
        """The identity behind a token, or behind claims that were proved when a session began."""
        if credentials.claims is not None:
            return identity_of(self.config, credentials.claims)
        if credentials.token is None or not _is_from(self.config.issuer, credentials.token):
            return None
        return identity_of(self.config, await self.checked(credentials.token, self.config.audience))

    async def checked(self, token: str, audience: Sequence[str]) -> Claims:
        """The claims of a token, verified.

        Raises:
            AccessRefused: it is not to be believed.
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
    """True if a token says of itself that it is from this issuer; nothing is proved yet."""
    try:
        return bool(jwt.decode(token, options=_UNCHECKED).get("iss") == issuer)  # type: ignore[arg-type]
    except _UNREADABLE:
        return False


def identity_of(config: JwtConfig, claims: Claims) -> Identity | None:
    """The identity that the rules give to claims that are proved; None if none is about them."""
    subject, groups = str(claims["sub"]), groups_of(config, claims)
    fitting = [rule for rule in config.rules if fits(rule.subject, subject) and fits(rule.group, *groups)]
    user = claims.get(config.user_claim) if config.user_claim is not None else None
    return identified(subject, fitting, user if isinstance(user, str) else None)


def groups_of(config: JwtConfig, claims: Claims) -> Sequence[str]:
    """Every group that the token lists, or names alone; claims of any other form name none."""
    found: list[str] = []
    for claim in config.group_claims:
        value = claims.get(claim)
        items: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]
        found += [group for group in items if isinstance(group, str)]
    return found


def is_lacking(config: JwtConfig, claims: Claims) -> bool:
    """Tell if claims say neither groups, nor the user's name, that rules or roles may need."""
    no_groups = not any(claim in claims for claim in config.group_claims)
    return no_groups or (config.user_claim is not None and config.user_claim not in claims)
