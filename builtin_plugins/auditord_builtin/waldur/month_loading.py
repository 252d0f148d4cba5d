"""One month after the other into Waldur, with a line for each step; the faults of a month stay with it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from auditord_builtin.waldur.client import AccessDenied, DateIgnored, Resource, WaldurClient
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.dates import DateCheck
from auditord_builtin.waldur.figure_sources import FigureSource
from auditord_builtin.waldur.figures import AccountUsage, folded
from auditord_builtin.waldur.history import History, NotLoaded
from auditord_builtin.waldur.months import BillingMonth, moment_of
from auditord_builtin.waldur.outcomes import MonthOutcome, ResourceOutcome
from auditord_builtin.waldur.planning import plan_month
from auditord_builtin.waldur.plans import Offered, PlannedMonth, Reported, Rules
from auditord_builtin.waldur.state import ReportState
from auditord_builtin.waldur.writing import report_month
from auditord_hookspecs import AuditordError, PluginContext

Say = Callable[[str], None]


class MonthLoading:
    """A loading on its way.

    Args:
        config: which offering.
        context: where the records and the state are, or where sacct runs.
        wanted: what is to be loaded.
        client: of the offering.
        say: gets each line of progress.

    Attributes:
        resources: those that are to be loaded.
        failed: why months are not complete, by name.
        hopeless: no other month can succeed.
    """

    def __init__(
        self, config: WaldurConfig, context: PluginContext, wanted: History, client: WaldurClient, say: Say
    ) -> None:
        self._config, self._wanted, self._client, self._say = config, wanted, client, say
        self._figures = FigureSource(config, context, wanted.source)
        self._dates = DateCheck(client, ReportState(context), self._figures.now)
        self._chosen = frozenset(folded(account) for account in wanted.accounts)
        self.resources: Sequence[Resource] = ()
        self.failed: dict[str, list[str]] = {}
        self.hopeless = False

    async def begin(self) -> None:
        """Ask what the offering has, and whether the records are to be believed.

        Raises:
            AuditordError: nothing can be loaded.
        """
        there = await self._client.resources()
        self.resources = [each for each in there if self._selects(each.backend_id)]
        self._offered = Offered(await self._client.offering(), self.resources, await self._client.offering_users())
        if unknown := self._chosen - {folded(each.backend_id) for each in there}:
            raise NotLoaded(f"the offering has no resource {', '.join(sorted(unknown))}")
        self._stale = await self._figures.staleness()

    async def _rules_of(self, month: BillingMonth) -> Rules:
        wanted = self._wanted
        rules = Rules.of(self._config, self._stale)
        reconcile = wanted.reconcile_stale and await self._figures.covers(month)
        if reconcile != wanted.reconcile_stale:
            self._say(f"⚠️ Records do not reach back to the beginning of {month.name}: nothing is reconciled")
        decrease = rules.allow_decrease or wanted.allow_decrease
        return replace(rules, allow_decrease=decrease, reconcile_stale=reconcile, users=wanted.users)

    def _selects(self, account: str | None) -> bool:
        name = folded(account)
        return bool(name) and self._config.selects(name) and (not self._chosen or name in self._chosen)

    async def load(self, month: BillingMonth) -> None:
        """Load one month; its faults are remembered."""
        self._client.renew_budget()
        problems = self.failed.setdefault(month.name, [])
        try:
            loaded = await self._load(month, problems)
        except AuditordError as error:
            self.hopeless = isinstance(error, DateIgnored) or (isinstance(error, AccessDenied) and error.for_all)
            problems.append(str(error))
            self._say(f"❌ Failed to process {month.name}: {error}")
        else:
            self._told_end(month, loaded, problems)

    def _told_end(self, month: BillingMonth, loaded: int | None, problems: Sequence[str]) -> None:
        if problems:
            self._say(f"❌ {month.name} is not complete in Waldur")
            return
        del self.failed[month.name]
        if loaded is not None:
            self._say(f"✅ Completed processing {month.name} ({loaded} resources)")

    def give_up(self, months: Sequence[BillingMonth]) -> None:
        """Remember the months that are not tried: they are no better off than one that failed."""
        self.failed |= {month.name: ["not tried, see above"] for month in months}

    async def _load(self, month: BillingMonth, problems: list[str]) -> int | None:
        """Load a month: how many resources were right or written, None if there is nothing to load."""
        if not self.resources:
            self._say("ℹ️ No active resources found for offering, skipping month")  # noqa: RUF001 the guide's letter
            return None
        self._say(f"📋 Found {len(self.resources)} active resources to process")
        if not self._client.dry_run:
            await self._dates.settle()
        figures = await self._figures_of(month)
        if not figures and not self._wanted.reconcile_stale:
            self._say(f"ℹ️ No usage data found for {month.name}")  # noqa: RUF001 the same
            return None
        self._say(f"📊 Processing usage data for {len(figures)} accounts")
        planned = await self._planned(month, figures, await self._rules_of(month))
        problems += self._told_held_back(planned)
        outcome = await report_month(self._client, planned.plan, self._dates)
        problems += self._told_outcome(outcome)
        return len(outcome.resources)

    async def _figures_of(self, month: BillingMonth) -> Mapping[str, AccountUsage]:
        figures = await self._figures.month(month)
        return {account: usage for account, usage in figures.items() if self._selects(account)}

    async def _planned(self, month: BillingMonth, figures: Mapping[str, AccountUsage], rules: Rules) -> PlannedMonth:
        now = self._figures.now
        moment = moment_of(month, now)
        if moment is None:
            raise NotLoaded("Waldur would take it for another month now: load it in some hours")
        reported = Reported(
            await self._client.component_usages(month.first_day), await self._client.user_usages(month.first_day)
        )
        closed = now >= month.window.stop
        return plan_month(
            self._config, self._offered, reported, month, figures, moment=moment, closed=closed, rules=rules
        )

    def _told_held_back(self, planned: PlannedMonth) -> Sequence[str]:
        texts = [held.text for held in planned.held_back]
        for text in texts:
            self._say(f"⚠️ {text}")
        if planned.accounts:
            self._say(f"⚠️ No resource has the accounts {', '.join(planned.accounts)}: not loaded")
        return texts

    def _told_outcome(self, outcome: MonthOutcome) -> Sequence[str]:
        """Say what came of each resource; returns what is not in Waldur.

        Raises:
            WaldurError: the month was stopped.
        """
        problems = [problem for each in outcome.resources for problem in self._told_resource(each)]
        if outcome.stopped is not None:
            raise outcome.stopped
        return problems

    def _told_resource(self, outcome: ResourceOutcome) -> Sequence[str]:
        name = outcome.plan.backend_id
        if outcome.totals and not self._client.dry_run:
            self._say(f"📤 Submitted usage for resource {name}: {_shown(outcome.totals)}")
        for component, amount in outcome.lost.items():
            self._say(f"❌ {name}: nobody is billed for {component} {amount}: Waldur takes no usage of that month")
        for problem in outcome.problems:
            self._say(f"❌ {name}: {problem}")
        return [f"{name}: {problem}" for problem in outcome.problems]


def _shown(amounts: Mapping[str, Decimal]) -> str:
    return "{" + ", ".join(f"'{component}': {amount}" for component, amount in amounts.items()) + "}"
