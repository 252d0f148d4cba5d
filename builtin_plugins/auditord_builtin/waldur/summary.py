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

LISTED: Final = 20
"""The number of names or problems in a line of the log."""


class NotReported(WaldurError):
    """Waldur does not have everything that it should."""


class NothingReported(WaldurError):
    """Not one amount of a month could be reported, although nothing failed."""

    exit_status: ClassVar[int] = 4


class Summary:
    """The summary of a report, logged and shown as it goes; running jobs count up to ``as_of``."""

    def __init__(self, config: WaldurConfig, context: PluginContext, now: datetime, as_of: datetime) -> None:
        self._config, self._context, self._now = config, context, now
        self._present = month_at(as_of, config.zone).first_day
        self._planned: list[PlannedMonth] = []
        self._problems: list[str] = []
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
            f"{month}: {totals} totals and {users} amounts of users {done}, of {len(planned.plan.resources)}"
            f" resources; {len(planned.held_back)} resources held back"
        )

    def problem(self, text: str) -> None:
        """Remember an amount that is not in Waldur, or why all of a month are not."""
        self._problems.append(text)

    def closed(self, count: int = 1) -> None:
        """Count resources and months of which Waldur takes nothing more."""
        self._closed += count

    def lost(self, name: str, lost: Mapping[str, Decimal]) -> None:
        """Log what only staff may still report; no failure of the report, the next one would fare no better."""
        self.closed()
        right = _listed([f"{component} {amount}" for component, amount in lost.items()], ", ")
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
        self._names("accounts have usage and no resource", {name for each in self._planned for name in each.accounts})
        self._names("users have usage and are no offering users", {n for each in self._planned for n in each.users})
        nothing = self._nothing_reported()
        if not self._context.dry_run:
            task, problems = self._context.instance, len(self._problems)
            metrics.set_planned(task, self._present, self._config.backend_components, self._planned)
            metrics.PROBLEMS.labels(task).set(problems)
            metrics.CLOSED.labels(task).set(self._closed)
            if not problems and nothing is None:
                metrics.LAST_SUCCESS.labels(task).set(self._now.timestamp())
        if self._problems:
            raise NotReported(f"{len(self._problems)} amounts are not in Waldur: {_listed(self._problems, '; ')}")
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
                return f"{name}: all {month.reported} resources are held back, see above: nothing was reported"
        return None

    def _names(self, what: str, names: Iterable[str]) -> None:
        if found := sorted(names):
            self._context.log.warning("%d %s: %s", len(found), what, _listed(found, ", "))


def _listed(texts: Sequence[str], separator: str) -> str:
    rest = [f"and {len(texts) - LISTED} more"] if len(texts) > LISTED else []
    return separator.join([*texts[:LISTED], *rest])
