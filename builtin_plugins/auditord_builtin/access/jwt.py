"""Tokens of an OpenID Connect issuer; checking them needs the extra ``jwt``."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from auditord_builtin.access.jwt_config import JwtConfig
from auditord_builtin.access.rules import named_roles
from auditord_hookspecs import Authenticate, AuthenticatorContext, AuthenticatorKind


@asynccontextmanager
async def open_jwt(config: JwtConfig, context: AuthenticatorContext) -> AsyncGenerator[Authenticate, None]:
    """Open the issuer; its keys are fetched when the first token comes, so that the daemon starts without it.

    Raises:
        ValueError: PyJWT is not installed, or the file with the authorities cannot be read.
    """
    try:
        from auditord_builtin.access.jwt_checking import checking  # noqa: PLC0415 an extra
    except ImportError as error:
        raise ValueError(f"it needs pip install 'auditord[jwt]' ({error})") from error
    async with checking(config, context) as authenticate:
        yield authenticate


KIND: Final = AuthenticatorKind(
    "jwt",
    JwtConfig,
    open_jwt,
    roles=lambda config: named_roles(config.rules),
    names_users=lambda config: config.user_claim is not None,
)
