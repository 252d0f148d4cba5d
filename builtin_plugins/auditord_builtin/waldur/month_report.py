"""The report of one billing month: planned from the offering's usage, written; for reports and for loading history."""

from collections.abc import Mapping
from datetime import datetime

from auditord_builtin.waldur.client import WaldurClient
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.dates import DateCheck
from auditord_builtin.waldur.months import BillingMonth
from auditord_builtin.waldur.outcomes import MonthOutcome
from auditord_builtin.waldur.planning import plan_month
from auditord_builtin.waldur.plans import MonthPlan, Offered, PlannedMonth, Reported, Rules
from auditord_builtin.waldur.state import ReportState
from auditord_builtin.waldur.usage import AccountUsage
from auditord_builtin.waldur.writing import write_month


class MonthReport:
    """Plans and writes months of one offering, all at one instant."""

    def __init__(self, config: WaldurConfig, client: WaldurClient, state: ReportState, now: datetime) -> None:
        self._config, self._client, self._now = config, client, now
        self._dates = DateCheck(client, state, now)

    async def offered(self) -> Offered:
        """Ask for the offering, its resources and its users."""
        client = self._client
        return Offered(await client.offering(), await client.resources(), await client.offering_users())

    async def settle(self) -> None:
        """Look at amounts of months that are over whose arrival was not seen; see :class:`DateCheck`."""
        if not self._client.dry_run:
            await self._dates.settle()

    async def plan(
        self, offered: Offered, month: BillingMonth, usage: Mapping[str, AccountUsage], moment: datetime, rules: Rules
    ) -> PlannedMonth:
        """Compare the usage of a month, by account, with what Waldur has of it."""
        rows, users = (
            await self._client.component_usages(month.first_day),
            await self._client.user_usages(month.first_day),
        )
        closed, reported = self._now >= month.window.stop, Reported(rows, users)
        return plan_month(self._config, offered, reported, month, usage, moment=moment, closed=closed, rules=rules)

    async def write(self, plan: MonthPlan) -> MonthOutcome:
        """Write what differs from what is there."""
        return await write_month(self._client, plan, self._dates)
