"""``auditord waldur diagnose``: check everything that correct amounts in Waldur depend on, step by step."""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

from auditord_builtin.waldur.api import (
    AccessDenied,
    InvalidAnswer,
    Offering,
    OfferingUser,
    Resource,
    Unreachable,
    User,
    WaldurError,
)
from auditord_builtin.waldur.client import WaldurClient
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.usage import (
    CLOCKS_APART,
    Source,
    UsageSource,
    exact_query,
    fold_name,
    month_at,
    months_to_report,
    read_coverage_start,
    sacct_usage,
)
from auditord_hookspecs import AggregateQuery, AuditordError, ComponentUsage, PluginContext, Window, wording
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.wording import counted


async def diagnose(
    config: WaldurConfig, context: PluginContext, client: WaldurClient, source: Source
) -> AsyncIterator[Finding]:
    """Check everything, and yield the findings. Errors are reported as findings."""
    usage = UsageSource(config, context, source)
    for each in _check_tls(config):
        yield each
    user: User | None = None
    try:
        user = await client.me()
    except WaldurError as error:
        yield _without_user(config, error)
    if user is not None:
        async for each in _waldur(config, context, client, user, usage):
            yield each
    async for each in _check_slurm(config, context) if source is Source.SACCT else _check_store(config, context, usage):
        yield each


def _without_user(config: WaldurConfig, error: WaldurError) -> Finding:
    if isinstance(error, AccessDenied):
        return fail("token", str(error))
    if isinstance(error, Unreachable | InvalidAnswer):
        return fail("url", f"{config.waldur_api_url}: {error}")
    return fail("url", f"{config.waldur_api_url} is perhaps not the address of Waldur's API: {error}")


async def _waldur(
    config: WaldurConfig, context: PluginContext, client: WaldurClient, user: User, usage: UsageSource
) -> AsyncIterator[Finding]:
    """Check everything that needs a valid token."""
    yield ok("url", f"{config.waldur_api_url} answers")
    yield ok("token", f"of {user.username} ({user.full_name}){', staff' if user.is_staff else ''}")
    async for each in _server(context, client):
        yield each
    try:
        offering, resources, users = await client.offering(), await client.resources(), await client.offering_users()
    except WaldurError as error:
        yield fail("offering", f"{config.waldur_offering_uuid}: not found, or the token has no role on it: {error}")
        return
    used, problem = await _used_by(config, usage)
    if problem is not None:
        yield problem
    for each in (
        _check_role(user, offering),
        _check_state(offering),
        *_check_components(config, offering),
        *_check_accounts(config, resources, used),
        *_check_logins(users, used),
    ):
        yield each


async def _server(context: PluginContext, client: WaldurClient) -> AsyncIterator[Finding]:
    try:
        version, ahead, bulk = await client.version(), await client.clock_ahead(context.now), await client.has_bulk()
    except WaldurError as error:
        yield note("server", f"version, clock and features cannot be read: {error}")
        return
    accepts = "many users in one request" if bulk else "one user at a time"
    yield ok("server", f"Waldur {version.version}, accepts {accepts}")
    yield _check_clock(ahead)


NAMED: Final = 5
"""The maximum number of names in a line."""


_WORDS: Final[Mapping[Severity, str]] = {Severity.OK: "ok", Severity.WARNING: "note", Severity.FAILURE: "FAIL"}

ok = partial(Finding, Severity.OK)
note = partial(Finding, Severity.WARNING)
"""Amounts may be incomplete."""
fail = partial(Finding, Severity.FAILURE)
"""Amounts will be wrong, or not arrive."""


def as_line(finding: Finding) -> str:
    """Return a finding as a line: severity, subject and text."""
    return f"{_WORDS[finding.severity]:4}  {finding.subject:10}  {finding.text}"


def listed(names: Iterable[str]) -> str:
    """Return up to ``NAMED`` names, and how many others there are."""
    return wording.listed(list(names), NAMED) or "none"


NOTICED: Final = timedelta(seconds=30)
"""Clock differences up to this long are ignored."""

Used: TypeAlias = Mapping[str, Collection[str]]
"""The users of the reported months by account, case-folded."""


def _check_tls(config: WaldurConfig) -> Iterator[Finding]:
    if config.waldur_api_url.startswith("http:"):
        yield note("tls", f"{config.waldur_api_url} is not https: the token can be read in transit")
    elif not config.verify_ssl:
        yield note("tls", "verify_ssl is false: any host on the network path can pose as Waldur and read the token")
    else:
        yield ok("tls", f"certificates are checked against {config.ca_file or 'the CAs of the system'}")


