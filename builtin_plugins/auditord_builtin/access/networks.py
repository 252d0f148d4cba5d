"""Authenticator ``networks``: the address of a client that can prove nothing else."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, nullcontext
from ipaddress import IPv4Network, IPv6Network, ip_address

from pydantic import Field

from auditord_builtin.access.rules import Rule, identified, named_roles
from auditord_hookspecs import Context, InstanceConfig, access
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.wording import counted


class NetworkRule(Rule):
    """Everybody at some addresses."""

    network: IPv4Network | IPv6Network = Field(description="Such as 127.0.0.0/8, ::1/128 or 192.0.2.7.")


class NetworksConfig(InstanceConfig):
    """Addresses that are trusted: any user of such a host is let in, and so is who can pretend to be there."""

    rules: tuple[NetworkRule, ...] = Field(min_length=1, description="Which network gets which roles.")


def open_networks(
    config: NetworksConfig, context: access.AuthenticatorContext
) -> AbstractAsyncContextManager[access.Authenticate]:
    """Nothing is opened. The address is that of the connection or, behind a proxy of ``api.proxies``, of its client."""
    del context

    async def authenticate(credentials: access.Credentials) -> access.Identity | None:
        if credentials.address is None or credentials.token is not None:
            return None
        address = ip_address(credentials.address)
        return identified(str(address), [rule for rule in config.rules if address in rule.network])

    return nullcontext(authenticate)


async def check(config: NetworksConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """See whether a rule lets everybody in."""
    del context
    for rule in config.rules:
        roles = ", ".join(rule.roles)
        if rule.network.prefixlen == 0:
            text = f"whoever reaches this daemon, from anywhere, has the roles {roles}"
            yield Finding(Severity.WARNING, str(rule.network), text, "name the networks of the hosts that are meant")
        else:
            text = f"{counted(rule.network.num_addresses, 'address', 'addresses')} with the roles {roles}"
            yield Finding(Severity.OK, str(rule.network), text)


KIND = access.AuthenticatorKind(
    name="networks",
    config=NetworksConfig,
    open=open_networks,
    roles=lambda config: named_roles(config.rules),
    check=check,
)
