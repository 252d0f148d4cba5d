"""Figures that would be less than Waldur has, in words."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final

from auditord_builtin.waldur.plans import NOTHING
from auditord_builtin.waldur.reported_amounts import Totals, Users

NAMED: Final = 5
"""The number of users that an explanation names."""


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
