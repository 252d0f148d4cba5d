"""The plan of a billing month: which amounts are written to Waldur, and which are held back."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from auditord_builtin.waldur.api import ComponentUsage, ComponentUserUsage, Offering, OfferingUser, Resource
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.usage import AccountUsage, BillingMonth, fold_name
from auditord_hookspecs.wording import counted

Anomaly: TypeAlias = Literal["decrease", "stale", "ambiguous", "state"]
ANOMALIES: Final[tuple[Anomaly, ...]] = ("decrease", "stale", "ambiguous", "state")

NOTHING: Final = Decimal("0.00")


class Offered(msgspec.Struct, frozen=True):
    """The offering with its components, its resources (allocations), and its users' logins."""

    offering: Offering
    resources: Sequence[Resource]
    users: Sequence[OfferingUser]


class Rules(msgspec.Struct, frozen=True):
    """Rules for the amounts that may be written.

    Args:
        stale: why the records are not up to date; None if they are.
        allow_decrease: amounts may fall.
        omit_anomalous: hold back only the components that may not fall, not the whole resource.
        reconcile_stale: amounts of accounts and users without usage may fall to zero.
        users: also write the amounts of users.
    """

    stale: str | None = None
    allow_decrease: bool = False
    omit_anomalous: bool = False
    reconcile_stale: bool = False
    users: bool = True

    @classmethod
    def of(cls, config: WaldurConfig, stale: str | None) -> "Rules":
        """Return the rules of a configuration."""
        return cls(stale, config.allow_decrease, config.omit_anomalous_usage_components)


class ResourcePlan(msgspec.Struct, frozen=True):
    """The amounts to report for a resource, rounded to two decimals. Components without an entry keep their amounts."""

    uuid: UUID
    backend_id: str
    totals: Mapping[str, Decimal]
    users: Mapping[str, Mapping[str, Decimal]] = msgspec.field(default_factory=dict[str, Mapping[str, Decimal]])


class MonthPlan(msgspec.Struct, frozen=True):
    """The amounts to report for a month.

    Args:
        month: its first day.
        moment: the instant to send with each amount; see :func:`auditord_builtin.waldur.usage.moment_of`.
        closed: the month is past, so the first write checks whether the server honours dates.
        resources: the resources to write, in this order.
        links: the URLs of the offering's users by username. Other users are reported without a URL.
        rows: the totals in Waldur, if they have been read.
        user_rows: the amounts of users in Waldur, if they have been read.
    """

    month: date
    moment: datetime
    closed: bool
    resources: Sequence[ResourcePlan]
    links: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    rows: Sequence[ComponentUsage] | None = None
    user_rows: Sequence[ComponentUserUsage] | None = None


class HeldBack(msgspec.Struct, frozen=True):
    """A resource that is held back, wholly or in part, and why."""

    account: str
    anomaly: Anomaly
    text: str


class PlannedMonth(msgspec.Struct, frozen=True):
    """The plan of a month, and the amounts that are left out.

    Args:
        accounts: accounts that have usage but no resource.
        users: users that have usage but are not users of the offering.
        reported: the number of accounts with a resource.
    """

    plan: MonthPlan
    held_back: Sequence[HeldBack]
    accounts: Sequence[str]
    users: Sequence[str]
    reported: int

    @property
    def held_back_whole(self) -> int:
        """The number of accounts for which nothing is written."""
        written = {fold_name(each.backend_id) for each in self.plan.resources}
        return len({each.account for each in self.held_back} - written)


class ReportedUser(msgspec.Struct, frozen=True):
    """A user of a resource in Waldur: the name in Waldur's spelling, and the amounts by component."""

    name: str
    amounts: Mapping[str, Decimal]


