"""Who is who: client certificates, bearer tokens, tokens of an issuer, local users, addresses."""

from collections.abc import Iterable
from typing import Any

import click

from auditord_builtin.access import certificates, jwt_config, networks, tokens, unix_users
from auditord_builtin.access.token_commands import token_command
from auditord_hookspecs import AuthenticatorKind, hookimpl


@hookimpl
def auditord_authenticators() -> Iterable[AuthenticatorKind[Any]]:  # Any: each kind has its own configuration model
    """Bring the authenticators."""
    yield certificates.KIND
    yield jwt_config.KIND
    yield networks.KIND
    yield tokens.KIND
    yield unix_users.KIND


@hookimpl
def auditord_commands() -> Iterable[click.Command]:
    """Bring the command."""
    yield token_command
