"""``auditord waldur``: report now, and see where amounts come from."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import anyio
import click

from auditord_builtin.waldur.client import open_client
from auditord_builtin.waldur.comparing import Difference, compare_month
from auditord_builtin.waldur.config import INTERVAL, WaldurConfig
from auditord_builtin.waldur.diagnosis import as_line, diagnose
from auditord_builtin.waldur.errors import WaldurError
from auditord_builtin.waldur.explaining import Explanation, Share, explain
from auditord_builtin.waldur.months import BillingMonth, month_at
from auditord_builtin.waldur.reporting import report_usage
from auditord_builtin.waldur.sacct_usage import Tres, agent_query, exact_query
from auditord_builtin.waldur.usage import folded
from auditord_builtin.waldur.usage_source import Source
from auditord_hookspecs import AuditordError, CommandContext, PluginContext, pass_context
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.months import Month
from auditord_hookspecs.terminal import output_option, say, say_cells, write_json
from auditord_hookspecs.wording import counted

KIND: Final = "waldur"

choose_instance = click.option("--instance", metavar="NAME", help="Which offering, if several are configured.")
choose_source = click.option(
    "--source",
    type=click.Choice([each.value for each in Source]),
    default=Source.STORE.value,
    show_default=True,
    help="Where amounts come from: the record store, or Slurm's own accounting.",
)
choose_month = click.option("--month", metavar="YYYY-MM", help="The billing period; without it the present one.")


@click.group("waldur")
def waldur_command() -> None:
    """Report usage to Waldur, and see where its amounts come from."""


@waldur_command.command("report")
@choose_instance
@click.option("--once", is_flag=True, help="Report once, and not every interval until interrupted.")
@click.option("--dry-run", is_flag=True, help="Read and compute everything, print the requests, write nothing.")
@click.option("--allow-decrease", is_flag=True, help="Let amounts fall this time. Records must still be up to date.")
@choose_source
@pass_context
def report_command(
    context: CommandContext, instance: str | None, *, once: bool, dry_run: bool, allow_decrease: bool, source: str
) -> None:
    """Report the usage of the last billing periods and of the present one.

    The exit code is 1 if Waldur did not take something, and 4 if nothing could be reported: all resources of a month
    are held back, or the offering has none.
    """
    name = context.chosen(KIND, instance)

    async def report() -> None:
        async with context.instance(name, dry_run=dry_run) as (configured, plugin_context):
            config: WaldurConfig = configured
            if allow_decrease:
                config = config.model_copy(update={"allow_decrease": True})
            if once or dry_run:
                await report_usage(config, plugin_context, Source(source))
            else:
                await _repeat(config, plugin_context, Source(source))

    context.run(report)


async def _repeat(config: WaldurConfig, context: PluginContext, source: Source) -> None:
    if config.schedule is not None:
        raise click.UsageError("this offering has a schedule, which the daemon follows: use --once here")
    while True:
        try:
            await report_usage(config, context, source)
        except AuditordError as error:
            say(f"not everything was reported: {error}", err=True)
        await anyio.sleep((config.interval or INTERVAL).total_seconds())


@waldur_command.command("explain")
@click.argument("account")
@click.argument("user", required=False)
@choose_month
@choose_instance
@output_option
@pass_context
def explain_command(
    context: CommandContext, *, account: str, user: str | None, month: str | None, instance: str | None, output: str
) -> None:
    """List the records that the amounts of ACCOUNT, or of USER in it, are made of, with the share of each.

    Times are those of the billing zone, amounts are exact to six places; the sum is rounded as it is reported.
    """
    name = context.chosen(KIND, instance)

    async def show() -> None:
        async with context.instance(name, dry_run=True) as (config, plugin_context):
            period, as_of = _period(config, plugin_context, month), plugin_context.now() - config.lag
            shown = _Document(config) if output == "json" else _Lines(config)
            explanation = await explain(
                config, plugin_context.records, account, period, as_of=as_of, user=user, show=shown.share
            )
            shown.sum(explanation, period, as_of)

    context.run(show)


class _Lines:
    """Prints an explanation, with the heading before the first record."""

    def __init__(self, config: WaldurConfig) -> None:
        self._config = config
        self._heading = ("record", "user", "start", "stop", "seconds", *config.backend_components)

    def share(self, share: Share) -> None:
        """One record."""
        if self._heading:
            say_cells(self._heading)
            self._heading = ()
        stop = share.record.stop_time
        texts = (share.record.record_id, share.user or "-", self._local(share.record.start_time))
        amounts = [f"{float(each):.6f}" for each in share.amounts.values()]
        stopped = "running" if stop is None else self._local(stop)
        say_cells([*texts, stopped, f"{share.ticks / 1_000_000:g}", *amounts])

    def sum(self, explanation: Explanation, month: BillingMonth, as_of: datetime) -> None:
        """Print the sum of all shares."""
        amounts = ", ".join(f"{name} {each}" for name, each in explanation.rounded(self._config).items())
        until = f", running ones up to {self._local(as_of)}" if explanation.running else ""
        say(f"{month}: {counted(explanation.records, 'record')}{until}: {amounts}")

    def _local(self, moment: datetime) -> str:
        return moment.astimezone(self._config.zone).isoformat(timespec="seconds")


class _Document:
    """Prints an explanation as JSON, once all is known."""

    def __init__(self, config: WaldurConfig) -> None:
        self._config = config
        self._shares: list[Mapping[str, Any]] = []  # Any: JSON

    def share(self, share: Share) -> None:
        """One record."""
        record = share.record
        times = {"start_time": record.start_time, "stop_time": record.stop_time, "seconds": share.ticks / 1_000_000}
        amounts = {name: f"{float(each):.6f}" for name, each in share.amounts.items()}
        self._shares.append({"record_id": record.record_id, "user": share.user or None, **times, "amounts": amounts})

    def sum(self, explanation: Explanation, month: BillingMonth, as_of: datetime) -> None:
        """Print the shares and their sum."""
        counts = {"records": explanation.records, "running": explanation.running, "as_of": as_of}
        amounts = {name: str(each) for name, each in explanation.rounded(self._config).items()}
        write_json({"month": str(month), "shares": self._shares, "sum": {**counts, "amounts": amounts}})


@waldur_command.command("compare")
@click.argument("accounts", nargs=-1)
@choose_month
@click.option("--tres", type=click.Choice(["ReqTRES", "AllocTRES"]), help="What sacct counts.")
@click.option("--exact", is_flag=True, help="Ask for every run of each job and the exact period, as load-history does.")
@choose_instance
@output_option
@pass_context
def compare_command(
    context: CommandContext,
    accounts: Sequence[str],
    month: str | None,
    tres: Tres | None,
    *,
    exact: bool,
    instance: str | None,
    output: str,
) -> None:
    """Compare the records' amounts with sacct's, by the command line of the Waldur site agent.

    That line takes what jobs asked for (--tres ReqTRES), shows the last run of a requeued job alone, and ends a second
    before the month does. The exit code is 1 if anything differs.
    """
    name = context.chosen(KIND, instance)

    async def compare() -> bool:
        async with context.instance(name, dry_run=True) as (config, plugin_context):
            period = _period(config, plugin_context, month)
            now = plugin_context.now().replace(microsecond=0)  # sacct knows whole seconds
            # Asked for one that has not ended, it counts running jobs up to the present, as the agent's own line does.
            as_of = now - timedelta(seconds=1) if exact else now
            query = exact_query(config, period.window, as_of=as_of) if exact else agent_query(config, period)
            asked = replace(query, tres=tres or query.tres, accounts=[folded(account) for account in accounts])
            say(f"sacct: {shlex.join(asked.argv(config))}", err=output == "json")
            found = await compare_month(config, plugin_context, period, asked, as_of=as_of)
            write_json(found) if output == "json" else _print(found)
            return not found

    sys.exit(0 if context.run(compare) else 1)


def _print(found: Sequence[Difference]) -> None:
    heading = ("account", "user", "component", "records", "sacct", "difference")
    say_cells(heading if found else ["records and sacct agree"])
    for each in found:
        amounts = (str(each.stored), str(each.accounted), f"{each.accounted - each.stored:+}")
        say_cells([each.account, each.user or "(all)", each.component, *amounts])


def _period(config: WaldurConfig, context: PluginContext, month: str | None) -> BillingMonth:
    if month is None:
        return month_at(context.now(), config.zone)
    try:
        read = Month.parse(month)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--month") from error
    return BillingMonth(read.year, read.month, config.zone)


class Unfit(WaldurError):
    """Something must be mended before amounts can be right.

    Remedy:
        mend what is marked FAIL above the text.
    """


@waldur_command.command("diagnose")
@choose_instance
@choose_source
@output_option
@pass_context
def diagnose_command(context: CommandContext, instance: str | None, source: str, output: str) -> None:
    """Look at everything between the records and Waldur; nothing is written.

    One line each: ok, note (amounts may lack something) or FAIL (they will). The exit code is 1 if anything fails.
    """
    name = context.chosen(KIND, instance)

    async def look() -> None:
        found: list[Finding] = []
        async with context.instance(name, dry_run=True) as (config, plugin_context):
            # A person waits for the answer: a server that is away is named at once.
            impatient = config.model_copy(update={"retry_for": config.retry_for * 0})
            async with open_client(impatient, plugin_context.http, show=say) as client:
                async for finding in diagnose(config, plugin_context, client, sacct=source == Source.SACCT.value):
                    found.append(finding)
                    if output == "text":
                        say(as_line(finding))
        if output == "json":
            write_json(found)
        if failed := sum(finding.severity is Severity.FAILURE for finding in found):
            raise Unfit(f"{failed} of the above must be mended")

    context.run(look)