class Reported:
    """Waldur's amounts of a month: the totals (``rows``), and the amounts of users below them (``user_rows``)."""

    def __init__(self, rows: Sequence[ComponentUsage], user_rows: Sequence[ComponentUserUsage]) -> None:
        self.rows, self.user_rows = rows, user_rows
        self._totals: defaultdict[UUID, defaultdict[str, list[Decimal]]] = defaultdict(lambda: defaultdict(list))
        self._users: defaultdict[UUID, dict[str, ReportedUser]] = defaultdict(dict)
        for total in rows:
            self._totals[total.resource_uuid][total.type].append(total.usage)
        resources = {row.uuid: row.resource_uuid for row in rows}
        for row in user_rows:
            if (resource := resources.get(row.row)) is not None and row.usage:
                before = self._users[resource].get(fold_name(row.username))
                amounts = {**(before.amounts if before else {}), row.component_type: row.usage}
                self._users[resource][fold_name(row.username)] = ReportedUser(row.username, amounts)

    def totals(self, resource: UUID) -> Mapping[str, Sequence[Decimal]]:
        """Return a resource's totals by component, which can have several after a change of plan in Waldur."""
        return self._totals.get(resource, {})

    def users(self, resource: UUID) -> Mapping[str, ReportedUser]:
        """Return the users of a resource with amounts, by case-folded name."""
        return self._users.get(resource, {})

    def any_of(self, resource: UUID) -> bool:
        """Return True if Waldur has an amount other than zero for a resource."""
        return bool(self.users(resource)) or any(sum(amounts) for amounts in self.totals(resource).values())


Amounts: TypeAlias = Mapping[str, Decimal]
"""Amounts by component."""

NAMED: Final = 5
"""The maximum number of users named in an explanation."""


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
    """Compare a month's usage, by case-folded account, with Waldur's amounts, and decide what to write.

    ``moment`` is the instant to send with each amount. ``closed`` is true for a past month.
    """
    accounts: defaultdict[str, list[Resource]] = defaultdict(list)
    for resource in offered.resources:
        if (account := fold_name(resource.backend_id)) and config.selects(account):
            accounts[account].append(resource)
    planner = _Planner(config, offered, reported, str(month), usage, closed, rules)
    planned = [each for account, resources in accounts.items() for each in planner.plan_account(account, resources)]
    plans = [each for each in planned if isinstance(each, ResourcePlan)]
    held_back = [each for each in planned if isinstance(each, HeldBack)]
    users = sorted({user for plan in plans for user in plan.users if user not in planner.links})
    plan = MonthPlan(month.first_day, moment, closed, plans, planner.links, reported.rows, reported.user_rows)
    return PlannedMonth(plan, held_back, sorted(set(usage) - set(accounts)), users, len(accounts))


@dataclass
class _Planner:
    """Plans the resources of one month."""

    config: WaldurConfig
    offered: Offered
    reported: Reported
    month: str
    usage: Mapping[str, AccountUsage]
    closed: bool
    rules: Rules

    def __post_init__(self) -> None:
        accepted = {component.type for component in self.offered.offering.components if component.takes_usage}
        self.components = [name for name in self.config.backend_components if name in accepted]
        self.links = {user.username: user.url for user in self.offered.users if user.username}
        self.spelt = {fold_name(name): name for name in self.links}

    def plan_account(self, account: str, resources: Sequence[Resource]) -> Iterator[ResourcePlan | HeldBack]:
        """Yield the plan for the resource of an account.

        If there is no amount on either side, nothing is yielded for a past month, for outdated records and for an
        account with several resources.
        """
        known = account in self.usage or any(self.reported.any_of(each.uuid) for each in resources)
        if not known and (self.closed or self.rules.stale or len(resources) > 1):
            return
        if len(resources) > 1:
            names = ", ".join(f"{each.name or each.uuid}" for each in resources)
            yield self._hold_back(
                account,
                "ambiguous",
                f"{counted(len(resources), 'resource has', 'resources have')} this backend_id: {names}",
            )
            return
        resource = resources[0]
        if not resource.takes_usage:
            state = f"its state is {resource.state}, in which Waldur accepts no usage"
            yield self._hold_back(account, "state", f"{state}; it is reported once the state changes")
            return
        amounts = _Amounts(self, account, resource.uuid)
        falls, several = amounts.explain_falls(), amounts.explain_several()
        if anomalies := {**falls, **several}:
            would = "; ".join(anomalies.values())
            if falls.keys() <= several.keys():
                yield self._hold_back(account, "ambiguous", would)
            elif self.rules.stale:
                why = f"but the records are not up to date: {self.rules.stale}"
                yield self._hold_back(account, "stale", f"{would}; {why}")
            else:
                yield self._hold_back(
                    account,
                    "decrease",
                    f"{would}; see auditord waldur explain {account} --month {self.month}; if the records are right, "
                    "allow it with --allow-decrease: auditord waldur report --once for the months that are reported, "
                    "auditord waldur load-history for older ones",
                )
            if not self.rules.omit_anomalous:
                return
        if wanted := {name: each for name, each in amounts.select_totals().items() if name not in anomalies}:
            users = amounts.select_users(wanted)
            yield ResourcePlan(resource.uuid, resource.backend_id or account, wanted, users)

    def _hold_back(self, account: str, anomaly: Anomaly, text: str) -> HeldBack:
        return HeldBack(account, anomaly, f"{account}, {self.month}: held back: {text}")


