"""The plugin kind ``waldur``: runs that report the last months and the current one, and a check for doctor."""

from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import ClassVar, Final

from msgspec.structs import replace

from auditord_builtin.waldur import metrics
from auditord_builtin.waldur.api import AccessDenied, DateIgnored, Offering, WaldurError
from auditord_builtin.waldur.client import WaldurClient, open_client
from auditord_builtin.waldur.config import INTERVAL, WaldurConfig
from auditord_builtin.waldur.importing import detect, import_config
from auditord_builtin.waldur.planning import Offered, PlannedMonth, Rules
from auditord_builtin.waldur.state import Refusals, ReportState, identity_of
from auditord_builtin.waldur.usage import BillingMonth, Source, UsageSource, moment_of, month_at, months_to_report
from auditord_builtin.waldur.writing import MonthOutcome, MonthReport
from auditord_hookspecs import Context, PluginContext, PluginKind
from auditord_hookspecs.checks import Finding, Severity
from auditord_hookspecs.wording import counted, format_list

LISTED: Final = 20
"""The maximum number of names or problems in a log line."""


class NotReported(WaldurError):
    """Some amounts are not in Waldur.

    Remedy:
        see the reason for each amount or month in the message; the next run reports the missing amounts.
        `auditord waldur diagnose` checks for causes.
    """


class NothingReported(WaldurError):
    """No amount of a month could be reported, although no request failed.

    Remedy:
        change what the message names: the configured components, `account_prefixes`, or the offering's resources. If
        all resources are held back, `auditord waldur report --dry-run` shows why; --allow-decrease lets amounts fall
        once.
    """

    exit_status: ClassVar[int] = 4


class Summary:
    """Collects, logs and shows the results of a report.

    Args:
        now: the current time, which becomes the time of the last success.
        as_of: the instant that determines the current month.
    """

    def __init__(self, config: WaldurConfig, context: PluginContext, now: datetime, as_of: datetime) -> None:
        self._config, self._context, self._now = config, context, now
        self._current_month = month_at(as_of, config.zone).first_day
        self._planned: list[PlannedMonth] = []
        self.problems: list[str] = []
        """Why amounts are not in Waldur: one reason for each amount, or for the rest of a month that failed."""
        self._refused_months = 0
        self._accepted: Sequence[str] = ()

    def check_offering(self, offering: Offering) -> None:
        """Log the configured components for which the offering accepts no usage."""
        accepted = {component.type for component in offering.components if component.takes_usage}
        self._accepted = [name for name in self._config.backend_components if name in accepted]
        if missing := [name for name in self._config.backend_components if name not in accepted]:
            self._context.log.warning("the offering accepts no usage of %s: not reported", ", ".join(missing))

    def add_plan(self, month: PlannedMonth) -> None:
        """Log the resources of a month that are held back, or show them in a dry run."""
        self._planned.append(month)
        for resource in month.held_back:
            if self._context.dry_run:
                self._context.show(resource.text)
            else:
                self._context.log.warning("%s", resource.text)

    def show_outcome(self, month: BillingMonth, planned: PlannedMonth, outcome: MonthOutcome) -> None:
        """Show how many amounts of a month were written, or would be written by a dry run."""
        totals = sum(len(each.totals) for each in outcome.resources)
        users = sum(each.users for each in outcome.resources)
        done = "would be written" if self._context.dry_run else "written"
        self._context.show(
            f"{month}: {counted(totals, 'total')} and {counted(users, 'user amount')} of "
            f"{counted(len(planned.plan.resources), 'resource')} {done}; "
            f"{counted(len(planned.held_back), 'resource')} held back"
        )

    def count_refused(self, count: int = 1) -> None:
        """Count months of resources for which Waldur accepts no more usage."""
        self._refused_months += count

    def log_lost(self, name: str, lost: Mapping[str, Decimal]) -> None:
        """Log the amounts of a resource's month that only a token of Waldur's staff may still report.

        They do not fail the run, since every later run would fail in the same way.

        Args:
            name: the resource and the month, for the log.
            lost: the correct amounts by component.
        """
        self.count_refused()
        correct = format_list([f"{component} {amount}" for component, amount in lost.items()], LISTED)
        self._context.log.error(
            "%s: Waldur accepts no more usage of this month from us, although %s is right. The difference is not"
            " billed until it is loaded with a token of staff (auditord waldur load-history)",
            *(name, correct),
        )

    def conclude(self) -> None:
        """Log names without a counterpart, set the metrics, and raise if the report failed.

        Raises:
            NotReported: some amounts are not in Waldur.
            NothingReported: no amount of a month could be reported.
        """
        accounts = {name for each in self._planned for name in each.accounts}
        users = {name for each in self._planned for name in each.users}
        self._warn_of("account has usage but no resource", "accounts have usage but no resource", accounts)
        self._warn_of(
            "user has usage but is not an offering user", "users have usage but are not offering users", users
        )
        nothing = (
            None
            if self._accepted
            else "the offering accepts no usage of any configured component: nothing was reported"
        )
        for month in self._planned if nothing is None else ():
            if not month.reported:
                prefixes = ", ".join(self._config.account_prefixes)
                chosen = f" that begins with {prefixes}" if prefixes else ""
                nothing = f"the offering has no resource with a backend_id{chosen}: nothing was reported"
            elif month.held_back_whole == month.reported:
                held_back = f"{month.plan.month:%Y-%m}: all resources ({month.reported}) are held back"
                nothing = f"{held_back}: nothing was reported; the warnings in the log say why"
            if nothing is not None:
                break
        if not self._context.dry_run:
            task, problems = self._context.instance, len(self.problems)
            metrics.set_planned(task, self._current_month, self._config.backend_components, self._planned)
            metrics.PROBLEMS.labels(task).set(problems)
            metrics.CLOSED.labels(task).set(self._refused_months)
            if not problems and nothing is None:
                metrics.LAST_SUCCESS.labels(task).set(self._now.timestamp())
        if self.problems:
            raise NotReported(f"{counted(len(self.problems), 'problem')}: {format_list(self.problems, LISTED, '; ')}")
        if nothing is not None:
            raise NothingReported(nothing)

    def _warn_of(self, singular: str, plural: str, names: Iterable[str]) -> None:
        if names := sorted(names):
            self._context.log.warning("%s: %s", counted(len(names), singular, plural), format_list(names, LISTED))


