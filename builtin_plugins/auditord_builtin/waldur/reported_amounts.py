"""The amounts that Waldur has of a month, by resource."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias
from uuid import UUID

from auditord_builtin.waldur.client import ComponentUsage
from auditord_builtin.waldur.figures import folded
from auditord_builtin.waldur.plans import Reported

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
        self._totals = _totals(reported.totals)
        self._users = _users(reported)

    def totals(self, resource: UUID) -> Totals:
        """The totals of a resource."""
        return self._totals.get(resource, {})

    def users(self, resource: UUID) -> Users:
        """The users of a resource."""
        return self._users.get(resource, {})

    def any_of(self, resource: UUID) -> bool:
        """True if anything but zeros was reported of a resource."""
        return bool(self.users(resource)) or any(sum(amounts) for amounts in self.totals(resource).values())


def _totals(rows: Iterable[ComponentUsage]) -> Mapping[UUID, Totals]:
    found: defaultdict[UUID, defaultdict[str, list[Decimal]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row.resource_uuid][row.type].append(row.usage)
    return found


def _users(reported: Reported) -> Mapping[UUID, Users]:
    resources = {row.uuid: row.resource_uuid for row in reported.totals}
    found: defaultdict[UUID, dict[str, ReportedUser]] = defaultdict(dict)
    for row in reported.users:
        if (resource := resources.get(row.row)) is not None and row.usage:
            before = found[resource].get(folded(row.username))
            amounts = {**(before.amounts if before else {}), row.component_type: row.usage}
            found[resource][folded(row.username)] = ReportedUser(row.username, amounts)
    return found
