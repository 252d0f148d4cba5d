"""``auditord waldur``: report now, compare with sacct, and list the records behind an amount."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import anyio
import click
import msgspec
from msgspec.structs import replace

from auditord_builtin.waldur.api import WaldurError
from auditord_builtin.waldur.client import open_client
from auditord_builtin.waldur.config import INTERVAL, WaldurConfig
from auditord_builtin.waldur.diagnosis import as_line, diagnose
from auditord_builtin.waldur.explaining import Explanation, Share, explain
from auditord_builtin.waldur.planning import NOTHING
from auditord_builtin.waldur.reporting import report_usage
from auditord_builtin.waldur.usage import (
    AccountUsage,
    BillingMonth,
    SacctQuery,
    Source,
    Tres,
    agent_query,
    convert_usage,
    exact_query,
    fold_name,
    month_at,
    month_usage,
    sacct_usage,
)
from auditord_hookspecs import (
    AuditordError,
    CommandContext,
    PluginContext,
    pass_context,
)
from auditord_hookspecs.arguments import show_command
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.commands import run_instance
from auditord_hookspecs.months import Month
from auditord_hookspecs.terminal import ReadBy, output_option, say, say_cells, write_json
from auditord_hookspecs.wording import counted


class Difference(msgspec.Struct, frozen=True):
    """An amount of an account or of one of its users that differs between the record store and sacct."""

    account: str
    user: str | None
    component: str
    stored: Decimal
    accounted: Decimal


def differences(
    config: WaldurConfig, stored: Mapping[str, AccountUsage], accounted: Mapping[str, AccountUsage]
) -> Iterator[Difference]:
    """Yield every amount that differs, sorted by account, each account's total first."""
    nothing = AccountUsage({}, {})
    for account in sorted({*stored, *accounted}):
        ours, theirs = stored.get(account, nothing), accounted.get(account, nothing)
        users: Sequence[str | None] = [None, *sorted({*ours.users, *theirs.users})]
        for user in users:
            for component in config.backend_components:
                pair = _amount(ours, user, component), _amount(theirs, user, component)
                if pair[0] != pair[1]:
                    yield Difference(account, user, component, *pair)


async def compare_month(
    config: WaldurConfig, context: PluginContext, month: BillingMonth, query: SacctQuery, *, as_of: datetime
) -> Sequence[Difference]:
    """Return the differences between the records and sacct, for the accounts of the query.

    Raises:
        CommandFailed: sacct failed.
    """
    stored = await month_usage(config, context.records, month, as_of=as_of)
    accounted = convert_usage(config, await sacct_usage(config, context, query))
    return list(differences(config, _only(stored, query.accounts), _only(accounted, query.accounts)))


def _only(usage: Mapping[str, AccountUsage], accounts: Sequence[str]) -> Mapping[str, AccountUsage]:
    return {account: usage for account, usage in usage.items() if not accounts or account in accounts}


def _amount(usage: AccountUsage, user: str | None, component: str) -> Decimal:
    amounts = usage.total if user is None else usage.users.get(user, {})
    return amounts.get(component, NOTHING)


KIND: Final = "waldur"

choose_instance = click.option("--instance", metavar="NAME", help="The instance to use, if several are configured.")
choose_source = click.option(
    "--source",
    type=click.Choice([each.value for each in Source]),
    default=Source.STORE.value,
    show_default=True,
    help="Where amounts come from: the record store, or Slurm's own accounting.",
)
choose_month = click.option(
    "--month", type=ReadBy("YYYY-MM", Month.parse), help="The billing period; default: the current one."
)


@click.group("waldur")
def waldur_command() -> None:
    """Report usage to Waldur, and see where its amounts come from."""


@waldur_command.command("report")
@choose_instance
@click.option("--once", is_flag=True, help="Report once, instead of every interval until interrupted.")
@click.option("--dry-run", is_flag=True, help="Read and compute everything, print the requests, write nothing.")
@click.option(
    "--allow-decrease", is_flag=True, help="Allow amounts to decrease this time. Records must still be up to date."
)
@choose_source
@pass_context
def report_command(
    context: CommandContext, instance: str | None, *, once: bool, dry_run: bool, allow_decrease: bool, source: str
) -> None:
    """Report the usage of the last billing periods and of the current one.

    The exit code is 1 if Waldur did not accept something, and 4 if nothing could be reported: all resources of a month
    are held back, or the offering has none.
    """

    async def report(config: WaldurConfig, plugin_context: PluginContext) -> None:
        if allow_decrease:
            config = config.model_copy(update={"allow_decrease": True})
        if once or dry_run:
            await report_usage(config, plugin_context, Source(source))
            return
        if config.schedule is not None:
            raise click.UsageError("the daemon reports this offering on a schedule: use --once here")
        while True:
            try:
                await report_usage(config, plugin_context, Source(source))
            except AuditordError as error:
                say(f"not everything was reported: {error}", err=True)
            await anyio.sleep((config.interval or INTERVAL).total_seconds())

    run_instance(context, KIND, instance, report, dry_run=dry_run)


@waldur_command.command("explain")
@click.argument("account")
@click.argument("user", required=False)
@choose_month
@choose_instance
@output_option
@pass_context
def explain_command(
    context: CommandContext, *, account: str, user: str | None, month: Month | None, instance: str | None, output: str
) -> None:
    """List the records behind the amounts of ACCOUNT, or of USER in it, with the share of each.

    Times are in the billing zone, amounts are exact to six places. The sum is rounded like the reported amount.
    """

    async def show(config: WaldurConfig, plugin_context: PluginContext) -> None:
        period, as_of = _period(config, plugin_context, month), plugin_context.now() - config.lag
        shown = _Document(config) if output == "json" else _Lines(config)
        explanation = await explain(
            config, plugin_context.records, account, period, as_of=as_of, user=user, show=shown.share
        )
        shown.sum(explanation, period, as_of)

    run_instance(context, KIND, instance, show, dry_run=True)


