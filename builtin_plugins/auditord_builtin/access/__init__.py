"""Who is who: client certificates, local users, addresses."""

from collections.abc import Iterable
from typing import Any

from auditord_builtin.access import certificates, networks, unix_users
from auditord_hookspecs import AuthenticatorKind, hookimpl


@hookimpl
def auditord_authenticators() -> Iterable[AuthenticatorKind[Any]]:  # Any: each kind has its own configuration model
    """Bring the authenticators."""
    yield certificates.KIND
    yield networks.KIND
    yield unix_users.KIND
