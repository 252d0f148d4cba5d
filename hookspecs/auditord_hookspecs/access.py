"""Authentication: the contract between authenticators, which identify callers, and the host, which authorises them.

An authenticator returns a caller's name and the names of roles. The host's configuration (``access.roles``) defines the
rights of roles, independently of authenticators.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from auditord_hookspecs.checks import Finding
from auditord_hookspecs.config import InstanceConfig
from auditord_hookspecs.contexts import Context
from auditord_hookspecs.errors import AuditordError

A = TypeVar("A", bound=InstanceConfig)


class Certificate(msgspec.Struct, frozen=True):
    """A verified client certificate: the client has its key, and the listener's ``client_ca`` signed it.

    Args:
        common_names: the common names of the subject, in the certificate's order.
        subject: the distinguished name in the form of RFC 4514: ``CN=ce.example.org,O=Example,C=DE``.
        grid_subject: the same in the form of grid tools: ``/C=DE/O=Example/CN=ce.example.org``.
        alternative_names: DNS names, mail addresses and URIs.
    """

    common_names: tuple[str, ...]
    subject: str
    grid_subject: str
    alternative_names: tuple[str, ...] = ()


class UnixPeer(msgspec.Struct, frozen=True):
    """The process at the other end of a unix socket, as reported by the kernel at connection time.

    Args:
        uid: the effective user.
        gid: the effective group.
        groups: the supplementary groups.
    """

    uid: int
    gid: int
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a request.

    With a token, neither certificate nor peer is set. So a wrong token is refused even if the certificate or peer would
    be accepted.

    Args:
        address: the IP address of the other end of the connection; None on unix sockets. Headers do not change it.
        certificate: the client's certificate, on a TLS listener with ``client_ca``.
        token: the bearer token, without the word ``Bearer``; never log it.
        peer: the peer on a unix socket.
        claims: the claims that a :class:`Login` of this authenticator verified when the session began. With claims,
            all other credentials are empty.
    """

    address: str | None = None
    certificate: Certificate | None = None
    token: str | None = field(default=None, repr=False)
    peer: UnixPeer | None = None
    claims: Mapping[str, Any] | None = field(default=None, repr=False)  # Any: JSON


class Identity(msgspec.Struct, frozen=True):
    """An authenticated caller.

    Args:
        name: a stable name, unique within the authenticator.
        roles: names from ``access.roles``.
        user: the caller's user name in records, for roles with ``rows: {user_id: [self]}``. None if it is unknown, or
            if the caller could choose it.
    """

    name: str
    roles: tuple[str, ...]
    user: str | None = None


class AccessRefused(AuditordError):
    """Credentials of this authenticator's form are invalid: expired, revoked or badly signed.

    The text goes into the audit log and never to the client. It must not quote the credentials.

    Remedy:
        use other credentials. `auditord token list` shows expired tokens; the log auditord.audit shows refused callers
        and the reasons.
    """


Authenticate: TypeAlias = Callable[[Credentials], Awaitable[Identity | None]]
"""A function that returns the caller's identity, or None if the credentials are not of this authenticator's form. May
raise :class:`AccessRefused`; any other exception refuses the request and is logged. It is called for every request, so
keep slow resources between calls."""


@dataclass(frozen=True, slots=True)
class LoginStart:
    """The beginning of a login.

    Args:
        url: the issuer's login page, to which the host redirects the browser.
        kept: secrets that the host stores in this browser (in a cookie) until it returns.
    """

    url: str
    kept: Mapping[str, str] = field(repr=False)


class LoginUnavailable(AuditordError):
    """The login server does not answer. The text goes into the log.

    Remedy:
        check the issuer's URL and the log. Meanwhile, tokens and certificates still work.
    """


@runtime_checkable
class Login(Protocol):
    """An authenticator with a login for browsers. A kind's ``open`` may yield one, which must also be callable."""

    @property
    def title(self) -> str:
        """The name of the login server."""
        ...

    async def start(self, callback: str) -> LoginStart:
        """Begin a login; the server sends the browser back to ``callback``.

        Raises:
            LoginUnavailable: the server does not answer.
        """
        ...

    async def finish(self, callback: str, kept: Mapping[str, str], answer: Mapping[str, str]) -> Mapping[str, object]:
        """Verify the query with which the browser returns; return the few claims to keep in the session's cookie.

        Raises:
            AccessRefused: the claims cannot be verified, or match no rule.
            LoginUnavailable: the server does not answer.
        """
        ...

    async def logout(self, back: str) -> str | None:
        """Return the URL where the server ends its session and redirects to ``back``; None if it has no such URL."""
        ...


class AuthenticatorContext(Context, Protocol):
    """The context of an authenticator."""

    @property
    def state_dir(self) -> Path:
        """The daemon's folder, for the authenticator's own files."""
        ...


class AuthenticatorKind(msgspec.Struct, Generic[A], frozen=True):
    """A kind of authenticator.

    As soon as one instance is enabled, unauthenticated callers are refused everywhere except at ``/health_check``.

    Args:
        name: the value of ``kind:`` in the configuration.
        config: the model of an instance's section.
        open: opens an instance; its context manager is exited when the daemon stops.
        roles: returns the role names in an instance's section. The daemon does not start if one is unknown.
        names_users: returns whether an instance sets ``Identity.user``. If not, a role with ``self`` shows no records.
        check: checks what a section refers to, for ``auditord doctor``; see :mod:`auditord_hookspecs.checks`.
    """

    name: str
    config: type[A]
    open: Callable[[A, AuthenticatorContext], AbstractAsyncContextManager[Authenticate]]
    roles: Callable[[A], Iterable[str]]
    names_users: Callable[[A], bool] = lambda _config: False
    check: Callable[[Any, AuthenticatorContext], AsyncIterator[Finding]] | None = None  # Any: as in Check
