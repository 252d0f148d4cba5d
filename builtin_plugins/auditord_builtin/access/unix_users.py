"""Authenticator ``unix_users``: the user at the other end of a unix socket, as the kernel says."""

import grp
import pwd
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from anyio import to_thread
from pydantic import Field, model_validator

from auditord_builtin.access.rules import Pattern, Rule, identified, named_roles
from auditord_hookspecs import Context, InstanceConfig, access
from auditord_hookspecs.checks import Finding, Severity


class UnixRule(Rule):
    """A user, or everybody in a group."""

    user: Pattern | None = Field(default=None, description="A user's name or number.")
    group: Pattern | None = Field(default=None, description="A group's name or number.")

    @model_validator(mode="after")
    def _says_one(self) -> "UnixRule":
        if (self.user is None) == (self.group is None):
            raise ValueError("say either user or group")
        return self


class UnixUsersConfig(InstanceConfig):
    """Local users, on listeners unix:/path."""

    rules: tuple[UnixRule, ...] = Field(min_length=1, description="Which user or group gets which roles.")


def _is_meant(rule: UnixRule, peer: access.UnixPeer, users: dict[str, int], groups: dict[str, int]) -> bool:
    if rule.user is not None:
        return users[rule.user] == peer.uid
    return groups[rule.group or ""] in {peer.gid, *peer.groups}


def _number(name: str, look_up: Callable[[str], int], kind: str) -> int:
    """The number of a user or group.

    Raises:
        ValueError: the system does not know the name.
    """
    try:
        return int(name) if name.isdecimal() else look_up(name)
    except KeyError as error:
        raise ValueError(f"this host has no {kind} '{name}'") from error


def open_unix_users(
    config: UnixUsersConfig, context: access.AuthenticatorContext
) -> AbstractAsyncContextManager[access.Authenticate]:
    """Look the names up once; asking the system for each request could take seconds where names come over the network.

    Raises:
        ValueError: the system does not know a user or a group.
    """
    del context
    users = {
        name: _number(name, lambda name: pwd.getpwnam(name).pw_uid, "user")
        for rule in config.rules
        if (name := rule.user)
    }
    groups = {
        name: _number(name, lambda name: grp.getgrnam(name).gr_gid, "group")
        for rule in config.rules
        if (name := rule.group)
    }
    names = {uid: name for name, uid in users.items()}

    async def authenticate(credentials: access.Credentials) -> access.Identity | None:
        peer = credentials.peer
        if peer is None:
            return None
        fitting = [rule for rule in config.rules if _is_meant(rule, peer, users, groups)]
        if not fitting:
            return None
        known = names.get(peer.uid, str(peer.uid))
        user = await to_thread.run_sync(_user_name, peer.uid) if known.isdecimal() else known
        return identified(known, fitting, user)

    return nullcontext(authenticate)


def _user_name(uid: int) -> str | None:
    """The name that the system has for a user, now: numbers are given to others, who must not see what was before."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


async def check(config: UnixUsersConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Look up every user and group that is named."""
    del context
    for rule in config.rules:
        subject = f"user {rule.user}" if rule.user else f"group {rule.group}"
        try:
            number = (
                _number(rule.user, lambda name: pwd.getpwnam(name).pw_uid, "user")
                if rule.user
                else _number(rule.group or "", lambda name: grp.getgrnam(name).gr_gid, "group")
            )
        except ValueError as error:
            remedy = "the daemon will not start: make it, or change the rule; getent shows what this host knows"
            yield Finding(Severity.FAILURE, subject, str(error), remedy)
        else:
            yield Finding(Severity.OK, subject, f"number {number}")


KIND = access.AuthenticatorKind(
    name="unix_users",
    config=UnixUsersConfig,
    open=open_unix_users,
    roles=lambda config: named_roles(config.rules),
    names_users=lambda _: True,
    check=check,
)
