"""Writing the amounts of one billing month to Waldur.

Amounts are absolute, so writing them again changes nothing, and what is there already is not written. Totals come
first, since the amounts of users hang below them. Faults of one resource or user stay with it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from auditord_builtin.waldur.answers import ComponentUsage
from auditord_builtin.waldur.client import WaldurClient
from auditord_builtin.waldur.dates import Amounts, DateCheck
from auditord_builtin.waldur.errors import DateIgnored, Refused, WaldurError
from auditord_builtin.waldur.outcomes import Isolation, MonthOutcome, ResourceOutcome
from auditord_builtin.waldur.plans import MonthPlan
from auditord_builtin.waldur.user_writing import Rows, UserWriting


async def write_month(client: WaldurClient, plan: MonthPlan, dates: DateCheck) -> MonthOutcome:
    """Write what differs from what is there; with a client for a dry run, only show it. Faults are in the outcome."""
    isolation = Isolation(client.concurrency)
    resources = [ResourceOutcome(each) for each in plan.resources]
    writing = _TotalWriting(client, plan, dates, isolation)
    try:
        rows = await writing.write(resources)
        await UserWriting(client, plan, rows).write(resources, isolation)
    except WaldurError as error:
        isolation.stopped = isolation.stopped or error
    return MonthOutcome(plan, tuple(each for each in resources if each.tried), isolation.stopped)


class _TotalWriting:
    """The totals of a month that are being written."""

    def __init__(self, client: WaldurClient, plan: MonthPlan, dates: DateCheck, isolation: Isolation) -> None:
        self._client, self._plan, self._dates, self._isolation = client, plan, dates, isolation
        self._rows: Rows = {}

    async def write(self, resources: Sequence[ResourceOutcome]) -> Rows:
        """Write the totals that differ; returns those that are there afterwards."""
        client, month, rows = self._client, self._plan.month, self._plan.rows
        self._rows = _by_component(await client.component_usages(month) if rows is None else rows)
        waiting = iter(resources)
        if self._plan.closed and not client.dry_run:
            await self._first_of_a_closed_month(waiting)
        await self._isolation.each(waiting, self._total)
        if any(each.totals for each in resources) and not client.dry_run:
            return _by_component(await client.component_usages(month))
        return self._rows

    async def _first_of_a_closed_month(self, waiting: Iterator[ResourceOutcome]) -> None:
        """Go on until one has been written, and see that it is where it belongs before the others follow.

        Raises:
            DateIgnored: it is not.
        """
        for resource in waiting:
            await self._isolation.one(resource, self._first_total)
            if self._isolation.stopped is not None:
                return
            if resource.totals:
                try:
                    await self._dates.settle(answered=True)
                except DateIgnored:
                    resource.totals = {}
                    raise
                return

    async def _first_total(self, resource: ResourceOutcome) -> bool:
        if not (amounts := self._amounts(resource)):
            return False
        await self._dates.announce(resource.plan, self._plan.month, amounts)
        try:
            await self._set(resource, amounts)
        except Refused:
            await self._dates.withdraw(resource.plan)
            raise
        return True

    async def _total(self, resource: ResourceOutcome) -> bool:
        if amounts := self._amounts(resource):
            await self._set(resource, amounts)
        return bool(amounts)

    async def _set(self, resource: ResourceOutcome, amounts: Amounts) -> None:
        try:
            await self._client.set_usage(resource.plan.uuid, self._plan.moment, amounts)
        except Refused as error:
            if error.about_a_closed_month:
                resource.lost = amounts
            raise
        resource.totals = amounts

    def _amounts(self, resource: ResourceOutcome) -> Amounts:
        """The totals that are not there."""
        plan = resource.plan
        there = {name: [row.usage for row in self._rows.get((plan.uuid, name), ())] for name in plan.totals}
        return {name: amount for name, amount in plan.totals.items() if there[name] != [amount]}


def _by_component(rows: Iterable[ComponentUsage]) -> Rows:
    found: defaultdict[tuple[UUID, str], list[ComponentUsage]] = defaultdict(list)
    for row in rows:
        found[row.resource_uuid, row.type].append(row)
    return found
