"""``auditord waldur load-history``: load the usage of closed months into Waldur, whole months at a time."""

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import date, datetime, timedelta
from typing import TextIO
from uuid import UUID

import anyio
import click
import msgspec
from msgspec.structs import replace
from pydantic import SecretStr

from auditord_builtin.waldur.api import AccessDenied, DateIgnored, Resource, WaldurError
from auditord_builtin.waldur.client import Monotonic, WaldurClient, open_client
from auditord_builtin.waldur.commands import KIND, choose_source, waldur_command
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.planning import Rules
from auditord_builtin.waldur.reporting import NothingReported
from auditord_builtin.waldur.state import ReportState
from auditord_builtin.waldur.usage import BillingMonth, Source, UsageSource, fold_name, moment_of
from auditord_builtin.waldur.writing import MonthReport, ResourceOutcome
from auditord_hookspecs import AuditordError, CommandContext, PluginContext, pass_context
from auditord_hookspecs.config import parse_duration
from auditord_hookspecs.months import months_from
from auditord_hookspecs.terminal import ReadBy, say

Say = Callable[[str], None]


class NotLoaded(WaldurError):
    """Some months are not complete in Waldur.

    Remedy:
        run the same command again: months that are already loaded do not change.
    """


class History(msgspec.Struct, frozen=True):
    """The months to load, and options.

    Args:
        start: any day of the first month; ``end``: any day of the last month.
        accounts: load only these; empty: all.
        delay: a pause between months.
        allow_decrease: amounts may fall.
        reconcile_stale: set amounts of accounts and users without any usage to zero.
        users: also load the amounts of users.
        staff_check: require a staff token.
    """

    start: date
    end: date
    source: Source = Source.STORE
    accounts: Sequence[str] = ()
    delay: timedelta = timedelta(0)
    allow_decrease: bool = False
    reconcile_stale: bool = False
    users: bool = True
    staff_check: bool = True

    def months(self, config: WaldurConfig, now: datetime) -> Sequence[BillingMonth]:
        """Return the months, the oldest first. The last one may be the current month.

        Raises:
            NotLoaded: the end is before the start, or the last month has not begun.
        """
        first, last = (BillingMonth(day.year, day.month, config.zone) for day in (self.start, self.end))
        if self.end < self.start:
            raise NotLoaded(f"the end, {self.end}, is before the start, {self.start}")
        if last.start > now:
            raise NotLoaded(f"{last} has not begun: there is nothing to load")
        return list(months_from(first, last))


async def load_history(
    config: WaldurConfig,
    context: PluginContext,
    wanted: History,
    say: Say,
    *,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    monotonic: Monotonic = time.monotonic,
) -> None:
    """Load month after month. An error in one month does not stop the others.

    Args:
        config: the offering. Its token should be a staff token.
        context: access to the records or to sacct. In a dry run, write requests are only printed.
        wanted: the months.
        say: prints a line of progress.
        sleep: waits between months, in seconds.
        monotonic: returns the seconds of a monotonic clock.

    Raises:
        NotLoaded: some months are not complete. The lines of progress say why.
        NothingReported: the offering has no resource.
        AuditordError: nothing could be loaded at all.
    """
    months = wanted.months(config, context.now())
    say("🚀 Starting historical usage loading")
    show = say if context.dry_run else None
    async with open_client(config, context.http, show=show, monotonic=monotonic) as client:
        # A provider's token may not report past months: Waldur would refuse each request.
        if wanted.staff_check and not (await client.me()).is_staff:
            say("❌ Historical usage loading requires staff user privileges")
            raise NotLoaded(
                "the token is not that of a staff user: give one with --token-file or WALDUR_USER_TOKEN, or try anyway"
                " with --no-staff-check"
            )
        say(f"📊 Will process {len(months)} months of data")
        loading = _Loading(config, context, wanted, client, say)
        await loading.begin()
        for number, month in enumerate(months):
            if number:
                await sleep(wanted.delay.total_seconds())
            say(f"📅 Processing month {number + 1}/{len(months)}: {month}")
            await loading.load(month)
            if loading.hopeless:  # no other month can succeed
                loading.failed |= {str(left): ["not tried, see above"] for left in months[number + 1 :]}
                break
    if context.dry_run:
        say("This was a dry run: nothing was written")
    if not loading.resources:
        raise NothingReported("the offering has no resource to load: is it the right one?")
    if not loading.failed:
        say("🎉 Historical usage loading completed successfully!")
        say(f"Processed {len(months)} months from {wanted.start} to {wanted.end}")
        return
    say(f"❌ Historical usage loading failed for {len(loading.failed)} of {len(months)} months:")
    for name, reasons in loading.failed.items():
        say(f"   {name}: {reasons[0]}" + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""))
    failed = ", ".join(loading.failed)
    raise NotLoaded(f"{failed}: not complete in Waldur; run the same command again to load the rest")