def _check_clock(ahead: timedelta | None) -> Finding:
    """Compare the clocks. A server whose clock is behind refuses the current time as a future time."""
    if ahead is None:
        return note("clock", "the server does not send its time")
    if abs(ahead) <= NOTICED:
        return ok("clock", "the server's agrees with ours")
    text = f"the server's is {abs(ahead).total_seconds():.0f} s {'ahead of' if ahead > timedelta(0) else 'behind'} ours"
    if -ahead > CLOCKS_APART:
        return fail("clock", f"{text}: it refuses our current time as a future time")
    return note("clock", f"{text}: check NTP on both sides")


def _check_role(user: User, offering: Offering) -> Finding:
    scopes = {offering.uuid, offering.customer_uuid} - {None}
    roles = sorted({each.role_name for each in user.permissions if each.scope_uuid in scopes})
    if user.is_staff:
        return ok("role", "staff may report everything, including past months")
    if not roles:
        return fail(
            "role",
            f"{user.username} has none on the offering or on {offering.customer_name}: it needs OFFERING.MANAGER",
        )
    return ok("role", f"{', '.join(roles)}; past months need a staff token, see load-history")


def _check_state(offering: Offering) -> Finding:
    text = f"{offering.name} of {offering.customer_name}, {offering.state}"
    if offering.state == "Paused":
        why = f" ({offering.paused_reason})" if offering.paused_reason else ""
        return note("offering", f"{text}{why}: nothing new can be ordered; its resources are still reported")
    return ok("offering", text) if offering.state == "Active" else note("offering", f"{text}: is it the right one?")


def _check_components(config: WaldurConfig, offering: Offering) -> Iterator[Finding]:
    """Compare the configured components with those of the offering."""
    offered = {each.type: each for each in offering.components}
    for name, component in config.backend_components.items():
        if name not in offered:
            yield fail("component", f"{name}: the offering has none of this type; it has {listed(offered)}")
        elif not offered[name].takes_usage:
            yield fail(
                "component", f"{name}: is billed by {offered[name].billing_type!r}, so Waldur accepts no usage of it"
            )
        else:
            units = f"{component.measured_unit or 'no unit'} here, {offered[name].measured_unit or 'no unit'} in Waldur"
            same = component.measured_unit in {"", offered[name].measured_unit}
            yield (ok if same else note)("component", f"{name}: {units}")
    for each in offering.components:
        if each.takes_usage and each.type not in config.backend_components:
            yield note("component", f"{each.type}: the offering has it, but it is not configured: never reported")


def _check_accounts(config: WaldurConfig, resources: Sequence[Resource], used: Used) -> Iterator[Finding]:
    """Compare the offering's resources with the accounts that have usage."""
    by_account: dict[str, list[Resource]] = {}
    for each in resources:
        by_account.setdefault(fold_name(each.backend_id), []).append(each)
    nameless = by_account.pop("", [])
    yield (ok if by_account else fail)("resources", f"{len(resources)}, of {counted(len(by_account), 'account')}")
    if nameless:
        yield note("resources", f"without backend_id, never reported: {listed(each.name for each in nameless)}")
    if erred := [account for account, those in by_account.items() if not all(each.takes_usage for each in those)]:
        yield note("resources", f"in state Erred, for which Waldur accepts no usage: {listed(erred)}")
    if left_out := [account for account in by_account if not config.selects(account)]:
        yield note("resources", f"left out by account_prefixes: {listed(left_out)}")
    if twice := [account for account, those in by_account.items() if len(those) > 1]:
        yield fail("resources", f"several have the same backend_id, so none is reported: {listed(twice)}")
    if idle := [account for account in by_account if account not in used and config.selects(account)]:
        yield note("resources", f"without usage in the reported months: {listed(idle)}")
    if unknown := [account for account in used if account not in by_account]:
        yield note("accounts", f"with usage but no resource, never reported: {listed(unknown)}")


def _check_logins(users: Sequence[OfferingUser], used: Used) -> Iterator[Finding]:
    """Compare the offering's users with the users that have usage."""
    named = {fold_name(each.username) for each in users} - {""}
    yield ok("users", f"{len(named)} of the offering have a username, {len(users) - len(named)} have none yet")
    if unknown := sorted({user for those in used.values() for user in those} - named):
        yield note("users", f"with usage, but not users of the offering; reported only by name: {listed(unknown)}")


