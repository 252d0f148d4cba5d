"""One report: the last months and the present one, from the records to Waldur."""

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import datetime

from auditord_builtin.waldur import metrics
from auditord_builtin.waldur.client import AccessDenied, DateIgnored, WaldurClient, WaldurError, open_client
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.dates import DateCheck
from auditord_builtin.waldur.figure_sources import FigureSource, Source
from auditord_builtin.waldur.months import BillingMonth, moment_of, reported_months
from auditord_builtin.waldur.outcomes import MonthOutcome
from auditord_builtin.waldur.planning import plan_month
from auditord_builtin.waldur.plans import MonthPlan, Offered, PlannedMonth, Reported, Rules
from auditord_builtin.waldur.refusals import Refusals, identity_of
from auditord_builtin.waldur.state import ReportState
from auditord_builtin.waldur.summary import Summary
from auditord_builtin.waldur.writing import report_month
from auditord_hookspecs import PluginContext


async def report_usage(config: WaldurConfig, context: PluginContext, source: Source = Source.STORE) -> None:
    """Bring Waldur up to date; nothing is sent of what is not known.

    Args:
        config: the instance.
        context: its records and its state, or where sacct runs.
        source: where the figures come from.

    Raises:
        NothingReported: there was nothing that could be reported.
        WaldurError: Waldur could not be asked, or did not take something; the rest was reported.
    """
    async with open_client(
        config,
        show=context.show if context.dry_run else None,
        observe=lambda status: metrics.REQUESTS.labels(context.instance, status).inc(),
    ) as client:
        await _Report(config, context, client, FigureSource(config, context, source)).run()


class _Report:
    """A report on its way."""

    def __init__(
        self, config: WaldurConfig, context: PluginContext, client: WaldurClient, figures: FigureSource
    ) -> None:
        self._config, self._context, self._client, self._figures = config, context, client, figures
        self._state = ReportState(context)
        self._dates = DateCheck(client, self._state, figures.now)
        self._summary = Summary(config, context, figures.now, figures.as_of)
        self._months = reported_months(figures.as_of, config.zone, config.reporting_periods)

    async def run(self) -> None:
        """Report each month, the oldest first, and conclude."""
        offered = Offered(
            await self._client.offering(), await self._client.resources(), await self._client.offering_users()
        )
        self._summary.offering(offered.offering)
        self._refusals = await self._known_refusals()
        await self._forget_dates_of_another_version()
        rules = Rules.of(self._config, await self._figures.staleness())
        for month in self._months:
            await self._isolated(month, self._settled())
            await self._isolated(month, self._month(offered, month, rules))
        self._summary.conclude()

    async def _known_refusals(self) -> Refusals:
        identity = identity_of(self._config, await self._client.me())
        return Refusals(self._state.refused, self._figures.now, identity)

    async def _forget_dates_of_another_version(self) -> None:
        """Try months that are over again when the Waldur that put them into the present one is another."""
        version = self._state.ignores_dates
        if version is not None and version != (await self._client.version()).version:
            self._state.ignores_dates = None

    async def _isolated(self, month: BillingMonth, step: Awaitable[None]) -> None:
        """Take a step of reporting a month; its fault does not keep the next one from being reported.

        Raises:
            AccessDenied: the token is not valid; no request will succeed.
            AuditordError: there are no figures.
        """
        try:
            await step
        except DateIgnored as error:
            self._state.ignores_dates = (await self._client.version()).version
            self._summary.problem(str(error))
        except WaldurError as error:
            if isinstance(error, AccessDenied) and error.for_all:
                raise
            self._summary.problem(f"{month.name} was not reported any further: {error}")
        finally:
            await self._save()

    async def _settled(self) -> None:
        """Look at amounts of months that are over whose arrival was not seen."""
        if not self._client.dry_run:
            await self._dates.settle()

    async def _month(self, offered: Offered, month: BillingMonth, rules: Rules) -> None:
        moment, closed = self._moment(month), self._figures.now >= month.window.stop
        if moment is None:
            self._context.log.info("%s: Waldur would take it for another month now; the next run will do", month.name)
            return
        if closed and self._state.ignores_dates is not None:
            self._context.log.warning(
                "%s: not reported, this Waldur does not know dates; it is too old (see reporting_periods)", month.name
            )
            return
        figures, reported = await self._figures.month(month), await self._reported(month)
        planned = plan_month(self._config, offered, reported, month, figures, moment=moment, closed=closed, rules=rules)
        self._summary.planned(planned)
        await self._write(month, planned)

    async def _write(self, month: BillingMonth, planned: PlannedMonth) -> None:
        outcome = await report_month(self._client, self._without_refused(month, planned.plan), self._dates)
        self._summary.written(month, planned, outcome)
        self._note(month, outcome)
        if outcome.stopped is not None:
            raise outcome.stopped

    def _without_refused(self, month: BillingMonth, plan: MonthPlan) -> MonthPlan:
        """Leave out what Waldur refused a short while ago, and told of then."""
        wanted = [each for each in plan.resources if not self._refusals.has(month.name, each)]
        self._summary.closed(len(plan.resources) - len(wanted))
        return replace(plan, resources=wanted)

    def _moment(self, month: BillingMonth) -> datetime | None:
        """The instant to send; None while Waldur would take it for another month, or as one to come."""
        now = self._figures.now
        present = moment_of(month, now)
        # Waldur refuses instants to come: a clock of ours that is a second fast would have everything refused.
        return present if present is None or now >= month.window.stop else moment_of(month, self._figures.as_of)

    async def _reported(self, month: BillingMonth) -> Reported:
        return Reported(
            await self._client.component_usages(month.first_day), await self._client.user_usages(month.first_day)
        )

    def _note(self, month: BillingMonth, outcome: MonthOutcome) -> None:
        """Remember what went wrong."""
        for resource in outcome.resources:
            name = f"{resource.plan.backend_id}, {month.name}"
            if resource.lost:
                self._refusals.add(month.name, resource.plan)
                self._summary.lost(name, resource.lost)
            else:
                for text in resource.problems:
                    self._summary.problem(f"{name}: {text}")

    async def _save(self) -> None:
        self._state.refused = self._refusals.as_json(_names(self._months))
        await self._state.save()


def _names(months: Sequence[BillingMonth]) -> Sequence[str]:
    return [month.name for month in months]