async def report_usage(config: WaldurConfig, context: PluginContext, source: Source = Source.STORE) -> None:
    """Report the usage of the last months and the current one to Waldur.

    Accounts without a resource, and resources that are held back, are logged and not written.

    Raises:
        NothingReported: no amount of a month could be reported.
        WaldurError: Waldur could not be reached, or refused some amounts. The other amounts were reported.
    """

    def count(status: int | None) -> None:
        metrics.REQUESTS.labels(context.instance, "none" if status is None else str(status)).inc()

    show = context.show if context.dry_run else None
    async with open_client(config, context.http, show=show, observe=count) as client:
        await _Report(config, context, client, UsageSource(config, context, source)).run()


class _Report:
    """One run of the plugin."""

    def __init__(self, config: WaldurConfig, context: PluginContext, client: WaldurClient, usage: UsageSource) -> None:
        self._config, self._context, self._client, self._usage = config, context, client, usage
        self._state = ReportState(context)
        self._report = MonthReport(config, client, self._state, usage.now)
        self._summary = Summary(config, context, usage.now, usage.as_of)
        self._months = months_to_report(usage.as_of, config.zone, config.reporting_periods)

    async def run(self) -> None:
        offered = await self._report.fetch_offering()
        self._summary.check_offering(offered.offering)
        identity = identity_of(self._config, await self._client.me())
        self._refusals = Refusals(self._state.refused, self._usage.now, identity)
        version = self._state.ignores_dates
        if version is not None and version != (await self._client.version()).version:
            self._state.ignores_dates = None  # the new version may honour dates
        rules = Rules.of(self._config, await self._usage.staleness())
        for month in self._months:
            # Writing a past month can leave amounts in flight: check them before the next month.
            await self._try_step(month, self._report.settle())
            await self._try_step(month, self._report_month(offered, month, rules))
        self._summary.conclude()

    async def _try_step(self, month: BillingMonth, step: Awaitable[None]) -> None:
        """Run a step for a month. An error is recorded, not raised, so that the other months are still reported.

        Raises:
            AccessDenied: the token is not valid, so no request can succeed.
            AuditordError: the amounts cannot be read.
        """
        try:
            await step
        except DateIgnored as error:
            self._state.ignores_dates = (await self._client.version()).version
            self._summary.problems.append(str(error))
        except WaldurError as error:
            if isinstance(error, AccessDenied) and error.for_all:
                raise
            self._summary.problems.append(f"the report of {month} stopped: {error}")
        finally:
            months = [str(each) for each in self._months]
            self._state.refused = self._refusals.as_json(months)
            self._state.forget_months(months)
            await self._state.save()

    async def _report_month(self, offered: Offered, month: BillingMonth, rules: Rules) -> None:
        now = self._usage.now
        is_past, moment = now >= month.window.stop, moment_of(month, now)
        if moment is not None and not is_past:
            # The amounts are those as of `as_of`, so send that instant.
            moment = moment_of(month, self._usage.as_of)
        if moment is None:
            self._context.log.info(
                "%s: Waldur would count its usage for another month now; a later run reports it", str(month)
            )
            return
        if is_past and self._state.ignores_dates is not None:
            self._context.log.warning(
                "%s: not reported, since this Waldur ignores dates; it is too old (see reporting_periods)", str(month)
            )
            return
        usage = await self._usage.month(month)
        planned = await self._report.plan(offered, month, usage, moment, rules)
        self._summary.add_plan(planned)
        # Skip what Waldur refused recently. Those refusals have already been logged.
        plan = planned.plan
        resources = [each for each in plan.resources if not self._refusals.has(str(month), each)]
        self._summary.count_refused(len(plan.resources) - len(resources))
        outcome = await self._report.write(replace(plan, resources=resources))
        self._summary.show_outcome(month, planned, outcome)
        for resource in outcome.resources:
            name = f"{resource.plan.backend_id}, {month}"
            if resource.lost:
                self._refusals.add(str(month), resource.plan)
                self._summary.log_lost(name, resource.lost)
            else:
                for text in resource.problems:
                    self._summary.problems.append(f"{name}: {text}")
                if resource.tried and not resource.problems:
                    self._state.record_amounts(str(month), resource.plan)
        if outcome.stopped is not None:
            raise outcome.stopped


