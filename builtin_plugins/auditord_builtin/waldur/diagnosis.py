"""``auditord waldur diagnose``: check everything that correct amounts in Waldur depend on, step by step."""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

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

NAMED: Final = 5
"""The maximum number of names in a line."""

NOTICED: Final = timedelta(seconds=30)
"""Clock differences up to this long are ignored."""

ASK_FOR: Final = timedelta(seconds=30)
"""The time limit of sinfo and sacctmgr."""

LOOK_BACK: Final = timedelta(hours=1)
"""The period for which sacct is tried."""

_WORDS: Final[Mapping[Severity, str]] = {Severity.OK: "ok", Severity.WARNING: "note", Severity.FAILURE: "FAIL"}

ok = partial(Finding, Severity.OK)
note = partial(Finding, Severity.WARNING)
"""Amounts may be incomplete."""
fail = partial(Finding, Severity.FAILURE)
"""Amounts will be wrong, or not arrive."""


async def diagnose(
    config: WaldurConfig, context: PluginContext, client: WaldurClient, source: Source
) -> AsyncIterator[Finding]:
    """Check everything, and yield the findings. Errors are reported as findings."""
    usage = UsageSource(config, context, source)
    if config.waldur_api_url.startswith("http:"):
        yield note("tls", f"{config.waldur_api_url} is not https: the token can be read in transit")
    elif not config.verify_ssl:
        yield note("tls", "verify_ssl is false: any host on the network path can pose as Waldur and read the token")
    else:
        yield ok("tls", f"certificates are checked against {config.ca_file or 'the CAs of the system'}")
    try:
        user = await client.me()
    except AccessDenied as error:
        yield fail("token", str(error))
    except (Unreachable, InvalidAnswer) as error:
        yield fail("url", f"{config.waldur_api_url}: {error}")
    except WaldurError as error:
        yield fail("url", f"{config.waldur_api_url} is perhaps not the address of Waldur's API: {error}")
    else:
        async for each in _check_waldur(config, context, client, user, usage):
            yield each
    async for each in _check_slurm(config, context) if source is Source.SACCT else _check_store(config, context, usage):
        yield each


async def _check_waldur(
    config: WaldurConfig, context: PluginContext, client: WaldurClient, user: User, usage: UsageSource
) -> AsyncIterator[Finding]:
    """Check everything that needs a valid token."""
    yield ok("url", f"{config.waldur_api_url} answers")
    yield ok("token", f"of {user.username} ({user.full_name}){', staff' if user.is_staff else ''}")
    try:
        version, ahead, bulk = await client.version(), await client.clock_ahead(context.now), await client.has_bulk()
    except WaldurError as error:
        yield note("server", f"version, clock and features cannot be read: {error}")
    else:
        accepts = "many users in one request" if bulk else "one user at a time"
        yield ok("server", f"Waldur {version.version}, accepts {accepts}")
        if ahead is None:
            yield note("clock", "the server does not send its time")
        elif abs(ahead) <= NOTICED:
            yield ok("clock", "the server's agrees with ours")
        else:
            direction = "ahead of" if ahead > timedelta(0) else "behind"
            text = f"the server's is {abs(ahead).total_seconds():.0f} s {direction} ours"
            refused = fail("clock", f"{text}: it refuses our current time as a future time")
            yield refused if -ahead > CLOCKS_APART else note("clock", f"{text}: check NTP on both sides")
    try:
        offering, resources, users = await client.offering(), await client.resources(), await client.offering_users()
    except WaldurError as error:
        yield fail("offering", f"{config.waldur_offering_uuid}: not found, or the token has no role on it: {error}")
        return
    used: dict[str, set[str]] = {}  # the users of the reported months by account, case-folded
    try:
        for month in months_to_report(usage.now, config.zone, config.reporting_periods):
            for account, amounts in (await usage.month(month)).items():
                used.setdefault(account, set()).update(amounts.users)
    except AuditordError as error:
        used = {}
        yield fail("amounts", f"of the reported months cannot be read: {error}")
    for each in (*_check_offering(config, user, offering), *_check_names(config, resources, users, used)):
        yield each


def as_line(finding: Finding) -> str:
    """Return a finding as a line: severity, subject and text."""
    return f"{_WORDS[finding.severity]:4}  {finding.subject:10}  {finding.text}"


def join_names(names: Iterable[str]) -> str:
    """Return up to ``NAMED`` names, and how many others there are."""
    return wording.format_list(list(names), NAMED) or "none"


def _check_offering(config: WaldurConfig, user: User, offering: Offering) -> Iterator[Finding]:
    """Check the user's role on the offering and its state, and compare its components with the configured ones."""
    scopes = {offering.uuid, offering.customer_uuid} - {None}
    roles = sorted({each.role_name for each in user.permissions if each.scope_uuid in scopes})
    if user.is_staff:
        yield ok("role", "staff may report everything, including past months")
    elif roles:
        yield ok("role", f"{', '.join(roles)}; past months need a staff token, see load-history")
    else:
        where = f"the offering or on {offering.customer_name}"
        yield fail("role", f"{user.username} has none on {where}: it needs OFFERING.MANAGER")
    text = f"{offering.name} of {offering.customer_name}, {offering.state}"
    if offering.state == "Active":
        yield ok("offering", text)
    elif offering.state == "Paused":
        why = f" ({offering.paused_reason})" if offering.paused_reason else ""
        yield note("offering", f"{text}{why}: nothing new can be ordered; its resources are still reported")
    else:
        yield note("offering", f"{text}: is it the right one?")
    offered = {each.type: each for each in offering.components}
    for name, component in config.backend_components.items():
        if name not in offered:
            yield fail("component", f"{name}: the offering has none of this type; it has {join_names(offered)}")
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


