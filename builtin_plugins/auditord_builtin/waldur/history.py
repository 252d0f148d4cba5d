"""Loading the usage of months that are over into Waldur, whole months at a time.

Amounts are absolute, so loading again changes nothing: whatever failed is mended by the same call. The lines that are
printed are those of the guide to Waldur's site agent, for people and scripts who know them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum

from auditord_builtin.waldur.client import AccessDenied, Clock, DateIgnored, WaldurClient, WaldurError, open_client
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.figures import AccountUsage, month_figures
from auditord_builtin.waldur.freshness import staleness
from auditord_builtin.waldur.months import BillingMonth, moment_of
from auditord_builtin.waldur.outcomes import MonthOutcome, ResourceOutcome
from auditord_builtin.waldur.planning import folded, plan_month
from auditord_builtin.waldur.plans import Offered, PlannedMonth, Reported
from auditord_builtin.waldur.sacct_figures import sacct_month_figures
from auditord_builtin.waldur.writing import report_month
from auditord_hookspecs import AuditordError, PluginContext

Say = Callable[[str], None]


class NotLoaded(WaldurError):
    """Waldur does not have everything that was to be loaded."""


class Source(Enum):
    """Where the figures come from."""

    STORE = "store"
    SACCT = "sacct"


@dataclass(frozen=True, slots=True)
class History:
    """What is to be loaded.

    Args:
        start: a day of the first month.
        end: a day of the last month.
        source: where the figures come from.
        accounts: the only ones to load; empty: all.
        delay: a pause between months.
    """

    start: date
    end: date
    source: Source = Source.STORE
    accounts: Sequence[str] = ()
    delay: timedelta = timedelta(0)

    def months(self, config: WaldurConfig, now: datetime) -> Sequence[BillingMonth]:
        """The months, the oldest first; the one that is going on may be the last.

        Raises:
            NotLoaded: they do not follow each other, or have not begun.
        """
        first, last = (BillingMonth(day.year, day.month, config.zone) for day in (self.start, self.end))
        if self.end < self.start:
            raise NotLoaded(f"the end, {self.end}, is before the start, {self.start}")
        if last.window.start > now:
            raise NotLoaded(f"{last.name} has not begun: there is nothing to load of it")
        months = [first]
        while months[-1].first_day < last.first_day:
            months.append(months[-1].next())
        return months


async def load_history(
    config: WaldurConfig, context: PluginContext, wanted: History, say: Say, *, clock: Clock | None = None
) -> None:
    """Load month after month; what fails in one does not keep the others out.

    Args:
        config: which offering; its token must be one of staff.
        context: where the records are, or where sacct runs; for a dry run, requests that would write are only said.
        wanted: which months.
        say: gets each line of progress.
        clock: time and chance, for tests.

    Raises:
        NotLoaded: something is not in Waldur; what it is has been said.
        AuditordError: nothing could be loaded at all.
    """
    months = wanted.months(config, context.now())
    say("🚀 Starting historical usage loading")
    time = clock or Clock()
    async with open_client(config, show=say if context.dry_run else None, clock=time) as client:
        await _check_staff(client, say)
        say(f"📊 Will process {len(months)} months of data")
        loading = _Loading(config, context, wanted, client, say)
        await loading.begin()
        for number, month in enumerate(months):
            if number:
                await time.sleep(wanted.delay.total_seconds())
            say(f"📅 Processing month {number + 1}/{len(months)}: {month.name}")
            await loading.load(month)
            if loading.hopeless:
                loading.give_up(months[number + 1 :])
                break
    if context.dry_run:
        say("This was a dry run: nothing was written")
    _conclude(wanted, months, loading.failed, say)


async def _check_staff(client: WaldurClient, say: Say) -> None:
    # A provider's token may not bill months that are over: each of its requests would be refused.
    if not (await client.me()).is_staff:
        say("❌ Historical usage loading requires staff user privileges")
        raise NotLoaded("the token is not one of staff: give one with --token-file or WALDUR_USER_TOKEN")


def _conclude(wanted: History, months: Sequence[BillingMonth], failed: Mapping[str, Sequence[str]], say: Say) -> None:
    """Say how it ended.

    Raises:
        NotLoaded: not well.
    """
    if not failed:
        say("🎉 Historical usage loading completed successfully!")
        say(f"Processed {len(months)} months from {wanted.start} to {wanted.end}")
        return
    say(f"❌ Historical usage loading failed for {len(failed)} of {len(months)} months:")
    for name, reasons in failed.items():
        say(f"   {name}: {reasons[0]}" + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""))
    raise NotLoaded(f"{', '.join(failed)} not complete in Waldur; the same call again loads what is missing")


class _Loading:
    """A loading on its way.

    Attributes:
        failed: why months are not complete, by name.
        hopeless: no other month can succeed.
    """

    def __init__(
        self, config: WaldurConfig, context: PluginContext, wanted: History, client: WaldurClient, say: Say
    ) -> None:
        self._config, self._context, self._wanted, self._client, self._say = config, context, wanted, client, say
        self._now = context.now()
        self._chosen = frozenset(folded(account) for account in wanted.accounts)
        self._stale: str | None = None
        self.failed: dict[str, list[str]] = {}
        self.hopeless = False

    async def begin(self) -> None:
        """Ask what the offering has, and whether the records are to be believed.

        Raises:
            AuditordError: nothing can be loaded.
        """
        resources = await self._client.resources()
        self._offered = Offered(
            await self._client.offering(),
            [each for each in resources if self._selects(each.backend_id)],
            await self._client.offering_users(),
        )
        if unknown := self._chosen - {folded(each.backend_id) for each in resources}:
            raise NotLoaded(f"the offering has no resource {', '.join(sorted(unknown))}")
        if self._wanted.source is Source.STORE:
            self._stale = await staleness(self._config, self._context.records, self._now)

    def _selects(self, account: str | None) -> bool:
        name = folded(account)
        return bool(name) and self._config.selects(name) and (not self._chosen or name in self._chosen)

    async def load(self, month: BillingMonth) -> None:
        """Load one month; its faults are remembered."""
        self._client.renew_budget()
        problems = self.failed.setdefault(month.name, [])
        try:
            await self._load(month, problems)
        except AuditordError as error:
            self.hopeless = isinstance(error, AccessDenied | DateIgnored)
            problems.append(str(error))
            self._say(f"❌ Failed to process {month.name}: {error}")
        if not problems:
            del self.failed[month.name]

    def give_up(self, months: Sequence[BillingMonth]) -> None:
        """Remember the months that are not tried: they are no better off than one that failed."""
        self.failed |= {month.name: ["not tried, see above"] for month in months}

    async def _load(self, month: BillingMonth, problems: list[str]) -> None:
        if not self._offered.resources:
            self._say("ℹ️ No active resources found for offering, skipping month")  # noqa: RUF001 the guide's letter
            return
        self._say(f"📋 Found {len(self._offered.resources)} active resources to process")
        figures = await self._figures(month)
        if not figures:
            self._say(f"ℹ️ No usage data found for {month.name}")  # noqa: RUF001 the same
            return
        self._say(f"📊 Processing usage data for {len(figures)} accounts")
        planned = await self._planned(month, figures)
        problems += self._told_held_back(planned)
        problems += self._told_outcome(month, await report_month(self._client, planned.plan))

    async def _figures(self, month: BillingMonth) -> Mapping[str, AccountUsage]:
        if self._wanted.source is Source.SACCT:
            figures = await sacct_month_figures(self._config, self._context, month, as_of=self._now)
        else:
            as_of = self._now - self._config.lag
            figures = await month_figures(self._config, self._context.records, month, as_of=as_of)
        return {account: usage for account, usage in figures.items() if self._selects(account)}

    async def _planned(self, month: BillingMonth, figures: Mapping[str, AccountUsage]) -> PlannedMonth:
        moment = moment_of(month, self._now)
        if moment is None:
            raise NotLoaded("Waldur would take it for another month now: load it in some hours")
        reported = Reported(
            await self._client.component_usages(month.first_day), await self._client.user_usages(month.first_day)
        )
        closed = self._now >= month.window.stop
        offered = self._offered
        return plan_month(
            self._config, offered, reported, month, figures, moment=moment, closed=closed, stale=self._stale
        )

    def _told_held_back(self, planned: PlannedMonth) -> Sequence[str]:
        texts = [held.text for held in planned.held_back]
        for text in texts:
            self._say(f"⚠️ {text}")
        if planned.accounts:
            self._say(f"⚠️ No resource has the accounts {', '.join(planned.accounts)}: not loaded")
        return texts

    def _told_outcome(self, month: BillingMonth, outcome: MonthOutcome) -> Sequence[str]:
        """Say what came of each resource; returns what is not in Waldur.

        Raises:
            WaldurError: the month was stopped.
        """
        problems = [problem for each in outcome.resources for problem in self._told_resource(each)]
        if outcome.stopped is not None:
            raise outcome.stopped
        if not problems:
            self._say(f"✅ Completed processing {month.name} ({len(outcome.resources)} resources)")
        return problems

    def _told_resource(self, outcome: ResourceOutcome) -> Sequence[str]:
        name = outcome.plan.backend_id
        if outcome.totals and not self._context.dry_run:
            self._say(f"📤 Submitted usage for resource {name}: {_shown(outcome.totals)}")
        for component, amount in outcome.lost.items():
            self._say(f"❌ {name}: nobody is billed for {component} {amount}: Waldur takes no usage of that month")
        for problem in outcome.problems:
            self._say(f"❌ {name}: {problem}")
        return [f"{name}: {problem}" for problem in outcome.problems]


def _shown(amounts: Mapping[str, Decimal]) -> str:
    return "{" + ", ".join(f"'{component}': {amount}" for component, amount in amounts.items()) + "}"
