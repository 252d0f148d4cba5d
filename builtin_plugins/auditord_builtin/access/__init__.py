"""Authenticators: client certificates, bearer tokens, tokens of an issuer, local users, addresses."""

from collections.abc import Iterable
from typing import Any

import click

from auditord_hookspecs import AuthenticatorKind, Deferred, hookimpl


@hookimpl
def auditord_authenticators() -> Iterable[Deferred[AuthenticatorKind[Any]]]:  # Any: of each kind's model
    """Declare the authenticators."""
    yield Deferred("certificates", _certificates)
    yield Deferred("jwt", _jwt)
    yield Deferred("networks", _networks)
    yield Deferred("tokens", _tokens)
    yield Deferred("unix_users", _unix_users)


def _certificates() -> AuthenticatorKind[Any]:
    from auditord_builtin.access import certificates  # noqa: PLC0415 when it is configured

    return certificates.KIND


def _jwt() -> AuthenticatorKind[Any]:
    from auditord_builtin.access import jwt  # noqa: PLC0415 when it is configured

    return jwt.KIND


def _networks() -> AuthenticatorKind[Any]:
    from auditord_builtin.access import networks  # noqa: PLC0415 when it is configured

    return networks.KIND


def _tokens() -> AuthenticatorKind[Any]:
    from auditord_builtin.access import tokens  # noqa: PLC0415 when it is configured

    return tokens.KIND


def _unix_users() -> AuthenticatorKind[Any]:
    from auditord_builtin.access import unix_users  # noqa: PLC0415 when it is configured

    return unix_users.KIND


@hookimpl
def auditord_commands() -> Iterable[Deferred[click.Command]]:
    """Declare ``auditord token``."""
    yield Deferred("token", _command, "Make, list and revoke bearer tokens for the API.")


def _command() -> click.Command:
    from auditord_builtin.access.token_commands import token_command  # noqa: PLC0415 when it is used

    return token_command