class _Amounts:
    """The correct amounts of one resource by component, and its amounts in Waldur.

    Users with usage and users that Waldur has are included, but no users if only totals are written.
    """

    def __init__(self, planner: _Planner, account: str, resource: UUID) -> None:
        self._rules, self._spelt = planner.rules, planner.spelt
        self._absent, used = account not in planner.usage, planner.usage.get(account) or AccountUsage({}, {})
        self._reported, self._reported_users = planner.reported.totals(resource), planner.reported.users(resource)
        self._totals = {name: used.total.get(name, NOTHING) for name in planner.components}
        self._used: Mapping[str, Amounts] = used.users if self._rules.users else {}
        names: Iterable[str] = dict.fromkeys((*self._used, *self._reported_users)) if self._rules.users else ()
        self._users = {
            user: {name: self._used.get(user, {}).get(name, NOTHING) for name in planner.components} for user in names
        }

    def select_totals(self) -> Amounts:
        """Return the correct totals. With outdated records, only components that Waldur already has can be zero."""
        stale = self._rules.stale
        return {name: each for name, each in self._totals.items() if each or not stale or name in self._reported}

    def select_users(self, wanted: Amounts) -> Mapping[str, Amounts]:
        """Return the correct amounts by user, as spelt in the offering or in Waldur, so that each user has one row."""
        found: dict[str, Amounts] = {}
        for user, amounts in self._users.items():
            known = self._reported_users.get(user)
            right = {name: each for name, each in amounts.items() if name in wanted and (each or not self._rules.stale)}
            if right:
                found[self._spelt.get(user) or (known.name if known else user)] = right
        return found

    def explain_falls(self) -> Mapping[str, str]:
        """Return an explanation for each component with a total or a user's amount that would fall and may not."""
        rules = self._rules
        if not rules.stale and (rules.allow_decrease or (rules.reconcile_stale and self._absent)):
            return {}
        protected = self._used if rules.reconcile_stale and not rules.stale else self._users
        reported = {user: each for user, each in self._reported_users.items() if user in protected}
        found: dict[str, str] = {}
        for name, amount in self._totals.items():
            before = max(self._reported.get(name, ()), default=NOTHING)
            fallen = [
                f"{each.name} from {each.amounts[name]} to {self._users[user][name]}"
                for user, each in reported.items()
                if self._users[user][name] < each.amounts.get(name, NOTHING)
            ]
            if amount < before or fallen:
                more = [counted(len(fallen) - NAMED, "more user")] if len(fallen) > NAMED else []
                users = f" ({', '.join([*fallen[:NAMED], *more])})" if fallen else ""
                found[name] = f"{name} would go from {before} to {amount}{users}"
        return found

    def explain_several(self) -> Mapping[str, str]:
        """Return an explanation for each component with several totals in Waldur."""
        text = "Waldur has several totals of {}; was the plan changed?"
        return {name: text.format(name) for name in self._totals if len(self._reported.get(name, ())) > 1}
