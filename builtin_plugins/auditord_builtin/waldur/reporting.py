"""One report: the last months and the present one, from the records to Waldur."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from auditord_builtin.waldur import metrics
from auditord_builtin.waldur.client import DateIgnored, WaldurClient, WaldurError, open_client
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.figures import month_figures
from auditord_builtin.waldur.freshness import staleness
from auditord_builtin.waldur.months import BillingMonth, moment_of, reported_months
from auditord_builtin.waldur.outcomes import MonthOutcome
from auditord_builtin.waldur.planning import plan_month
from auditord_builtin.waldur.plans import MonthPlan, Offered, PlannedMonth, Reported
from auditord_builtin.waldur.refusals import Refusals
from auditord_builtin.waldur.writing import report_month
from auditord_hookspecs import PluginContext

_IGNORES_DATES: Final = "ignores_dates"
"""In the state: the version of a Waldur that does."""

_REFUSED: Final = "refused"
"""In the state: see :class:`Refusals`."""

LISTED: Final = 20
"""How many names or problems a line of the log has."""


class NotReported(WaldurError):
    """Waldur does not have everything that it should."""


async def report_usage(config: WaldurConfig, context: PluginContext) -> None:
    """Bring Waldur up to date; nothing is sent of what is not known.

    Raises:
        WaldurError: Waldur could not be asked, or did not take something; the rest was reported.
    """
    async with open_client(
        config,
        show=context.show if context.dry_run else None,
        observe=lambda status: metrics.REQUESTS.labels(context.instance, status).inc(),
    ) as client:
        await _Report(config, context, client).run()


class _Report:
    """A report on its way."""

    def __init__(self, config: WaldurConfig, context: PluginContext, client: WaldurClient) -> None:
        self._config, self._context, self._client = config, context, client
        self._now = context.now()
        self._as_of = self._now - config.lag
        self._planned: list[PlannedMonth] = []
        self._problems: list[str] = []
        self._lost = 0
        self._no_dates = False
        self._state: dict[str, Any] = dict(context.state or {})  # Any: JSON of our own
        self._refusals = Refusals(self._state.get(_REFUSED, {}), self._now)

    async def run(self) -> None:
        """Report each month, the oldest first, and conclude."""
        offered = Offered(
            await self._client.offering(), await self._client.resources(), await self._client.offering_users()
        )
        self._tell_components(offered)
        stale = await staleness(self._config, self._context.records, self._now)
        self._no_dates = await self._known_to_ignore_dates()
        for month in self._months:
            await self._month(offered, month, stale)
        self._conclude()

    @property
    def _months(self) -> Sequence[BillingMonth]:
        return reported_months(self._as_of, self._config.zone, self._config.reporting_periods)

    async def _known_to_ignore_dates(self) -> bool:
        """Whether an earlier report has shown that this version of Waldur puts every month into the present one."""
        version: str | None = self._state.get(_IGNORES_DATES)
        return version is not None and version == (await self._client.version()).version

    async def _month(self, offered: Offered, month: BillingMonth, stale: str | None) -> None:
        moment, closed = self._moment(month), self._now >= month.window.stop
        if moment is None:
            self._context.log.info("%s: Waldur would take it for another month now; the next run will do", month.name)
            return
        if closed and self._no_dates:
            self._context.log.warning("%s: not reported, this Waldur does not know dates; it is too old", month.name)
            return
        planned = plan_month(
            self._config,
            offered,
            await self._reported(month),
            month,
            await month_figures(self._config, self._context.records, month, as_of=self._as_of),
            moment=moment,
            closed=closed,
            stale=stale,
        )
        self._planned.append(planned)
        self._tell_held_back(planned)
        outcome = await report_month(self._client, self._without_refused(month, planned.plan))
        self._tell_written(month, planned, outcome)
        await self._note(month, outcome)

    def _without_refused(self, month: BillingMonth, plan: MonthPlan) -> MonthPlan:
        """Leave out what Waldur refused a short while ago, and told of then."""
        wanted = [each for each in plan.resources if not self._refusals.has(month.name, each)]
        self._lost += len(plan.resources) - len(wanted)
        return replace(plan, resources=wanted)

    def _moment(self, month: BillingMonth) -> datetime | None:
        """The instant to send; None while Waldur would take it for another month, or as one to come."""
        present = moment_of(month, self._now)
        # Waldur refuses instants to come: a clock of ours that is a second fast would have everything refused.
        return present if present is None or self._now >= month.window.stop else moment_of(month, self._as_of)

    async def _reported(self, month: BillingMonth) -> Reported:
        return Reported(
            await self._client.component_usages(month.first_day), await self._client.user_usages(month.first_day)
        )

    async def _note(self, month: BillingMonth, outcome: MonthOutcome) -> None:
        """Remember what went wrong; a fault that will stay ends the report.

        Raises:
            WaldurError: nothing else will be taken, either.
        """
        for resource in outcome.resources:
            name = f"{resource.plan.backend_id}, {month.name}"
            if resource.lost:
                self._refusals.add(month.name, resource.plan)
                self._tell_lost(name, resource.lost)
            else:
                self._problems += [f"{name}: {text}" for text in resource.problems]
        if isinstance(outcome.stopped, DateIgnored):
            # Not the end: the present month has a wrong amount until it is reported.
            self._problems.append(str(outcome.stopped))
            self._no_dates = True
            self._state[_IGNORES_DATES] = (await self._client.version()).version
        await self._save()
        if outcome.stopped is not None and not isinstance(outcome.stopped, DateIgnored):
            raise outcome.stopped

    async def _save(self) -> None:
        state = {**self._state, _REFUSED: self._refusals.as_json([month.name for month in self._months])}
        if not self._context.dry_run and state != {_REFUSED: {}, **(self._context.state or {})}:
            await self._context.save_state(state)

    def _tell_lost(self, name: str, lost: Mapping[str, Decimal]) -> None:
        """Tell of what only staff may still report; no failure of the report, the next one would fare no better."""
        self._lost += 1
        right = ", ".join(f"{component} {amount}" for component, amount in lost.items())
        self._context.log.error(
            "%s: Waldur takes nothing more of this month from us, although %s is right: what is missing there is billed"
            " to nobody until it is loaded with a token of staff (auditord waldur load-history)",
            *(name, right),
        )

    def _tell_components(self, offered: Offered) -> None:
        taken = {component.type for component in offered.offering.components if component.takes_usage}
        if missing := [name for name in self._config.backend_components if name not in taken]:
            self._context.log.warning("the offering takes no usage of %s: not reported", ", ".join(missing))

    def _tell_held_back(self, planned: PlannedMonth) -> None:
        for held in planned.held_back:
            if self._context.dry_run:
                self._context.show(held.text)
            else:
                self._context.log.warning("%s", held.text)

    def _tell_written(self, month: BillingMonth, planned: PlannedMonth, outcome: MonthOutcome) -> None:
        totals = sum(len(each.totals) for each in outcome.resources)
        users = sum(each.users for each in outcome.resources)
        done = "would be written" if self._context.dry_run else "written"
        self._context.show(
            f"{month.name}: {totals} totals and {users} amounts of users {done}, of {len(planned.plan.resources)}"
            f" resources; {len(planned.held_back)} resources held back"
        )

    def _conclude(self) -> None:
        """Tell of names without a counterpart, and of what was not taken.

        Raises:
            NotReported: something was not.
        """
        self._tell_names(
            "accounts have usage and no resource", {name for each in self._planned for name in each.accounts}
        )
        self._tell_names(
            "users have usage and are no offering users", {name for each in self._planned for name in each.users}
        )
        if not self._context.dry_run:
            present = BillingMonth.of(self._as_of, self._config.zone).first_day
            metrics.tell_planned(self._context.instance, present, self._config.backend_components, self._planned)
            metrics.tell_outcome(self._context.instance, len(self._problems), self._lost, self._now)
        if self._problems:
            raise NotReported(f"{len(self._problems)} figures are not in Waldur: {_listed(self._problems, '; ')}")

    def _tell_names(self, what: str, names: set[str]) -> None:
        if names:
            self._context.log.warning("%d %s: %s", len(names), what, _listed(sorted(names), ", "))


def _listed(texts: Sequence[str], separator: str) -> str:
    rest = [f"and {len(texts) - LISTED} more"] if len(texts) > LISTED else []
    return separator.join([*texts[:LISTED], *rest])
