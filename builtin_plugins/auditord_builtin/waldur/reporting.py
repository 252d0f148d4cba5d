"""One report: the last months and the present one, from the records to Waldur."""

from collections.abc import Awaitable
from dataclasses import replace

from auditord_builtin.waldur import metrics
from auditord_builtin.waldur.client import WaldurClient, open_client
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.errors import AccessDenied, DateIgnored, WaldurError
from auditord_builtin.waldur.month_report import MonthReport
from auditord_builtin.waldur.months import BillingMonth, moment_of, reported_months
from auditord_builtin.waldur.outcomes import MonthOutcome
from auditord_builtin.waldur.plans import Offered, PlannedMonth, Rules
from auditord_builtin.waldur.state import Refusals, ReportState, identity_of
from auditord_builtin.waldur.summary import Summary
from auditord_builtin.waldur.usage_source import Source, UsageSource
from auditord_hookspecs import PluginContext


async def report_usage(config: WaldurConfig, context: PluginContext, source: Source = Source.STORE) -> None:
    """Bring Waldur up to date; nothing is sent of what is not known.

    Raises:
        NothingReported: there was nothing that could be reported.
        WaldurError: Waldur could not be asked, or did not take something; the rest was reported.
    """

    def count(status: int | None) -> None:
        metrics.REQUESTS.labels(context.instance, "none" if status is None else str(status)).inc()

    show = context.show if context.dry_run else None
    async with open_client(config, context.http, show=show, observe=count) as client:
        await _Report(config, context, client, UsageSource(config, context, source)).run()


class _Report:
    """A report on its way."""

    def __init__(self, config: WaldurConfig, context: PluginContext, client: WaldurClient, usage: UsageSource) -> None:
        self._config, self._context, self._client, self._usage = config, context, client, usage
        self._state = ReportState(context)
        self._report = MonthReport(config, client, self._state, usage.now)
        self._summary = Summary(config, context, usage.now, usage.as_of)
        self._months = reported_months(usage.as_of, config.zone, config.reporting_periods)

    async def run(self) -> None:
        """Report each month, the oldest first, and conclude."""
        offered = await self._report.offered()
        self._summary.offering(offered.offering)
        identity = identity_of(self._config, await self._client.me())
        self._refusals = Refusals(self._state.refused, self._usage.now, identity)
        version = self._state.ignores_dates
        if version is not None and version != (await self._client.version()).version:
            self._state.ignores_dates = None  # another Waldur may put months that are over where they belong
        rules = Rules.of(self._config, await self._usage.staleness())
        for month in self._months:
            await self._isolated(month, self._report.settle())
            await self._isolated(month, self._month(offered, month, rules))
        self._summary.conclude()

    async def _isolated(self, month: BillingMonth, step: Awaitable[None]) -> None:
        """Take a step of reporting a month; its fault does not keep the next one from being reported.

        Raises:
            AccessDenied: the token is not valid; no request will succeed.
            AuditordError: there are no amounts.
        """
        try:
            await step
        except DateIgnored as error:
            self._state.ignores_dates = (await self._client.version()).version
            self._summary.problems.append(str(error))
        except WaldurError as error:
            if isinstance(error, AccessDenied) and error.for_all:
                raise
            self._summary.problems.append(f"{month} was not reported any further: {error}")
        finally:
            months = [str(each) for each in self._months]
            self._state.refused = self._refusals.as_json(months)
            self._state.forget_months(months)
            await self._state.save()

    async def _month(self, offered: Offered, month: BillingMonth, rules: Rules) -> None:
        now = self._usage.now
        closed, moment = now >= month.window.stop, moment_of(month, now)
        if moment is not None and not closed:
            # Waldur refuses instants to come: a clock of ours that is a second fast would have everything refused.
            moment = moment_of(month, self._usage.as_of)
        if moment is None:
            self._context.log.info("%s: Waldur would take it for another month now; the next run will do", str(month))
            return
        if closed and self._state.ignores_dates is not None:
            self._context.log.warning(
                "%s: not reported, this Waldur does not know dates; it is too old (see reporting_periods)", str(month)
            )
            return
        usage = await self._usage.month(month)
        planned = await self._report.plan(offered, month, usage, moment, rules)
        self._summary.planned(planned)
        await self._write(month, planned)

    async def _write(self, month: BillingMonth, planned: PlannedMonth) -> None:
        """Write all but what Waldur refused a short while ago, which was logged then."""
        plan = planned.plan
        wanted = [each for each in plan.resources if not self._refusals.has(str(month), each)]
        self._summary.closed(len(plan.resources) - len(wanted))
        outcome = await self._report.write(replace(plan, resources=wanted))
        self._summary.written(month, planned, outcome)
        self._note(month, outcome)
        if outcome.stopped is not None:
            raise outcome.stopped

    def _note(self, month: BillingMonth, outcome: MonthOutcome) -> None:
        """Remember what went wrong."""
        for resource in outcome.resources:
            name = f"{resource.plan.backend_id}, {month}"
            if resource.lost:
                self._refusals.add(str(month), resource.plan)
                self._summary.lost(name, resource.lost)
            else:
                for text in resource.problems:
                    self._summary.problems.append(f"{name}: {text}")
                if resource.tried and not resource.problems:
                    self._state.reported(str(month), resource.plan)
