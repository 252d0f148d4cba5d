"""The authenticators ``certificates``, ``networks`` and ``unix_users``, and the rules that all authenticators share."""

import grp
import pwd
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Annotated, Literal

from anyio import to_thread
from pydantic import Field, model_validator

from auditord_hookspecs import Context, Identity, InstanceConfig, Section, access
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.wording import counted

Pattern = Annotated[str, Field(min_length=1)]
"""A literal text in which ``*`` stands for anything.

It is not a regular expression, in which the dots of ``ce.example.org`` would match other hosts.
"""


class Rule(Section):
    """Gives roles to matching callers. All matching rules apply."""

    roles: tuple[str, ...] = Field(min_length=1, description="Names of roles, as in access.roles.")


def list_roles(rules: Iterable[Rule]) -> Iterable[str]:
    return [role for rule in rules for role in rule.roles]


def identify(name: str, fitting: Sequence[Rule], user: str | None = None) -> Identity | None:
    """Return the identity with the roles of all matching rules; None if no rule matches."""
    return Identity(name, tuple(dict.fromkeys(list_roles(fitting))), user) if fitting else None


def fits(pattern: str | None, *texts: str) -> bool:
    """Return True if any text matches the whole pattern, or if there is no pattern. Case matters."""
    return pattern is None or any(_compile(pattern).fullmatch(text) for text in texts)


@lru_cache(maxsize=4_096)  # one entry per configured pattern; callers' texts are never compiled
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", pattern))), re.DOTALL)


class CertificateRule(Rule):
    """Selects certificates that match all given patterns; ``*`` stands for anything."""

    common_name: Pattern | None = Field(default=None, description="A common name (CN) of the subject.")
    subject: Pattern | None = Field(
        default=None, description="The whole subject: CN=x,O=y as in RFC 4514, or /O=y/CN=x as grid tools write it."
    )
    alternative_name: Pattern | None = Field(
        default=None, description="A DNS name, mail address or URI among the subject's alternative names."
    )

    @model_validator(mode="after")
    def _has_a_pattern(self) -> "CertificateRule":
        if self.common_name is None and self.subject is None and self.alternative_name is None:
            raise ValueError("give common_name, subject or alternative_name; '*' matches every certificate")
        return self

    def fits(self, certificate: access.Certificate) -> bool:
        """Return True if all patterns match the certificate."""
        return (
            fits(self.common_name, *certificate.common_names)
            and fits(self.subject, certificate.subject, certificate.grid_subject)
            and fits(self.alternative_name, *certificate.alternative_names)
        )


class CertificatesConfig(InstanceConfig):
    """Client certificates, which a TLS listener must request."""

    rules: tuple[CertificateRule, ...] = Field(min_length=1, description="The roles of certificates.")
    user: Literal["common_name", "subject", "grid_subject"] | None = Field(
        default=None,
        description="The part of the certificate that is the user's name in records, for roles with rows of self: "
        "common_name (if there is only one), subject as in RFC 4514, or grid_subject.",
    )

    def user_of(self, certificate: access.Certificate) -> str | None:
        """Return the user's name in records; None without the option, or if there is not exactly one common name."""
        match self.user:
            case None:
                return None
            case "common_name":
                return certificate.common_names[0] if len(certificate.common_names) == 1 else None
            case "subject":
                return certificate.subject
            case "grid_subject":
                return certificate.grid_subject


def open_certificates(
    config: CertificatesConfig, context: access.AuthenticatorContext
) -> AbstractAsyncContextManager[access.Authenticate]:
    """Open the authenticator. TLS has verified the certificate's signature, and that the client owns its key."""
    del context

    async def authenticate(credentials: access.Credentials) -> access.Identity | None:
        certificate = credentials.certificate
        if certificate is None:
            return None
        fitting = [rule for rule in config.rules if rule.fits(certificate)]
        return identify(certificate.subject, fitting, config.user_of(certificate))

    return nullcontext(authenticate)


CERTIFICATES = access.AuthenticatorKind(
    name="certificates",
    config=CertificatesConfig,
    open=open_certificates,
    roles=lambda config: list_roles(config.rules),
    names_users=lambda config: config.user is not None,
)


class NetworkRule(Rule):
    """Selects all callers from a network."""

    network: IPv4Network | IPv6Network = Field(
        description="An address or network, such as 127.0.0.0/8, ::1/128 or 192.0.2.7."
    )


