"""Authenticators: client certificates, bearer tokens, an issuer's tokens, local users, addresses."""

from collections.abc import Iterable
from typing import Any

import click

from auditord_hookspecs import AuthenticatorKind, Deferred, hookimpl


@hookimpl
def auditord_authenticators() -> Iterable[Deferred[AuthenticatorKind[Any]]]:  # Any: of each kind's model
    yield Deferred.at("certificates", "auditord_builtin.access.connections:CERTIFICATES")
    yield Deferred.at("jwt", "auditord_builtin.access.jwt:KIND")
    yield Deferred.at("networks", "auditord_builtin.access.connections:NETWORKS")
    yield Deferred.at("tokens", "auditord_builtin.access.tokens:KIND")
    yield Deferred.at("unix_users", "auditord_builtin.access.connections:UNIX_USERS")


@hookimpl
def auditord_commands() -> Iterable[Deferred[click.Command]]:
    """Declare ``auditord token``."""
    yield Deferred.at(
        "token",
        "auditord_builtin.access.tokens:token_command",
        "Make, list and revoke bearer tokens for the API.",
    )