class _Lines:
    """Prints an explanation, with the heading before the first record."""

    def __init__(self, config: WaldurConfig) -> None:
        self._config = config
        self._heading = ("record", "user", "start", "stop", "seconds", *config.backend_components)

    def share(self, share: Share) -> None:
        if self._heading:
            say_cells(self._heading)
            self._heading = ()
        stop = share.record.stop_time
        texts = (share.record.record_id, share.user or "-", self._local(share.record.start_time))
        amounts = [f"{float(each):.6f}" for each in share.amounts.values()]
        stopped = "running" if stop is None else self._local(stop)
        say_cells([*texts, stopped, f"{share.ticks / 1_000_000:g}", *amounts])

    def sum(self, explanation: Explanation, month: BillingMonth, as_of: datetime) -> None:
        amounts = ", ".join(f"{name} {each}" for name, each in explanation.round_amounts(self._config).items())
        until = f", running jobs up to {self._local(as_of)}" if explanation.running else ""
        say(f"{month}: {counted(explanation.records, 'record')}{until}: {amounts}")

    def _local(self, moment: datetime) -> str:
        return moment.astimezone(self._config.zone).isoformat(timespec="seconds")


class _Document:
    """Prints an explanation as JSON, after the last record."""

    def __init__(self, config: WaldurConfig) -> None:
        self._config = config
        self._shares: list[Mapping[str, Any]] = []  # Any: JSON

    def share(self, share: Share) -> None:
        record = share.record
        times = {"start_time": record.start_time, "stop_time": record.stop_time, "seconds": share.ticks / 1_000_000}
        amounts = {name: f"{float(each):.6f}" for name, each in share.amounts.items()}
        self._shares.append({"record_id": record.record_id, "user": share.user or None, **times, "amounts": amounts})

    def sum(self, explanation: Explanation, month: BillingMonth, as_of: datetime) -> None:
        counts = {"records": explanation.records, "running": explanation.running, "as_of": as_of}
        amounts = {name: str(each) for name, each in explanation.round_amounts(self._config).items()}
        write_json({"month": str(month), "shares": self._shares, "sum": {**counts, "amounts": amounts}})


@waldur_command.command("compare")
@click.argument("accounts", nargs=-1)
@choose_month
@click.option("--tres", type=click.Choice(["ReqTRES", "AllocTRES"]), help="Which resources sacct counts.")
@click.option("--exact", is_flag=True, help="Query every run of each job in the exact period, as load-history does.")
@choose_instance
@output_option
@pass_context
def compare_command(
    context: CommandContext,
    accounts: Sequence[str],
    month: Month | None,
    tres: Tres | None,
    *,
    exact: bool,
    instance: str | None,
    output: str,
) -> None:
    """Compare the records' amounts with sacct's, using the command line of the Waldur site agent.

    That line counts the resources that jobs requested (--tres ReqTRES), shows only the last run of a requeued job, and
    ends a second before the month does. The exit code is 1 if anything differs.
    """

    async def compare(config: WaldurConfig, plugin_context: PluginContext) -> bool:
        period = _period(config, plugin_context, month)
        now = plugin_context.now().replace(microsecond=0)  # sacct knows whole seconds
        # In a period that has not ended, sacct counts running jobs up to the present, as in the agent's call.
        as_of = now - timedelta(seconds=1) if exact else now
        query = exact_query(config, period.window, as_of=as_of) if exact else agent_query(config, period)
        call = replace(query, tres=tres or query.tres, accounts=[fold_name(account) for account in accounts])
        say(f"sacct: {show_command(call.argv(config))}", err=output == "json")
        found = await compare_month(config, plugin_context, period, call, as_of=as_of)
        if output == "json":
            write_json(found)
            return not found
        heading = ("account", "user", "component", "records", "sacct", "difference")
        say_cells(heading if found else ["records and sacct agree"])
        for each in found:
            amounts = (str(each.stored), str(each.accounted), f"{each.accounted - each.stored:+}")
            say_cells([each.account, each.user or "(all)", each.component, *amounts])
        return not found

    sys.exit(0 if run_instance(context, KIND, instance, compare, dry_run=True) else 1)


def _period(config: WaldurConfig, context: PluginContext, month: Month | None) -> BillingMonth:
    if month is None:
        return month_at(context.now(), config.zone)
    return BillingMonth(month.year, month.month, config.zone)


class Unfit(WaldurError):
    """Amounts cannot be right until the failures are repaired.

    Remedy:
        repair the checks that are marked FAIL above this message.
    """


@waldur_command.command("diagnose")
@choose_instance
@choose_source
@output_option
@pass_context
def diagnose_command(context: CommandContext, instance: str | None, source: str, output: str) -> None:
    """Check everything between the records and Waldur. Nothing is written.

    Each check prints a line: ok, note (amounts may be incomplete) or FAIL (amounts will be wrong, or not arrive). The
    exit code is 1 if anything fails.
    """

    async def look(config: WaldurConfig, plugin_context: PluginContext) -> None:
        found: list[Finding] = []
        # Do not retry: a person is waiting.
        impatient = config.model_copy(update={"retry_for": config.retry_for * 0})
        async with open_client(impatient, plugin_context.http, show=say) as client:
            async for finding in diagnose(config, plugin_context, client, Source(source)):
                found.append(finding)
                if output == "text":
                    say(as_line(finding))
        if output == "json":
            write_json(found)
        if failed := sum(finding.severity is Severity.FAILURE for finding in found):
            raise Unfit(f"{failed} of the checks above failed")

    run_instance(context, KIND, instance, look, dry_run=True)