class NetworksConfig(InstanceConfig):
    """Trusted addresses. Every user of such a host is accepted, and so is anybody who can use its address."""

    rules: tuple[NetworkRule, ...] = Field(min_length=1, description="The roles of networks.")


def open_networks(
    config: NetworksConfig, context: access.AuthenticatorContext
) -> AbstractAsyncContextManager[access.Authenticate]:
    """Open the authenticator. Behind a proxy of ``api.proxies``, the address is that of the proxy's client."""
    del context

    async def authenticate(credentials: access.Credentials) -> access.Identity | None:
        if credentials.address is None or credentials.token is not None:
            return None
        address = ip_address(credentials.address)
        return identify(str(address), [rule for rule in config.rules if address in rule.network])

    return nullcontext(authenticate)


async def check_networks(config: NetworksConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Report how many addresses each rule accepts. Warn if a rule accepts all."""
    del context
    for rule in config.rules:
        roles = ", ".join(rule.roles)
        if rule.network.prefixlen == 0:
            text = f"any client that reaches this daemon has the roles {roles}"
            yield Finding(Severity.WARNING, str(rule.network), text, "list only the networks of hosts that need this")
        else:
            text = f"{counted(rule.network.num_addresses, 'address', 'addresses')} with the roles {roles}"
            yield Finding(Severity.OK, str(rule.network), text)


NETWORKS = access.AuthenticatorKind(
    name="networks",
    config=NetworksConfig,
    open=open_networks,
    roles=lambda config: list_roles(config.rules),
    check=check_networks,
)


class UnixRule(Rule):
    """Selects a user, or all members of a group."""

    user: Pattern | None = Field(default=None, description="A user's name or number.")
    group: Pattern | None = Field(default=None, description="A group's name or number.")

    @model_validator(mode="after")
    def _has_user_or_group(self) -> "UnixRule":
        if (self.user is None) == (self.group is None):
            raise ValueError("give either user or group")
        return self


class UnixUsersConfig(InstanceConfig):
    """Local users, on listeners unix:/path."""

    rules: tuple[UnixRule, ...] = Field(min_length=1, description="The roles of users and groups.")


def _uid(name: str) -> int:
    """Return a user's number.

    Raises:
        ValueError: the user does not exist.
    """
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise ValueError(f"this host has no user '{name}'") from error


def _gid(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise ValueError(f"this host has no group '{name}'") from error


def open_unix_users(
    config: UnixUsersConfig, context: access.AuthenticatorContext
) -> AbstractAsyncContextManager[access.Authenticate]:
    """Open the authenticator. Names in rules are looked up once, since a lookup over the network can take seconds.

    Raises:
        ValueError: a user or a group does not exist.
    """
    del context
    users = {rule.user: _uid(rule.user) for rule in config.rules if rule.user}
    groups = {rule.group: _gid(rule.group) for rule in config.rules if rule.group}
    names = {uid: name for name, uid in users.items()}

    async def authenticate(credentials: access.Credentials) -> access.Identity | None:
        peer = credentials.peer
        if peer is None:
            return None
        numbers = {peer.gid, *peer.groups}
        fitting = [
            rule
            for rule in config.rules
            if (users[rule.user] == peer.uid if rule.user else groups[rule.group or ""] in numbers)
        ]
        if not fitting:
            return None
        known = names.get(peer.uid, str(peer.uid))
        user = await to_thread.run_sync(_user_name, peer.uid) if known.isdecimal() else known
        return identify(known, fitting, user)

    return nullcontext(authenticate)


def _user_name(uid: int) -> str | None:
    """Return the current name of a user id. It is not cached, since a reused id must not see the old owner's rows."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


async def check_unix_users(config: UnixUsersConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Look up every configured user and group."""
    del context
    for rule in config.rules:
        subject = f"user {rule.user}" if rule.user else f"group {rule.group}"
        try:
            number = _uid(rule.user) if rule.user else _gid(rule.group or "")
        except ValueError as error:
            remedy = "the daemon will not start: create it, or change the rule; getent lists users and groups"
            yield Finding(Severity.FAILURE, subject, str(error), remedy)
        else:
            yield Finding(Severity.OK, subject, f"number {number}")


UNIX_USERS = access.AuthenticatorKind(
    name="unix_users",
    config=UnixUsersConfig,
    open=open_unix_users,
    roles=lambda config: list_roles(config.rules),
    names_users=lambda _: True,
    check=check_unix_users,
)
