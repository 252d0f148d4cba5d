"""What Waldur does not take because a month is over: remembered, so that it is not refused again every half hour."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from auditord_builtin.waldur.plans import ResourcePlan

AGAIN_AFTER: Final = timedelta(days=1)
"""After so long the same amounts are tried again: the token may be one of staff by then."""

Refusal = Mapping[str, Any]  # Any: JSON


class Refusals:
    """The totals that were refused, by month and resource.

    Args:
        kept: what :meth:`as_json` gave.
        now: the present instant.
    """

    def __init__(self, kept: Mapping[str, Refusal], now: datetime) -> None:
        self._kept = dict(kept)
        self._now = now

    def has(self, month: str, plan: ResourcePlan) -> bool:
        """Whether the very same totals were refused a short while ago."""
        refusal = self._kept.get(_key(month, plan))
        if refusal is None or refusal["totals"] != _texts(plan):
            return False
        return self._now - datetime.fromisoformat(refusal["at"]) < AGAIN_AFTER

    def add(self, month: str, plan: ResourcePlan) -> None:
        """Remember a refusal."""
        self._kept[_key(month, plan)] = {"totals": _texts(plan), "at": self._now.isoformat()}

    def as_json(self, months: Collection[str]) -> Mapping[str, Refusal]:
        """What is to be kept, of the months that are still reported."""
        return {key: refusal for key, refusal in self._kept.items() if key.partition(" ")[0] in months}


def _key(month: str, plan: ResourcePlan) -> str:
    return f"{month} {plan.uuid}"


def _texts(plan: ResourcePlan) -> Mapping[str, str]:
    return {component: str(amount) for component, amount in plan.totals.items()}
