"""Who may do what: the contract between those who recognise callers (authenticators) and the host that lets them in.

An authenticator says *who* somebody is, by a name and the names of roles. What a role may do is the host's
configuration (``access.roles``), so that one place says who reads what, however people prove who they are.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from auditord_hookspecs.config import InstanceConfig
from auditord_hookspecs.contexts import Context
from auditord_hookspecs.errors import AuditordError
from auditord_hookspecs.query import AllOf, AnyOf, Condition, MetaContainsAny
from auditord_hookspecs.records import Record

A = TypeVar("A", bound=InstanceConfig)

SITE_KEYS: Final = ("site_id", "site")
"""The meta keys that name a record's site; what may be written is judged by all of them that a record has."""


class Permission(Enum):
    """What a request needs; each route names one, only ``/health_check`` needs none."""

    READ = "read"
    """Records and sums of them."""
    WRITE = "write"
    """Adding records."""
    UPDATE = "update"
    """Setting the stop time of a record that is there (``PUT /record``)."""
    METRICS = "metrics"
    """``/metrics`` and the daemon's health in detail."""
    OPERATE = "operate"
    """How instances fare, running them, the quarantine with its raw input."""
    ADMINISTER = "administer"
    """Correcting, closing and deleting records, and what they were before."""


OF_RECORDS: Final = frozenset({Permission.READ, Permission.WRITE, Permission.UPDATE})
"""The permissions that can be limited to some records; the others are about the whole daemon."""


@dataclass(frozen=True, slots=True)
class Role:
    """What somebody may do. Limits apply to the permissions of this role alone.

    Args:
        permissions: what for.
        rows: the records that are seen: under each key, one of the values at least. None for every record.
        sites: the only sites whose records are written and updated. None for every site.
        prefixes: what the ids of those records begin with. None for every id.

    Raises:
        ValueError: it is limited to some records and yet may do what is about the whole daemon.
    """

    permissions: frozenset[Permission]
    rows: Mapping[str, tuple[str, ...]] | None = None
    sites: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        beyond = sorted(each.value for each in self.permissions - OF_RECORDS)
        if beyond and self.is_limited:
            raise ValueError(
                f"{', '.join(beyond)}: this is about the whole daemon, and rows, sites and prefixes cannot limit it"
            )

    @property
    def is_limited(self) -> bool:
        """Whether it is for some records only."""
        return not (self.rows is None and self.sites is None and self.prefixes is None)

    def visible(self) -> Condition:
        """What is true of the records that it shows."""
        return AllOf(tuple(MetaContainsAny(key, values) for key, values in (self.rows or {}).items()))

    def shows(self, record: Record) -> bool:
        """The same for one record that is at hand."""
        meta = record.meta or {}
        return all(not set(values).isdisjoint(meta.get(key, ())) for key, values in (self.rows or {}).items())

    def may_write(self, record: Record) -> bool:
        """Whether a record of this id and these sites may be written; one that names no site may not if sites count."""
        return self.may_write_id(record.record_id) and (self.sites is None or _sites(record) <= set(self.sites))

    def may_write_id(self, record_id: str) -> bool:
        """Whether a record of this id may be written, as far as the id tells."""
        return self.prefixes is None or record_id.startswith(self.prefixes)


def _sites(record: Record) -> set[str | None]:
    """Every site that a record names, under whatever key; None stands for no site at all."""
    named = {site for key in SITE_KEYS for site in (record.meta or {}).get(key, ())}
    return {*named} or {None}


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who was recognised. Of several roles each counts for itself: what one of them allows is allowed.

    Args:
        name: ``<authenticator>:<name>``; what provenance and the audit log say.
        roles: what they may do.
    """

    name: str
    roles: tuple[Role, ...]

    def having(self, permission: Permission) -> tuple[Role, ...]:
        """The roles that have a permission."""
        return tuple(role for role in self.roles if permission in role.permissions)

    def may(self, permission: Permission) -> bool:
        """Whether any role has the permission."""
        return bool(self.having(permission))

    def visible(self) -> Condition | None:
        """What is true of the records that may be read; None if all of them may."""
        reading = self.having(Permission.READ)
        if any(role.rows is None for role in reading):
            return None
        return reading[0].visible() if len(reading) == 1 else AnyOf(tuple(role.visible() for role in reading))


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate that a client proved to own, by one of the authorities that the listener trusts.

    Args:
        common_names: of the subject, in the order of the certificate.
        subject: the distinguished name as RFC 4514 writes it: ``CN=ce.example.org,O=Example,C=DE``.
        grid_subject: the same as grid tools write it: ``/C=DE/O=Example/CN=ce.example.org``.
        alternative_names: DNS names, mail addresses and URIs, as they are.
    """

    common_names: tuple[str, ...]
    subject: str
    grid_subject: str
    alternative_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnixPeer:
    """The process at the other end of a unix socket, as the kernel saw it connect.

    Args:
        uid: the effective user.
        gid: the effective group.
        groups: the other groups.
    """

    uid: int
    gid: int
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request shows of whoever sent it.

    A token is said on purpose and so counts alone: where there is one, neither certificate nor peer is shown, and who
    sends a wrong token is refused whatever else would have let them in.

    Args:
        address: the IP address of the other end of the connection; None on unix sockets. Headers say nothing here.
        certificate: of the client, on a TLS connection that asked for one.
        token: the bearer token, without the word ``Bearer``; never log it.
        peer: on a unix socket.
    """

    address: str | None = None
    certificate: Certificate | None = None
    token: str | None = field(default=None, repr=False)
    peer: UnixPeer | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is.

    Args:
        name: unique within the authenticator, and the same tomorrow.
        roles: names from ``access.roles``.
    """

    name: str
    roles: tuple[str, ...]


class AccessRefused(AuditordError):
    """Credentials of a form that this authenticator knows are wrong: expired, revoked, badly signed.

    The text goes into the audit log and never to the client; it must not quote the credentials.
    """


Authenticate: TypeAlias = Callable[[Credentials], Awaitable[Identity | None]]
"""Who that is; None if these credentials are not of this authenticator's form. May raise :class:`AccessRefused`. It is
called for every request, so it keeps what takes time; any other exception refuses the request and is logged."""


class AuthenticatorContext(Context, Protocol):
    """What an authenticator is lent."""

    @property
    def state_dir(self) -> Path:
        """The daemon's folder, for files of the authenticator's own."""
        ...


@dataclass(frozen=True)  # no slots: AuthenticatorKind[Config](…) would raise TypeError
class AuthenticatorKind(Generic[A]):
    """A kind of proof of who somebody is.

    As soon as one instance is enabled, everything but ``/health_check`` is refused to whoever is not recognised.

    Args:
        name: what ``kind:`` says in the configuration.
        config: the model of an instance's section.
        open: opens an instance; left when the daemon ends.
        roles: every role that an instance's section names, so that one that does not exist stops the start.
    """

    name: str
    config: type[A]
    open: Callable[[A, AuthenticatorContext], AbstractAsyncContextManager[Authenticate]]
    roles: Callable[[A], Iterable[str]]
