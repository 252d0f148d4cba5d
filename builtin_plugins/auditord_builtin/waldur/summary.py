"""The end of a report: what was written, what was not, and whether that is a success."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import ClassVar, Final

from auditord_builtin.waldur import metrics
from auditord_builtin.waldur.answers import Offering
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.errors import WaldurError
from auditord_builtin.waldur.months import BillingMonth, month_at
from auditord_builtin.waldur.outcomes import MonthOutcome
from auditord_builtin.waldur.plans import PlannedMonth
from auditord_hookspecs import PluginContext
from auditord_hookspecs.wording import counted, listed

LISTED: Final = 20
"""The number of names or problems in a line of the log."""


class NotReported(WaldurError):
    """Waldur does not have everything that it should.

    Remedy:
        see the reasons in the text; the next run reports what is missing. `auditord waldur diagnose` looks at the
        causes.
    """


class NothingReported(WaldurError):
    """Not one amount of a month could be reported, although nothing failed.

    Remedy:
        see why all resources are held back (`auditord waldur report --dry-run`); --allow-decrease lets amounts fall
        once.
    """

    exit_status: ClassVar[int] = 4


class Summary:
    """The summary of a report, logged and shown as it goes; running jobs count up to ``as_of``."""

    def __init__(self, config: WaldurConfig, context: PluginContext, now: datetime, as_of: datetime) -> None:
        self._config, self._context, self._now = config, context, now
        self._present = month_at(as_of, config.zone).first_day
        self._planned: list[PlannedMonth] = []
        self.problems: list[str] = []
        """Amounts that are not in Waldur, or why all of a month are not."""
        self._closed = 0
        self._taken: Sequence[str] = ()

    def offering(self, offering: Offering) -> None:
        """Log components of which the offering takes no usage."""
        taken = {component.type for component in offering.components if component.takes_usage}
        self._taken = [name for name in self._config.backend_components if name in taken]
        if missing := [name for name in self._config.backend_components if name not in taken]:
            self._context.log.warning("the offering takes no usage of %s: not reported", ", ".join(missing))

    def planned(self, month: PlannedMonth) -> None:
        """Log what is held back; show it in a dry run."""
        self._planned.append(month)
        for held in month.held_back:
            if self._context.dry_run:
                self._context.show(held.text)
            else:
                self._context.log.warning("%s", held.text)

    def written(self, month: BillingMonth, planned: PlannedMonth, outcome: MonthOutcome) -> None:
        """Show what was written."""
        totals = sum(len(each.totals) for each in outcome.resources)
        users = sum(each.users for each in outcome.resources)
        done = "would be written" if self._context.dry_run else "written"
        self._context.show(
            f"{month}: {counted(totals, 'total')} and {counted(users, 'amount')} of users {done}, "
            f"of {counted(len(planned.plan.resources), 'resource')}; "
            f"{counted(len(planned.held_back), 'resource')} held back"
        )

    def closed(self, count: int = 1) -> None:
        """Count resources and months of which Waldur takes nothing more."""
        self._closed += count

    def lost(self, name: str, lost: Mapping[str, Decimal]) -> None:
        """Log what only staff may still report; no failure of the report, the next one would fare no better."""
        self.closed()
        right = listed([f"{component} {amount}" for component, amount in lost.items()], LISTED)
        self._context.log.error(
            "%s: Waldur takes nothing more of this month from us, although %s is right: what is missing there is billed"
            " to nobody until it is loaded with a token of staff (auditord waldur load-history)",
            *(name, right),
        )

    def conclude(self) -> None:
        """Log names without a counterpart, set the metrics, and end the report.

        Raises:
            NotReported: something was not taken.
            NothingReported: nothing could be reported.
        """
        accounts = {name for each in self._planned for name in each.accounts}
        users = {name for each in self._planned for name in each.users}
        self._names("account has usage and no resource", "accounts have usage and no resource", accounts)
        self._names("user has usage and is no offering user", "users have usage and are no offering users", users)
        nothing = self._nothing_reported()
        if not self._context.dry_run:
            task, problems = self._context.instance, len(self.problems)
            metrics.set_planned(task, self._present, self._config.backend_components, self._planned)
            metrics.PROBLEMS.labels(task).set(problems)
            metrics.CLOSED.labels(task).set(self._closed)
            if not problems and nothing is None:
                metrics.LAST_SUCCESS.labels(task).set(self._now.timestamp())
        if self.problems:
            amounts = counted(len(self.problems), "amount is", "amounts are")
            raise NotReported(f"{amounts} not in Waldur: {listed(self.problems, LISTED, '; ')}")
        if nothing is not None:
            raise NothingReported(nothing)

    def _nothing_reported(self) -> str | None:
        """Why a month has no amount in Waldur that is right; None if each has."""
        if not self._taken:
            return "the offering takes no usage of any component that is configured: nothing was reported"
        for month in self._planned:
            if not month.reported:
                prefixes = ", ".join(self._config.account_prefixes)
                chosen = f" that begins with {prefixes}" if prefixes else ""
                return f"the offering has no resource with a backend_id{chosen}: nothing was reported"
            if month.held_back_whole == month.reported:
                name = f"{month.plan.month:%Y-%m}"
                return f"{name}: all resources ({month.reported}) are held back, see above: nothing was reported"
        return None

    def _names(self, one: str, several: str, names: Iterable[str]) -> None:
        if found := sorted(names):
            self._context.log.warning("%s: %s", counted(len(found), one, several), listed(found, LISTED))