def _check_names(
    config: WaldurConfig,
    resources: Sequence[Resource],
    users: Sequence[OfferingUser],
    used: Mapping[str, Collection[str]],
) -> Iterator[Finding]:
    """Compare the offering's resources and users with the accounts and users that have usage."""
    by_account: dict[str, list[Resource]] = {}
    for each in resources:
        by_account.setdefault(fold_name(each.backend_id), []).append(each)
    nameless = by_account.pop("", [])
    yield (ok if by_account else fail)("resources", f"{len(resources)}, of {counted(len(by_account), 'account')}")
    if nameless:
        yield note("resources", f"without backend_id, never reported: {join_names(each.name for each in nameless)}")
    if erred := [account for account, those in by_account.items() if not all(each.takes_usage for each in those)]:
        yield note("resources", f"in state Erred, for which Waldur accepts no usage: {join_names(erred)}")
    if left_out := [account for account in by_account if not config.selects(account)]:
        yield note("resources", f"left out by account_prefixes: {join_names(left_out)}")
    if twice := [account for account, those in by_account.items() if len(those) > 1]:
        yield fail("resources", f"several have the same backend_id, so none is reported: {join_names(twice)}")
    if idle := [account for account in by_account if account not in used and config.selects(account)]:
        yield note("resources", f"without usage in the reported months: {join_names(idle)}")
    if unknown := [account for account in used if account not in by_account]:
        yield note("accounts", f"with usage but no resource, never reported: {join_names(unknown)}")
    named = {fold_name(each.username) for each in users} - {""}
    yield ok("users", f"{len(named)} of the offering have a username, {len(users) - len(named)} have none yet")
    if without_login := sorted({user for those in used.values() for user in those} - named):
        names = join_names(without_login)
        yield note("users", f"with usage, but not users of the offering; reported only by name: {names}")


async def _check_store(config: WaldurConfig, context: PluginContext, usage: UsageSource) -> AsyncIterator[Finding]:
    """Check that the records are up to date, reach back far enough, and have the components to report."""
    now = context.now()
    names = list(dict.fromkeys(name for each in config.resources for name in config.recorded[each].component))
    last_months = Window(month_at(now, config.zone).previous.start, now)
    sums = AggregateQuery(usage=tuple([ComponentUsage(name) for name in names]), window=last_months, as_of=now)
    try:
        stale = await usage.staleness()
        first = await read_coverage_start(config, context.records)
        groups = (await context.records.aggregate(sums)).groups
    except AuditordError as error:
        yield fail("records", f"cannot be read: {error}")
        return
    yield ok("records", "are up to date") if stale is None else fail("records", f"not up to date: {stale}")
    oldest = months_to_report(now, config.zone, config.reporting_periods)[0]
    if first is None:
        yield fail("records", f"of ended jobs are missing for one or more of {', '.join(config.sites) or 'the sites'}")
    elif first > oldest.start:
        since = first.astimezone(config.zone).isoformat(timespec="minutes")
        yield note("records", f"reach back to {since}: earlier records of {oldest}, which is reported, are missing")
    else:
        yield ok("records", f"reach back to {first.astimezone(config.zone).isoformat(timespec='minutes')}")
    for place, name in enumerate(names):
        if not sum(group.usage[place].sums.amount for group in groups):
            yield note("records", f"of this and the last month lack {name}: see recorded_as and the collector's rules")


async def _check_slurm(config: WaldurConfig, context: PluginContext) -> AsyncIterator[Finding]:
    yield await _check_program(config, context, "sinfo", "-V")
    clusters = await _check_program(
        config, context, *("sacctmgr", "--parsable2", "--noheader", "list", "cluster", "format=cluster")
    )
    names, wanted = clusters.text.split(), config.slurm.cluster_name
    if clusters.severity is Severity.FAILURE:
        yield clusters
    elif wanted not in {None, *names}:
        yield fail("sacctmgr", f"does not know cluster {wanted}; it knows {join_names(names)}")
    elif wanted is None and len(names) > 1:
        yield note("sacctmgr", f"knows several clusters: {join_names(names)}; see slurm.cluster_name")
    else:
        yield ok("sacctmgr", f"knows {join_names(names)}")
    now = context.now()
    try:
        used = await sacct_usage(config, context, exact_query(config, Window(now - LOOK_BACK, now), as_of=now))
    except AuditordError as error:
        yield fail("sacct", str(error))
        return
    yield ok("sacct", f"answers: {counted(len(used), 'account')} had jobs in the last hour")


async def _check_program(config: WaldurConfig, context: PluginContext, program: str, *arguments: str) -> Finding:
    argv = config.slurm.argv(program, *arguments)
    try:
        result = await context.run_command(argv, timeout=ASK_FOR, through=config.slurm.through)
    except AuditordError as error:
        return fail(program, str(error))
    return ok(program, result.stdout.decode(errors="replace").strip())
