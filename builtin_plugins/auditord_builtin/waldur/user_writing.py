"""Writing the amounts of users below the totals of a billing month."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TypeAlias
from uuid import UUID

from auditord_builtin.waldur.answers import ComponentUsage, ComponentUserUsage
from auditord_builtin.waldur.client import WaldurClient
from auditord_builtin.waldur.errors import Refused
from auditord_builtin.waldur.outcomes import Isolation, ResourceOutcome
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
