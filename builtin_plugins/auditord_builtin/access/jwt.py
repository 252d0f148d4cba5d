"""Tokens of an OpenID Connect issuer; checking them needs the extra ``jwt``."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from auditord_builtin.access.jwt_config import JwtConfig
from auditord_builtin.access.rules import named_roles
from auditord_hookspecs import Authenticate, AuthenticatorContext, AuthenticatorKind


@asynccontextmanager
async def open_jwt(config: JwtConfig, context: AuthenticatorContext) -> AsyncGenerator[Authenticate, None]:
    """Open the issuer; it is asked when the first token or person comes, so that the daemon starts without it.

    Raises:
        ValueError: PyJWT is not installed, or the file with the authorities cannot be read.
    """
    try:
        from auditord_builtin.access.jwt_checking import opened_issuer  # noqa: PLC0415 an extra
    except ImportError as error:
        raise ValueError(f"it needs pip install 'auditord[jwt]' ({error})") from error
    async with opened_issuer(config, context) as (issuer, http):
        if config.login is None:
            yield issuer
        else:
            from auditord_builtin.access import oidc  # noqa: PLC0415 only where people log in

            yield oidc.IssuerLogin(issuer, config.login, http, oidc.Description(config, http, context.now))


KIND: Final = AuthenticatorKind(
    "jwt",
    JwtConfig,
    open_jwt,
    roles=lambda config: named_roles(config.rules),
    names_users=lambda config: config.user_claim is not None,
)
