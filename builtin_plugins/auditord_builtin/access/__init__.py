"""Authenticators: client certificates, bearer tokens, tokens of an issuer, local users, addresses."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import click

from auditord_builtin.access import certificates, networks, tokens, unix_users
from auditord_builtin.access.jwt_config import JwtConfig
from auditord_builtin.access.rules import named_roles
from auditord_builtin.access.token_commands import token_command
from auditord_hookspecs import Authenticate, AuthenticatorContext, AuthenticatorKind, hookimpl


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


@hookimpl
def auditord_authenticators() -> Iterable[AuthenticatorKind[Any]]:  # Any: each kind has its own configuration model
    """Declare the authenticators."""
    yield certificates.KIND
    yield AuthenticatorKind(
        "jwt",
        JwtConfig,
        open_jwt,
        roles=lambda config: named_roles(config.rules),
        names_users=lambda config: config.user_claim is not None,
    )
    yield networks.KIND
    yield tokens.KIND
    yield unix_users.KIND


@hookimpl
def auditord_commands() -> Iterable[click.Command]:
    """Declare ``auditord token``."""
    yield token_command
