"""Writing the amounts of one billing month to Waldur.

Amounts are absolute, so writing them again changes nothing, and what is there already is not written. Totals come
first, since the amounts of users hang below them. Faults of one resource or user stay with it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TypeAlias
from uuid import UUID

from auditord_builtin.waldur.answers import ComponentUsage, ComponentUserUsage
from auditord_builtin.waldur.client import WaldurClient
from auditord_builtin.waldur.dates import Amounts, DateCheck
from auditord_builtin.waldur.errors import DateIgnored, Refused, WaldurError
from auditord_builtin.waldur.outcomes import Isolation, MonthOutcome, ResourceOutcome
from auditord_builtin.waldur.plans import MonthPlan
from auditord_builtin.waldur.requests import MAX_USERNAME, UserUsage, user_usage

Rows: TypeAlias = Mapping[tuple[UUID, str], Sequence[ComponentUsage]]
"""Totals by resource and component: more than one after a change of plan."""

UserRows: TypeAlias = Mapping[tuple[UUID | str, str], ComponentUserUsage]


class UserWriting:
    """The amounts of users of a month that are being written, below the totals ``rows``."""

    def __init__(self, client: WaldurClient, plan: MonthPlan, rows: Rows) -> None:
        self._client, self._plan, self._rows = client, plan, rows
        self._there: UserRows = {}

    async def write(self, resources: Sequence[ResourceOutcome], isolation: Isolation) -> None:
        """Write the amounts that differ, of resources whose totals are there."""
        able = [each for each in resources if each.plan.users and each.tried and not each.problems]
        if not able or isolation.stopped is not None:
            return
        rows = self._plan.user_rows
        found = await self._client.user_usages(self._plan.month) if rows is None else rows
        self._there = {(row.row, row.username): row for row in found}
        await isolation.each(iter(able), self._users)

    async def _users(self, resource: ResourceOutcome) -> bool:
        before = resource.users
        by_component: defaultdict[str, dict[str, Decimal]] = defaultdict(dict)
        for name, amounts in resource.plan.users.items():
            for component, amount in amounts.items():
                by_component[component][name] = amount
        for component, by_user in by_component.items():
            if (row := self._row(resource, component)) is not None:
                await self._users_below(resource, component, row, [*self._usages(resource, row, by_user)])
        return resource.users > before

    def _usages(
        self, resource: ResourceOutcome, row: UUID | str, amounts: Mapping[str, Decimal]
    ) -> Iterator[UserUsage]:
        """The amounts that are not there."""
        for name, amount in amounts.items():
            found, link = self._there.get((row, name)), self._plan.links.get(name)
            if not 0 < len(name) <= MAX_USERNAME:
                resource.problems.append(f"user {name!r}: Waldur takes names of 1 to {MAX_USERNAME} characters")
            elif found is None or found.usage != amount or (found.user is None and link is not None):
                yield user_usage(name, self._plan.moment, amount, link)

    async def _users_below(
        self, resource: ResourceOutcome, component: str, row: UUID | str, usages: Sequence[UserUsage]
    ) -> None:
        try:
            reasons = await self._client.set_user_usages(row, usages)
        except Refused as error:
            if error.about_a_closed_month:
                resource.lost = {f"{component} of {each.username}": Decimal(each.usage) for each in usages}
            raise
        resource.users += len(usages) - len(reasons)
        resource.problems += [f"user {name}: {reason}" for name, reason in reasons.items()]

    def _row(self, resource: ResourceOutcome, component: str) -> UUID | str | None:
        rows = self._rows.get((resource.plan.uuid, component), ())
        if len(rows) == 1:
            return rows[0].uuid
        if not rows and self._client.dry_run:
            return f"<the new total of {component}>"
        if rows or component in resource.plan.totals:
            many = "several totals" if rows else "no total"
            resource.problems.append(f"{component}: Waldur has {many} of this month, so its users were not reported")
        return None


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
