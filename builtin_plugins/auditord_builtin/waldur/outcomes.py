"""The outcome of writing a billing month to Waldur."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from auditord_builtin.waldur.client import WaldurError
from auditord_builtin.waldur.plans import MonthPlan, ResourcePlan


@dataclass(frozen=True, slots=True)
class ResourceOutcome:
    """The outcome of a resource.

    Args:
        plan: what was to be reported.
        totals: what was written by component; nothing if all was there already.
        users: how many amounts of users were written.
        problems: what was not, and why; empty if everything is as planned now.
        lost: amounts that Waldur does not take because the month is over, by the component (of a user, perhaps).
    """

    plan: ResourcePlan
    totals: Mapping[str, Decimal]
    users: int
    problems: Sequence[str]
    lost: Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class MonthOutcome:
    """The outcome of a month.

    Args:
        plan: what was to be reported.
        resources: what came of those that were tried.
        stopped: why the others were not tried.
    """

    plan: MonthPlan
    resources: Sequence[ResourceOutcome]
    stopped: WaldurError | None

    @property
    def complete(self) -> bool:
        """True if everything is in Waldur as planned."""
        return self.stopped is None and not any(each.problems for each in self.resources)


class ResourceProgress:
    """The progress of one resource."""

    def __init__(self, plan: ResourcePlan) -> None:
        self.plan = plan
        self.tried = False
        self.written: Mapping[str, Decimal] = {}
        self.users = 0
        self.problems: list[str] = []
        self.lost: Mapping[str, Decimal] = {}

    def outcome(self) -> ResourceOutcome:
        """As it is now."""
        return ResourceOutcome(self.plan, self.written, self.users, tuple(self.problems), self.lost)