_CHECK_TIMEOUT: Final = timedelta(seconds=20)
"""The timeout of each request of the check."""


async def check(config: WaldurConfig, context: Context) -> AsyncGenerator[Finding, None]:
    """Check that Waldur answers, accepts the token, and has the offering. ``auditord waldur diagnose`` checks more."""
    quick = config.model_copy(update={"retry_for": timedelta(0)})
    subject, remedy = "waldur", "check waldur_api_url, ca_file and the token; auditord waldur diagnose says more"
    try:
        async with open_client(quick, context.http, timeout=_CHECK_TIMEOUT) as client:
            user = await client.me()
            yield Finding(Severity.OK, subject, f"{config.waldur_api_url} accepts the token of {user.username}")
            subject, remedy = "offering", "check waldur_offering_uuid, and the roles of the token's user on it"
            offering = await client.offering()
    except WaldurError as error:
        yield Finding(Severity.FAILURE, subject, str(error), remedy)
        return
    names = ", ".join(component.type for component in offering.components)
    yield Finding(Severity.OK, subject, f"{offering.name} ({offering.state}) with the components {names or 'none'}")


WALDUR: Final = PluginKind(
    name="waldur",
    config=WaldurConfig,
    run=report_usage,
    interval=INTERVAL,
    import_config=lambda document, _others: import_config(document),
    detect=detect,
    check=check,
    needs=lambda config: [config.recorded[each].component[0] for each in config.resources],
    effect=lambda config: f"reports {counted(config.reporting_periods, 'month')} to {config.waldur_api_url}",
)
