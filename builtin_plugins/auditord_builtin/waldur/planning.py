"""The plan of a billing month: what is written to Waldur, and what is held back.

Absent and less are never believed lightly: an amount that would fall is held back with its resource until an
operator allows it, and records that are not up to date make nothing fall and nothing zero.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final, TypeAlias

from auditord_builtin.waldur.answers import Resource
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.months import BillingMonth
from auditord_builtin.waldur.plans import (
    NOTHING,
    Anomaly,
    HeldBack,
    MonthPlan,
    Offered,
    PlannedMonth,
    Reported,
    ReportedAmounts,
    ResourcePlan,
    Rules,
    Totals,
    Users,
)
from auditord_builtin.waldur.usage import AccountUsage, folded

Amounts: TypeAlias = Mapping[str, Decimal]
"""By component."""

NAMED: Final = 5
"""The number of users that an explanation names."""


def plan_month(
    config: WaldurConfig,
    offered: Offered,
    reported: Reported,
    month: BillingMonth,
    usage: Mapping[str, AccountUsage],
    *,
    moment: datetime,
    closed: bool,
    rules: Rules,
) -> PlannedMonth:
    """Compare what was consumed with what Waldur has.

    Args:
        config: which accounts and components.
        offered: the offering.
        reported: what Waldur has of the month.
        month: which month.
        usage: what was consumed in it, by the case-folded account.
        moment: the instant that goes with each amount.
        closed: whether the month is over.
        rules: what may be written.
    """
    planner = _Planner(config, offered, reported, month, usage, closed=closed, rules=rules)
    planned = [each for account in planner.accounts for each in planner.account(account)]
    plans = [each for each in planned if isinstance(each, ResourcePlan)]
    held_back = [each for each in planned if isinstance(each, HeldBack)]
    users = sorted({user for plan in plans for user in plan.users if user not in planner.links})
    plan = MonthPlan(month.first_day, moment, closed, plans, planner.links, reported.totals, reported.users)
    unknown = sorted(set(usage) - set(planner.accounts))
    return PlannedMonth(plan, held_back, unknown, users, len(planner.accounts))


class _Planner:
    """The tables that one month is planned by."""

    def __init__(
        self,
        config: WaldurConfig,
        offered: Offered,
        reported: Reported,
        month: BillingMonth,
        usage: Mapping[str, AccountUsage],
        *,
        closed: bool,
        rules: Rules,
    ) -> None:
        self._month, self._usage_of, self._closed, self._rules = month, usage, closed, rules
        taken = {component.type for component in offered.offering.components if component.takes_usage}
        self._components = [name for name in config.backend_components if name in taken]
        self.accounts = _by_account(config, offered.resources)
        self.links = {user.username: user.url for user in offered.users if user.username}
        self._there = ReportedAmounts(reported)
        self._spelt = {folded(name): name for name in self.links}

    def account(self, account: str) -> Iterator[ResourcePlan | HeldBack]:
        """Plan the resource of an account; nothing where all is as it should be and nothing is known."""
        resources = self.accounts[account]
        if not any(self._matters(account, each) for each in resources):
            return
        if len(resources) > 1:
            names = ", ".join(f"{each.name or each.uuid}" for each in resources)
            yield self._held(account, "ambiguous", f"{len(resources)} resources have this backend_id: {names}")
        elif not resources[0].takes_usage:
            state = f"its state is {resources[0].state}, in which Waldur takes no usage"
            yield self._held(account, "state", f"{state}; it is reported when that has changed")
        else:
            yield from self._resource(resources[0], account)

    def _matters(self, account: str, resource: Resource) -> bool:
        """True if there is something to say of a resource.

        A month that is over and of which nothing was ever said stays as it is, and so does a resource that is idle
        according to records that are not up to date. Nor is zero said of several resources of an account.
        """
        if account in self._usage_of or self._there.any_of(resource.uuid):
            return True
        return not (self._closed or self._rules.stale) and len(self.accounts[account]) == 1

    def _resource(self, resource: Resource, account: str) -> Iterator[ResourcePlan | HeldBack]:
        anomalies = {**self._falls(resource, account), **self._several(resource)}
        if anomalies:
            yield self._anomaly(account, anomalies)
            if not self._rules.omit_anomalous:
                return
        totals = self._totals(resource, account)
        wanted = {name: amount for name, amount in totals.items() if name not in anomalies}
        if wanted:
            users = self._spelt_users(resource, account, wanted)
            yield ResourcePlan(resource.uuid, resource.backend_id or account, wanted, users)

    def _usage(self, account: str) -> AccountUsage:
        return self._usage_of.get(account) or AccountUsage({}, {})

    def _totals(self, resource: Resource, account: str) -> Amounts:
        """The right totals; of records that are not up to date no zeros but those that are there."""
        totals = {name: self._usage(account).total.get(name, NOTHING) for name in self._components}
        if not self._rules.stale:
            return totals
        there = self._there.totals(resource.uuid)
        return {name: amount for name, amount in totals.items() if amount or name in there}

    def _users(self, resource: Resource, account: str) -> Mapping[str, Amounts]:
        """The right amounts of each user, also of those only in Waldur; of no user if only totals are written."""
        if not self._rules.users:
            return {}
        used = self._usage(account).users
        return {
            user: {name: used.get(user, {}).get(name, NOTHING) for name in self._components}
            for user in dict.fromkeys((*used, *self._there.users(resource.uuid)))
        }

    def _spelt_users(self, resource: Resource, account: str, wanted: Amounts) -> Mapping[str, Amounts]:
        there = self._there.users(resource.uuid)
        users = {
            user: {name: each for name, each in amounts.items() if name in wanted and (each or not self._rules.stale)}
            for user, amounts in self._users(resource, account).items()
        }
        return {self._spelling(user, there): amounts for user, amounts in users.items() if amounts}

    def _spelling(self, user: str, there: Users) -> str:
        """The offering's own, or the one that Waldur has amounts of, so that one user has one row."""
        return self._spelt.get(user) or (there[user].name if user in there else user)

    # -- anomalies ----------------------------------------------------------------------------------------------------

    def _falls(self, resource: Resource, account: str) -> Mapping[str, str]:
        """The components that may not fall and would."""
        rules = self._rules
        absent = account not in self._usage_of
        if not rules.stale and (rules.allow_decrease or (rules.reconcile_stale and absent)):
            return {}
        users = self._users(resource, account)
        there = {user: each for user, each in self._there.users(resource.uuid).items() if user in users}
        if rules.reconcile_stale and not rules.stale:
            there = {user: each for user, each in there.items() if user in self._usage(account).users}
        totals = {name: self._usage(account).total.get(name, NOTHING) for name in self._components}
        return dict(falls(totals, self._there.totals(resource.uuid), users, there))

    def _several(self, resource: Resource) -> Mapping[str, str]:
        """The components of which Waldur has several totals."""
        there = self._there.totals(resource.uuid)
        text = "Waldur has several totals of {}; was the plan changed?"
        return {name: text.format(name) for name in self._components if len(there.get(name, ())) > 1}

    def _anomaly(self, account: str, anomalies: Mapping[str, str]) -> HeldBack:
        would = "; ".join(anomalies.values())
        if all("several totals" in text for text in anomalies.values()):
            return self._held(account, "ambiguous", would)
        if self._rules.stale:
            return self._held(account, "stale", f"{would}; but the records are not up to date: {self._rules.stale}")
        return self._held(
            account,
            "decrease",
            f"{would}; see auditord waldur explain {account} --month {self._month.name}, and if the records are right"
            " allow it with --allow-decrease: auditord waldur report --once for the months that are reported,"
            " auditord waldur load-history for older ones",
        )

    def _held(self, account: str, anomaly: Anomaly, text: str) -> HeldBack:
        return HeldBack(account, anomaly, f"{account}, {self._month.name}: held back: {text}")


