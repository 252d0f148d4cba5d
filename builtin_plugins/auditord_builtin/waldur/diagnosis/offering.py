"""Waldur's own answers, held against the configuration and against the accounts and users with usage."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

from auditord_builtin.waldur.answers import Offering, OfferingUser, Resource, User
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.diagnosis.findings import fail, listed, note, ok
from auditord_builtin.waldur.months import CLOCKS_APART
from auditord_builtin.waldur.usage import folded
from auditord_hookspecs.checks import Finding
from auditord_hookspecs.wording import counted

NOTICED: Final = timedelta(seconds=30)
"""Clocks that are further apart are worth a line."""

Used: TypeAlias = Mapping[str, Collection[str]]
"""The users of the reported months by account, case-folded."""


def tls(config: WaldurConfig) -> Iterator[Finding]:
    """Look at the protection of the way to Waldur."""
    if config.waldur_api_url.startswith("http:"):
        yield note("tls", f"{config.waldur_api_url} is not https: the token can be read on the way")
    elif not config.verify_ssl:
        yield note("tls", "verify_ssl is false: any host on the way can be Waldur, and read the token")
    else:
        yield ok("tls", f"certificates are checked against {config.ca_file or 'the authorities of the system'}")


def clock(ahead: timedelta | None) -> Finding:
    """Compare the clocks: a server that is behind takes our present for the future."""
    if ahead is None:
        return note("clock", "the server does not say what time it has")
    if abs(ahead) <= NOTICED:
        return ok("clock", "the server's is ours")
    text = f"the server's is {abs(ahead).total_seconds():.0f} s {'ahead of' if ahead > timedelta(0) else 'behind'} ours"
    if -ahead > CLOCKS_APART:
        return fail("clock", f"{text}: it takes our present for the future, and refuses it")
    return note("clock", f"{text}: see to NTP on both sides")


def role(user: User, offering: Offering) -> Finding:
    """Look for a role that may report."""
    scopes = {offering.uuid, offering.customer_uuid} - {None}
    roles = sorted({each.role_name for each in user.permissions if each.scope_uuid in scopes})
    if user.is_staff:
        return ok("role", "staff may report everything, also months that are over")
    if not roles:
        return fail(
            "role",
            f"{user.username} has none on the offering or on {offering.customer_name}: it needs OFFERING.MANAGER",
        )
    return ok("role", f"{', '.join(roles)}; months that are over need a token of staff, see load-history")


def state(offering: Offering) -> Finding:
    """Look at the state of the offering."""
    text = f"{offering.name} of {offering.customer_name}, {offering.state}"
    if offering.state == "Paused":
        why = f" ({offering.paused_reason})" if offering.paused_reason else ""
        return note("offering", f"{text}{why}: nothing new can be ordered; its resources are reported all the same")
    return ok("offering", text) if offering.state == "Active" else note("offering", f"{text}: is it the right one?")


def components(config: WaldurConfig, offering: Offering) -> Iterator[Finding]:
    """The configured components against those of the offering."""
    there = {each.type: each for each in offering.components}
    for name, component in config.backend_components.items():
        if name not in there:
            yield fail("component", f"{name}: the offering has none of this type; it has {listed(there)}")
        elif not there[name].takes_usage:
            yield fail(
                "component", f"{name}: is billed by {there[name].billing_type!r}, so Waldur takes no usage of it"
            )
        else:
            units = f"{component.measured_unit or 'no unit'} here, {there[name].measured_unit or 'no unit'} in Waldur"
            same = component.measured_unit in {"", there[name].measured_unit}
            yield (ok if same else note)("component", f"{name}: {units}")
    for each in offering.components:
        if each.takes_usage and each.type not in config.backend_components:
            yield note("component", f"{each.type}: the offering has it, and it is not configured: never reported")


def accounts(config: WaldurConfig, resources: Sequence[Resource], used: Used) -> Iterator[Finding]:
    """Resources against accounts with usage, both ways."""
    by_account: dict[str, list[Resource]] = {}
    for each in resources:
        by_account.setdefault(folded(each.backend_id), []).append(each)
    nameless = by_account.pop("", [])
    yield (ok if by_account else fail)("resources", f"{len(resources)}, of {counted(len(by_account), 'account')}")
    if nameless:
        yield note("resources", f"without backend_id, never reported: {listed(each.name for each in nameless)}")
    if erred := [account for account, those in by_account.items() if not all(each.takes_usage for each in those)]:
        yield note("resources", f"in state Erred, of which Waldur takes no usage: {listed(erred)}")
    if left_out := [account for account in by_account if not config.selects(account)]:
        yield note("resources", f"left out by account_prefixes: {listed(left_out)}")
    if twice := [account for account, those in by_account.items() if len(those) > 1]:
        yield fail("resources", f"several have one backend_id, none of which is reported: {listed(twice)}")
    if idle := [account for account in by_account if account not in used and config.selects(account)]:
        yield note("resources", f"without usage in the reported months: {listed(idle)}")
    if unknown := [account for account in used if account not in by_account]:
        yield note("accounts", f"with usage and no resource, never reported: {listed(unknown)}")


def logins(users: Sequence[OfferingUser], used: Used) -> Iterator[Finding]:
    """Users of the offering against users with usage."""
    named = {folded(each.username) for each in users} - {""}
    yield ok("users", f"{len(named)} of the offering have a username, {len(users) - len(named)} have none yet")
    if unknown := sorted({user for those in used.values() for user in those} - named):
        yield note("users", f"with usage, and no users of the offering; reported by name alone: {listed(unknown)}")