class _Loading:
    """One run of load-history.

    Attributes:
        resources: the resources to load.
        failed: the reasons why months are not complete, by month.
        hopeless: True if no other month can succeed.
    """

    def __init__(
        self, config: WaldurConfig, context: PluginContext, wanted: History, client: WaldurClient, say: Say
    ) -> None:
        self._config, self._wanted, self._client, self._say = config, wanted, client, say
        self._usage = UsageSource(config, context, wanted.source)
        self._report = MonthReport(config, client, ReportState(context), self._usage.now)
        self._chosen = frozenset(fold_name(account) for account in wanted.accounts)
        self.resources: Sequence[Resource] = ()
        self.failed: dict[str, list[str]] = {}
        self.hopeless = False

    async def begin(self) -> None:
        """Fetch the offering, and check whether the records are up to date.

        Raises:
            AuditordError: nothing can be loaded.
        """
        offered = await self._report.fetch_offering()
        self.resources = [each for each in offered.resources if self._selects(each.backend_id)]
        if unknown := self._chosen - {fold_name(each.backend_id) for each in offered.resources}:
            raise NotLoaded(f"the offering has no resource {', '.join(sorted(unknown))}")
        self._offered = replace(offered, resources=self.resources)
        self._stale = await self._usage.staleness()

    def _selects(self, account: str | None) -> bool:
        name = fold_name(account)
        return bool(name) and self._config.selects(name) and (not self._chosen or name in self._chosen)

    async def load(self, month: BillingMonth) -> None:
        """Load one month, and record its errors in ``failed``."""
        self._client.renew_budget()
        problems = self.failed.setdefault(str(month), [])
        try:
            loaded = await self._load(month, problems)
        except AuditordError as error:
            self.hopeless = isinstance(error, DateIgnored) or (isinstance(error, AccessDenied) and error.for_all)
            problems.append(str(error))
            self._say(f"❌ Failed to process {month}: {error}")
        else:
            if problems:
                self._say(f"❌ {month} is not complete in Waldur")
                return
            del self.failed[str(month)]
            if loaded is not None:
                self._say(f"✅ Completed processing {month} ({loaded} resources)")

    async def _load(self, month: BillingMonth, problems: list[str]) -> int | None:
        """Load a month, and return the number of resources that were processed, or None if there is nothing to load."""
        if not self.resources:
            self._say("ℹ️ No active resources found for offering, skipping month")  # noqa: RUF001 the guide's letter
            return None
        self._say(f"📋 Found {len(self.resources)} active resources to process")
        await self._report.settle()
        used = await self._usage.month(month)
        usage = {account: each for account, each in used.items() if self._selects(account)}
        if not usage and not self._wanted.reconcile_stale:
            self._say(f"ℹ️ No usage data found for {month}")  # noqa: RUF001 the same
            return None
        self._say(f"📊 Processing usage data for {len(usage)} accounts")
        rules, wanted = Rules.of(self._config, self._stale), self._wanted
        reconcile = wanted.reconcile_stale and await self._usage.covers(month)
        if reconcile != wanted.reconcile_stale:
            self._say(f"⚠️ Records do not reach back to the beginning of {month}: nothing is reconciled")
        decrease = rules.allow_decrease or wanted.allow_decrease
        rules = replace(rules, allow_decrease=decrease, reconcile_stale=reconcile, users=wanted.users)
        moment = moment_of(month, self._usage.now)
        if moment is None:
            raise NotLoaded("Waldur would count it for another month now: load it in a few hours")
        planned = await self._report.plan(self._offered, month, usage, moment, rules)
        problems += [held.text for held in planned.held_back]
        for held in planned.held_back:
            self._say(f"⚠️ {held.text}")
        if planned.accounts:
            self._say(f"⚠️ No resource for the accounts {', '.join(planned.accounts)}: not loaded")
        outcome = await self._report.write(planned.plan)
        problems += [problem for each in outcome.resources for problem in self._say_resource(each)]
        if outcome.stopped is not None:
            raise outcome.stopped
        return len(outcome.resources)

    def _say_resource(self, outcome: ResourceOutcome) -> Sequence[str]:
        name = outcome.plan.backend_id
        if outcome.totals and not self._client.dry_run:
            totals = ", ".join(f"'{component}': {amount}" for component, amount in outcome.totals.items())
            self._say(f"📤 Submitted usage for resource {name}: {{{totals}}}")
        for component, amount in outcome.lost.items():
            self._say(f"❌ {name}: {component} {amount} is billed to no user: Waldur accepts no usage of that month")
        for problem in outcome.problems:
            self._say(f"❌ {name}: {problem}")
        return [f"{name}: {problem}" for problem in outcome.problems]


