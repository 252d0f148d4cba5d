"""Authenticators: client certificates, bearer tokens, tokens of an issuer, local users, addresses."""

from collections.abc import Iterable
from functools import partial
from pkgutil import resolve_name
from typing import Any

import click

from auditord_hookspecs import AuthenticatorKind, Deferred, hookimpl


@hookimpl
def auditord_authenticators() -> Iterable[Deferred[AuthenticatorKind[Any]]]:  # Any: of each kind's model
    """Declare the authenticators."""
    yield Deferred("certificates", partial(resolve_name, "auditord_builtin.access.connections:CERTIFICATES"))
    yield Deferred("jwt", partial(resolve_name, "auditord_builtin.access.jwt:KIND"))
    yield Deferred("networks", partial(resolve_name, "auditord_builtin.access.connections:NETWORKS"))
    yield Deferred("tokens", partial(resolve_name, "auditord_builtin.access.tokens:KIND"))
    yield Deferred("unix_users", partial(resolve_name, "auditord_builtin.access.connections:UNIX_USERS"))


@hookimpl
def auditord_commands() -> Iterable[Deferred[click.Command]]:
    """Declare ``auditord token``."""
    yield Deferred(
        "token",
        partial(resolve_name, "auditord_builtin.access.tokens:token_command"),
        "Make, list and revoke bearer tokens for the API.",
    )
