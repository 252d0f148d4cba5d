"""What is to be written to Waldur for a month, and what is held back.

Absent and less are never believed lightly: a figure that would fall is held back with its resource until somebody
allows it, and records that are not up to date make nothing fall and nothing zero.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, TypeAlias
from uuid import UUID

from auditord_builtin.waldur.client import ComponentUsage, Resource
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.figures import AccountUsage
from auditord_builtin.waldur.months import BillingMonth
from auditord_builtin.waldur.plans import (
    NOTHING,
    Anomaly,
    HeldBack,
    MonthPlan,
    Offered,
    PlannedMonth,
    Reported,
    ResourcePlan,
)

NAMED: Final = 5
"""How many users an explanation names."""


def folded(name: str | None) -> str:
    """A name as figures have it."""
    return (name or "").strip().casefold()


def plan_month(
    config: WaldurConfig,
    offered: Offered,
    reported: Reported,
    month: BillingMonth,
    figures: Mapping[str, AccountUsage],
    *,
    moment: datetime,
    closed: bool,
    stale: str | None,
) -> PlannedMonth:
    """Compare what was consumed with what Waldur has.

    Args:
        config: which accounts and components, and whether figures may fall.
        offered: the offering.
        reported: what Waldur has of the month.
        month: which month.
        figures: what was consumed in it, by the case-folded account.
        moment: the instant that goes with each amount.
        closed: whether the month is over.
        stale: why the records are not up to date; None if they are.
    """
    planner = _Planner(config, offered, reported, month, figures, closed=closed, stale=stale)
    plans, held_back = planner.resources()
    users = sorted({user for plan in plans for user in plan.users if user not in planner.links})
    plan = MonthPlan(month.first_day, moment, closed, plans, planner.links, reported.totals, reported.users)
    return PlannedMonth(plan, held_back, sorted(set(figures) - set(planner.accounts)), users)


class _Planner:
    """The tables that one month is planned by."""

    def __init__(
        self,
        config: WaldurConfig,
        offered: Offered,
        reported: Reported,
        month: BillingMonth,
        figures: Mapping[str, AccountUsage],
        *,
        closed: bool,
        stale: str | None,
    ) -> None:
        self._config, self._month, self._figures = config, month, figures
        self._closed, self._stale = closed, stale
        taken = {component.type for component in offered.offering.components if component.takes_usage}
        self._components = [name for name in config.backend_components if name in taken]
        self.accounts = _by_account(config, offered.resources)
        self.links = {user.username: user.url for user in offered.users if user.username}
        self._totals = _totals(reported.totals)
        self._users = _users(reported)
        self._spelt = {folded(name): name for name in self.links}

    def resources(self) -> tuple[Sequence[ResourcePlan], Sequence[HeldBack]]:
        """Plan each resource."""
        planned = [each for account in self.accounts for each in self._account(account)]
        return (
            [each for each in planned if isinstance(each, ResourcePlan)],
            [each for each in planned if isinstance(each, HeldBack)],
        )

    def _account(self, account: str) -> Iterator[ResourcePlan | HeldBack]:
        resources = self.accounts[account]
        if len(resources) > 1:
            names = ", ".join(f"{each.name or each.uuid}" for each in resources)
            yield self._held(account, "ambiguous", f"{len(resources)} resources have this backend_id: {names}")
            return
        there = self._totals.get(resources[0].uuid, {})
        usage = self._usage(account, resources[0].uuid, there)
        if usage is not None:
            yield self._resource(resources[0], account, usage, there)

    def _usage(self, account: str, resource: UUID, there: "Totals") -> AccountUsage | None:
        """What the account consumed; zeros where none is right to be said."""
        if account in self._figures:
            return self._figures[account]
        reported = any(sum(amounts) for amounts in there.values()) or bool(self._users.get(resource))
        idle = AccountUsage(dict.fromkeys(self._config.backend_components, NOTHING), {})
        # A month that is over and of which nothing was ever said stays as it is.
        return idle if reported or not (self._closed or self._stale) else None

    def _resource(
        self, resource: Resource, account: str, usage: AccountUsage, there: "Totals"
    ) -> ResourcePlan | HeldBack:
        totals = {name: usage.total[name] for name in self._components}
        users_there = self._users.get(resource.uuid, {})
        users = {
            user: {name: usage.users.get(user, {}).get(name, NOTHING) for name in self._components}
            for user in dict.fromkeys((*usage.users, *users_there))
        }
        if several := [name for name in totals if len(there.get(name, ())) > 1]:
            text = f"Waldur has several totals of {', '.join(several)}; was the plan changed?"
            return self._held(account, "ambiguous", text)
        falls = list(_falls(totals, there, users, users_there))
        if falls and (self._stale or not self._config.allow_decrease):
            return self._fall(account, falls)
        if self._stale:
            totals = {name: amount for name, amount in totals.items() if amount or name in there}
            users = {user: {n: each for n, each in amounts.items() if each} for user, amounts in users.items()}
        spelt = {self._spelling(user, users_there): amounts for user, amounts in users.items() if amounts}
        return ResourcePlan(resource.uuid, resource.backend_id or account, totals, spelt)

    def _fall(self, account: str, falls: Sequence[str]) -> HeldBack:
        would = "; ".join(falls)
        if self._stale:
            return self._held(account, "stale", f"{would}; but the records are not up to date: {self._stale}")
        return self._held(
            account,
            "decrease",
            f"{would}; see auditord waldur explain {account} --month {self._month.name}, and if the records are right"
            " allow it: with auditord waldur report --once --allow-decrease for the months that are reported, with"
            " allow_decrease in the configuration for load-history",
        )

    def _held(self, account: str, anomaly: Anomaly, text: str) -> HeldBack:
        return HeldBack(account, anomaly, f"{account}, {self._month.name}: held back: {text}")

    def _spelling(self, user: str, there: "Users") -> str:
        """The offering's own, or the one that Waldur has amounts of, so that one user has one row."""
        return self._spelt.get(user) or (there[user].name if user in there else user)


