"""A look at the sources of amounts: records, or Slurm's own programs."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.diagnosis.findings import fail, listed, note, ok
from auditord_builtin.waldur.diagnosis.offering import Used
from auditord_builtin.waldur.months import month_at, reported_months
from auditord_builtin.waldur.sacct_usage import exact_query, sacct_month_usage, sacct_usage
from auditord_builtin.waldur.usage import month_usage
from auditord_builtin.waldur.usage_source import covered_since, staleness
from auditord_hookspecs import AggregateQuery, AuditordError, ComponentUsage, PluginContext, Window
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.wording import counted

ASK_FOR: Final = timedelta(seconds=30)
"""The time that Slurm's small programs may take."""

LOOK_BACK: Final = timedelta(hours=1)
"""The period that sacct is tried with."""


async def used_by(config: WaldurConfig, context: PluginContext, *, sacct: bool) -> tuple[Used, Finding | None]:
    """The users of each account in the months that are reported; a finding if that cannot be known."""
    now = context.now()
    found: dict[str, set[str]] = {}
    try:
        for month in reported_months(now, config.zone, config.reporting_periods):
            if sacct:
                used = await sacct_month_usage(config, context, month, as_of=now)
            else:
                used = await month_usage(config, context.records, month, as_of=now)
            for account, usage in used.items():
                found.setdefault(account, set()).update(usage.users)
    except AuditordError as error:
        return {}, fail("amounts", f"of the reported months cannot be had: {error}")
    return found, None


async def store(config: WaldurConfig, context: PluginContext) -> AsyncIterator[Finding]:
    """Look at the records: do they come in, and have they what is to be reported?"""
    try:
        stale = await staleness(config, context.records, context.now())
        first = await covered_since(config, context.records)
        missing = await _missing_components(config, context)
    except AuditordError as error:
        yield fail("records", f"cannot be read: {error}")
        return
    yield ok("records", "are up to date") if stale is None else fail("records", f"not up to date: {stale}")
    yield _reach(config, first, context.now())
    for name in missing:
        yield note("records", f"none of this month or the last has {name}: see recorded_as and the collector's rules")


def _reach(config: WaldurConfig, first: datetime | None, now: datetime) -> Finding:
    """Compare the first record with the beginning of what is reported."""
    if first is None:
        return fail("records", f"of no job that has ended, or not of each of {', '.join(config.sites) or 'the sites'}")
    since = first.astimezone(config.zone).isoformat(timespec="minutes")
    oldest = reported_months(now, config.zone, config.reporting_periods)[0]
    if first > oldest.start:
        return note("records", f"reach back to {since}: what was before is missing in {oldest}, which is reported")
    return ok("records", f"reach back to {since}")


async def _missing_components(config: WaldurConfig, context: PluginContext) -> Sequence[str]:
    """Components that are to be reported and that no record has."""
    now = context.now()
    names = list(dict.fromkeys(name for each in config.resources for name in config.recorded[each].component))
    begin = month_at(now, config.zone).previous.start
    usage = tuple(ComponentUsage(name) for name in names)
    groups = (await context.records.aggregate(AggregateQuery(usage=usage, window=Window(begin, now), as_of=now))).groups
    amounts = [sum(group.usage[place].sums.amount for group in groups) for place in range(len(names))]
    return [name for name, amount in zip(names, amounts, strict=True) if not amount]


async def slurm(config: WaldurConfig, context: PluginContext) -> AsyncIterator[Finding]:
    """Try Slurm's programs."""
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
    """The output of one of Slurm's programs."""
    argv = config.slurm.argv(program, *arguments)
    try:
        result = await context.run_command(argv, timeout=ASK_FOR, through=config.slurm.through)
    except AuditordError as error:
        return fail(program, str(error))
    return ok(program, result.stdout.decode(errors="replace").strip())


async def _cluster(config: WaldurConfig, context: PluginContext) -> Finding:
    asked = await _program(
        config, context, *("sacctmgr", "--parsable2", "--noheader", "list", "cluster", "format=cluster")
    )
    if asked.severity is Severity.FAILURE:
        return asked
    clusters = asked.text.split()
    if config.slurm.cluster_name not in {None, *clusters}:
        return fail("sacctmgr", f"knows no cluster {config.slurm.cluster_name}; there are {listed(clusters)}")
    if config.slurm.cluster_name is None and len(clusters) > 1:
        return note("sacctmgr", f"knows several clusters: {listed(clusters)}; see slurm.cluster_name")
    return ok("sacctmgr", f"knows {listed(clusters)}")
