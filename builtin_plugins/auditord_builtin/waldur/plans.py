"""The plan of a billing month: the amounts that are written to Waldur, and those that are held back."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Literal, TypeAlias
from uuid import UUID

from auditord_builtin.waldur.answers import ComponentUsage, ComponentUserUsage, Offering, OfferingUser, Resource
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.usage import folded

Anomaly: TypeAlias = Literal["decrease", "stale", "ambiguous", "state"]
ANOMALIES: Final[tuple[Anomaly, ...]] = ("decrease", "stale", "ambiguous", "state")

NOTHING: Final = Decimal("0.00")


@dataclass(frozen=True, slots=True)
class Offered:
    """The offering with its components, its resources (allocations), and its users' logins."""

    offering: Offering
    resources: Sequence[Resource]
    users: Sequence[OfferingUser]


@dataclass(frozen=True, slots=True)
class Reported:
    """Waldur's amounts of a month: the totals, and the amounts of users below them."""

    totals: Sequence[ComponentUsage]
    users: Sequence[ComponentUserUsage]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of what may be written.

    Args:
        stale: why the records are not up to date; None if they are.
        allow_decrease: amounts may fall.
        omit_anomalous: of a resource with an amount that may not fall the other components are written.
        reconcile_stale: amounts of accounts and users without any usage may fall to zero.
        users: the amounts of users are written, too.
    """

    stale: str | None = None
    allow_decrease: bool = False
    omit_anomalous: bool = False
    reconcile_stale: bool = False
    users: bool = True

    @classmethod
    def of(cls, config: WaldurConfig, stale: str | None) -> "Rules":
        """The rules of a configuration."""
        return cls(stale, config.allow_decrease, config.omit_anomalous_usage_components)


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """The amounts to report of a resource, rounded to two decimals; a component that is not named stays as it is."""

    uuid: UUID
    backend_id: str
    totals: Mapping[str, Decimal]
    users: Mapping[str, Mapping[str, Decimal]] = field(default_factory=dict[str, Mapping[str, Decimal]])


@dataclass(frozen=True, slots=True)
class MonthPlan:
    """The amounts to report of a month.

    Args:
        month: its first day.
        moment: the instant that goes with each amount, see :func:`auditord_builtin.waldur.months.moment_of`.
        closed: the month is over: whether the server knows dates is verified after the first write.
        resources: what is reported, in this order.
        links: the URLs of the offering's users by username; others are reported without.
        rows: the totals that are there, if they have been read.
        user_rows: the amounts of users that are there, if they have been read.
    """

    month: date
    moment: datetime
    closed: bool
    resources: Sequence[ResourcePlan]
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    rows: Sequence[ComponentUsage] | None = None
    user_rows: Sequence[ComponentUserUsage] | None = None


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A resource of which nothing is written, and why."""

    account: str
    anomaly: Anomaly
    text: str


@dataclass(frozen=True, slots=True)
class PlannedMonth:
    """The amounts that are written, and those that are not.

    Args:
        accounts: names of accounts with usage that no resource has.
        users: names of users with usage that are no users of the offering.
        reported: how many accounts are reported, with whatever amounts.
    """

    plan: MonthPlan
    held_back: Sequence[HeldBack]
    accounts: Sequence[str]
    users: Sequence[str]
    reported: int

    @property
    def held_back_whole(self) -> int:
        """The number of accounts that have not even a part of their amounts written."""
        written = {folded(each.backend_id) for each in self.plan.resources}
        return len({each.account for each in self.held_back} - written)


Totals: TypeAlias = Mapping[str, Sequence[Decimal]]
"""The totals of a resource by component: more than one amount after a change of plan."""


@dataclass(frozen=True, slots=True)
class ReportedUser:
    """A user of a resource in Waldur: the name as it is spelt there, the amounts by component."""

    name: str
    amounts: Mapping[str, Decimal]


Users: TypeAlias = Mapping[str, ReportedUser]
"""By the case-folded name; users without amounts are left out."""


class ReportedAmounts:
    """The totals of a month, and the amounts of users below them."""

    def __init__(self, reported: Reported) -> None:
        self._totals: defaultdict[UUID, defaultdict[str, list[Decimal]]] = defaultdict(lambda: defaultdict(list))
        self._users: defaultdict[UUID, dict[str, ReportedUser]] = defaultdict(dict)
        for total in reported.totals:
            self._totals[total.resource_uuid][total.type].append(total.usage)
        resources = {row.uuid: row.resource_uuid for row in reported.totals}
        for row in reported.users:
            if (resource := resources.get(row.row)) is not None and row.usage:
                before = self._users[resource].get(folded(row.username))
                amounts = {**(before.amounts if before else {}), row.component_type: row.usage}
                self._users[resource][folded(row.username)] = ReportedUser(row.username, amounts)

    def totals(self, resource: UUID) -> Totals:
        """The totals of a resource."""
        return self._totals.get(resource, {})

    def users(self, resource: UUID) -> Users:
        """The users of a resource."""
        return self._users.get(resource, {})

    def any_of(self, resource: UUID) -> bool:
        """True if anything but zeros was reported of a resource."""
        return bool(self.users(resource)) or any(sum(amounts) for amounts in self.totals(resource).values())