ASK_FOR: Final = timedelta(seconds=30)
"""The time limit of sinfo and sacctmgr."""

LOOK_BACK: Final = timedelta(hours=1)
"""The period for which sacct is tried."""


async def _used_by(config: WaldurConfig, source: UsageSource) -> tuple[Used, Finding | None]:
    """Return the users of each account in the reported months, or a finding if they cannot be read."""
    found: dict[str, set[str]] = {}
    try:
        for month in months_to_report(source.now, config.zone, config.reporting_periods):
            for account, usage in (await source.month(month)).items():
                found.setdefault(account, set()).update(usage.users)
    except AuditordError as error:
        return {}, fail("amounts", f"of the reported months cannot be read: {error}")
    return found, None


async def _check_store(config: WaldurConfig, context: PluginContext, usage: UsageSource) -> AsyncIterator[Finding]:
    """Check that the records are up to date and have the components to report."""
    try:
        stale = await usage.staleness()
        first = await read_coverage_start(config, context.records)
        missing = await _missing_components(config, context)
    except AuditordError as error:
        yield fail("records", f"cannot be read: {error}")
        return
    yield ok("records", "are up to date") if stale is None else fail("records", f"not up to date: {stale}")
    yield _reach(config, first, context.now())
    for name in missing:
        yield note("records", f"of this and the last month lack {name}: see recorded_as and the collector's rules")


def _reach(config: WaldurConfig, first: datetime | None, now: datetime) -> Finding:
    """Compare the first record with the beginning of the reported months."""
    if first is None:
        return fail("records", f"of ended jobs are missing for one or more of {', '.join(config.sites) or 'the sites'}")
    since = first.astimezone(config.zone).isoformat(timespec="minutes")
    oldest = months_to_report(now, config.zone, config.reporting_periods)[0]
    if first > oldest.start:
        return note("records", f"reach back to {since}: earlier records of {oldest}, which is reported, are missing")
    return ok("records", f"reach back to {since}")


async def _missing_components(config: WaldurConfig, context: PluginContext) -> Sequence[str]:
    """Return the components to report that no record has."""
    now = context.now()
    names = list(dict.fromkeys(name for each in config.resources for name in config.recorded[each].component))
    begin = month_at(now, config.zone).previous.start
    usage = tuple(ComponentUsage(name) for name in names)
    groups = (await context.records.aggregate(AggregateQuery(usage=usage, window=Window(begin, now), as_of=now))).groups
    amounts = [sum(group.usage[place].sums.amount for group in groups) for place in range(len(names))]
    return [name for name, amount in zip(names, amounts, strict=True) if not amount]


async def _check_slurm(config: WaldurConfig, context: PluginContext) -> AsyncIterator[Finding]:
    yield await _program(config, context, "sinfo", "-V")
    yield await _cluster(config, context)
    now = context.now()
    try:
        used = await sacct_usage(config, context, exact_query(config, Window(now - LOOK_BACK, now), as_of=now))
    except AuditordError as error:
        yield fail("sacct", str(error))
        return
    yield ok("sacct", f"answers: {counted(len(used), 'account')} had jobs in the last hour")


async def _program(config: WaldurConfig, context: PluginContext, program: str, *arguments: str) -> Finding:
    argv = config.slurm.argv(program, *arguments)
    try:
        result = await context.run_command(argv, timeout=ASK_FOR, through=config.slurm.through)
    except AuditordError as error:
        return fail(program, str(error))
    return ok(program, result.stdout.decode(errors="replace").strip())


async def _cluster(config: WaldurConfig, context: PluginContext) -> Finding:
    result = await _program(
        config, context, *("sacctmgr", "--parsable2", "--noheader", "list", "cluster", "format=cluster")
    )
    if result.severity is Severity.FAILURE:
        return result
    clusters = result.text.split()
    if config.slurm.cluster_name not in {None, *clusters}:
        return fail("sacctmgr", f"does not know cluster {config.slurm.cluster_name}; it knows {listed(clusters)}")
    if config.slurm.cluster_name is None and len(clusters) > 1:
        return note("sacctmgr", f"knows several clusters: {listed(clusters)}; see slurm.cluster_name")
    return ok("sacctmgr", f"knows {listed(clusters)}")