def _by_account(config: WaldurConfig, resources: Iterable[Resource]) -> Mapping[str, Sequence[Resource]]:
    accounts: defaultdict[str, list[Resource]] = defaultdict(list)
    for resource in resources:
        if (account := folded(resource.backend_id)) and config.selects(account):
            accounts[account].append(resource)
    return accounts


def falls(
    totals: Mapping[str, Decimal], there: Totals, users: Mapping[str, Mapping[str, Decimal]], users_there: Users
) -> Iterator[tuple[str, str]]:
    """Each component that would fall, in total or for a user, and the explanation.

    Args:
        totals: what is right, by component.
        there: what Waldur has.
        users: what is right of each user, by the case-folded name.
        users_there: what Waldur has of users that may not fall.
    """
    for name, amount in totals.items():
        before = max(there.get(name, ()), default=NOTHING)
        fallen = [
            f"{each.name} from {each.amounts[name]} to {users[user][name]}"
            for user, each in users_there.items()
            if users[user][name] < each.amounts.get(name, NOTHING)
        ]
        if amount < before or fallen:
            yield name, f"{name} would go from {before} to {amount}{_named(fallen)}"


def _named(fallen: Sequence[str]) -> str:
    if not fallen:
        return ""
    others = [f"{len(fallen) - NAMED} more users"] if len(fallen) > NAMED else []
    return f" ({', '.join([*fallen[:NAMED], *others])})"