TOKEN_VARIABLE = "WALDUR_USER_TOKEN"  # noqa: S105 the name of a variable


def _duration(text: str) -> timedelta:
    """Parse ``5s`` or ``1m``. ISO 8601 is accepted only in files."""
    duration = parse_duration(text)
    if not isinstance(duration, timedelta):
        raise ValueError(f"{text!r} is not a duration such as 5s")  # noqa: TRY004 of a text
    return duration


_DAY = click.DateTime(formats=["%Y-%m-%d"])


@waldur_command.command("load-history")
@click.option("--start-date", type=_DAY, required=True, help="A day of the first month; whole months are loaded.")
@click.option("--end-date", type=_DAY, required=True, help="A day of the last month.")
@choose_source
@click.option("--offering-uuid", type=click.UUID, help="Which offering, if several are configured.")
@click.option("--instance", metavar="NAME", help="The same, by its name in the configuration.")
@click.option(
    "--user-token",
    envvar=TOKEN_VARIABLE,
    show_envvar=True,
    help="The token of a staff user, instead of the configured one. Other users of this host can see it: better use the"
    " variable or a file.",
)
@click.option("--token-file", type=click.File(), help="The same token in a file, or - for standard input.")
@click.option("--dry-run", is_flag=True, help="Read and compute everything, print the requests, write nothing.")
@click.option(
    "--delay",
    type=ReadBy("DURATION", _duration),
    default="0s",
    show_default=True,
    help="A pause between months, such as 5s.",
)
@click.option(
    "--resource",
    "--resource-backend-id",
    "resources",
    multiple=True,
    metavar="ACCOUNT",
    help="Load only this account; may be repeated.",
)
@click.option("--allow-decrease", is_flag=True, help="Allow amounts to decrease. Records must still be up to date.")
@click.option(
    "--reconcile-stale",
    is_flag=True,
    help="Set Waldur's amounts to zero for accounts and users without usage in the month, even if no account has any.",
)
@click.option("--skip-user-usage", is_flag=True, help="Load only totals, no amounts of users.")
@click.option("--no-staff-check", is_flag=True, help="Try with any token: Waldur accepts some months from others, too.")
@pass_context
def load_history_command(
    context: CommandContext,
    *,
    start_date: datetime,
    end_date: datetime,
    source: str,
    offering_uuid: UUID | None,
    instance: str | None,
    user_token: str | None,
    token_file: TextIO | None,
    dry_run: bool,
    delay: timedelta,
    resources: Sequence[str],
    allow_decrease: bool,
    reconcile_stale: bool,
    skip_user_usage: bool,
    no_staff_check: bool,
) -> None:
    """Load the usage of past months into Waldur, with the token of a staff user.

    Amounts are absolute: loading a month again loads only the missing amounts. The exit code is 1 if a month is not
    complete, 4 if the offering has no resource.
    """
    wanted = History(
        start_date.date(),
        end_date.date(),
        Source(source),
        resources,
        delay,
        allow_decrease=allow_decrease,
        reconcile_stale=reconcile_stale,
        users=not skip_user_usage,
        staff_check=not no_staff_check,
    )
    token = user_token if token_file is None else token_file.read().strip()
    if token == "":
        raise click.UsageError("the token is empty")
    names = [context.choose(KIND, instance)] if offering_uuid is None or instance else context.instances(KIND)

    async def load() -> None:
        found = list(names) if offering_uuid is None else []
        for name in [] if offering_uuid is None else names:
            async with context.instance(name, dry_run=True) as (config, _):
                found += [name] if config.waldur_offering_uuid == offering_uuid else []
        if len(found) != 1:
            several = f"several report to it ({', '.join(found)}): give --instance"
            raise AuditordError(f"offering {offering_uuid}: {several if found else 'no instance reports to it'}")
        async with context.instance(found[0], dry_run=dry_run) as (config, plugin_context):
            update = {} if token is None else {"waldur_api_token": SecretStr(token)}
            await load_history(config.model_copy(update=update), plugin_context, wanted, say)

    context.run(load)
