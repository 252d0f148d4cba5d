"""Secrets that the configuration refers to, read when it is loaded and again for each new login."""

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from pydantic import SecretStr
from typing_extensions import override

from auditord.errors import ConfigurationError

ResolveSecret: TypeAlias = Callable[[str], SecretStr | None]

_log: Final = logging.getLogger(__name__)


class ReferencedSecret(SecretStr):
    """A secret that is stored elsewhere and may be rotated there.

    Args:
        read: reads the secret again; raises ValueError on failure.
    """

    def __init__(self, value: str, read: Callable[[], str]) -> None:
        super().__init__(value)
        self._read = read

    def latest(self) -> str:
        """Read and return the current secret, or return the previous one if that fails."""
        try:
            self._secret_value = self._read()
        except ValueError as error:
            _log.warning("cannot read a secret again, so its previous value stays in use: %s", error)
        return self._secret_value


class HiddenText(str):
    """A revealed secret, for a library that needs a text. Printed inside a dictionary or a list, it shows as dots."""

    __slots__ = ()

    @override
    def __repr__(self) -> str:
        return "'…'"


class UnreadSecret(SecretStr):
    """A secret that could not be read, in a command that may not need it.

    Args:
        reason: why it could not be read, without the secret.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("*" * 64)  # long enough for any check of its length
        self._reason = reason

    def get_secret_value(self) -> str:
        """Raise ConfigurationError, because the secret is needed."""
        raise ConfigurationError(f"this needs a secret that cannot be read: {self._reason}")


def keep_references(resolve: ResolveSecret) -> ResolveSecret:
    """Wrap a resolver so that its secrets can be read again."""

    def resolve_again(reference: str) -> SecretStr | None:
        found = resolve(reference)
        if found is None or isinstance(found, UnreadSecret):
            return found

        def read() -> str:
            again = resolve(reference)
            return found.get_secret_value() if again is None else again.get_secret_value()

        return ReferencedSecret(found.get_secret_value(), read)

    return resolve_again


def read_when_used(resolve: ResolveSecret, unread: Callable[[str], bool]) -> ResolveSecret:
    """Wrap a resolver so that an unreadable secret is a fault only when it is used.

    Args:
        resolve: reads a secret.
        unread: called with the reason why a secret could not be read; returns whether to continue without it.
    """

    def resolve_or_wait(reference: str) -> SecretStr | None:
        try:
            return resolve(reference)
        except ValueError as error:
            if not unread(f"{error}"):
                raise
            return UnreadSecret(str(error))

    return resolve_or_wait


def latest(secret: SecretStr) -> str:
    """Return the value of a secret; a referenced one is read again."""
    return secret.latest() if isinstance(secret, ReferencedSecret) else secret.get_secret_value()