Totals: TypeAlias = Mapping[str, Sequence[Decimal]]
"""What Waldur has of a resource, by component: more than one amount after a change of plan."""


@dataclass(frozen=True, slots=True)
class _UserThere:
    """What Waldur has of a user of a resource: the name as it is spelt there, the amounts by component."""

    name: str
    amounts: Mapping[str, Decimal]


Users: TypeAlias = Mapping[str, _UserThere]


def _by_account(config: WaldurConfig, resources: Iterable[Resource]) -> Mapping[str, Sequence[Resource]]:
    accounts: defaultdict[str, list[Resource]] = defaultdict(list)
    for resource in resources:
        if (account := folded(resource.backend_id)) and config.selects(account):
            accounts[account].append(resource)
    return accounts


def _totals(rows: Iterable[ComponentUsage]) -> Mapping[UUID, Totals]:
    found: defaultdict[UUID, defaultdict[str, list[Decimal]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row.resource_uuid][row.type].append(row.usage)
    return found


def _users(reported: Reported) -> Mapping[UUID, Users]:
    resources = {row.uuid: row.resource_uuid for row in reported.totals}
    found: defaultdict[UUID, dict[str, _UserThere]] = defaultdict(dict)
    for row in reported.users:
        if (resource := resources.get(row.row)) is not None and row.usage:
            before = found[resource].get(folded(row.username))
            amounts = {**(before.amounts if before else {}), row.component_type: row.usage}
            found[resource][folded(row.username)] = _UserThere(row.username, amounts)
    return found


def _falls(
    totals: Mapping[str, Decimal], there: Totals, users: Mapping[str, Mapping[str, Decimal]], users_there: Users
) -> Iterator[str]:
    """What would be less than Waldur has, in words."""
    for name, amount in totals.items():
        before = max(there.get(name, ()), default=NOTHING)
        fallen = [
            f"{each.name} from {each.amounts[name]} to {users[user][name]}"
            for user, each in users_there.items()
            if users[user][name] < each.amounts.get(name, NOTHING)
        ]
        if amount < before or fallen:
            yield f"{name} would go from {before} to {amount}{_named(fallen)}"


def _named(fallen: Sequence[str]) -> str:
    if not fallen:
        return ""
    others = [f"{len(fallen) - NAMED} more users"] if len(fallen) > NAMED else []
    return f" ({', '.join([*fallen[:NAMED], *others])})"
