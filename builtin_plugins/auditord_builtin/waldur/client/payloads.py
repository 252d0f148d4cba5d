"""The bodies of ``set_usage``, ``set_user_usages`` and ``set_user_usage``."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Context, Decimal
from typing import Final
from uuid import UUID

import msgspec

CENT: Final = Decimal("0.01")
"""Waldur keeps two decimals; more are refused with 400."""

MAX_USERNAME: Final = 100
"""Characters; Waldur refuses longer ones."""

_WIDE: Final = Context(prec=100)


class UsageItem(msgspec.Struct, frozen=True):
    """The total of a component."""

    type: str
    amount: str


class ResourceUsage(msgspec.Struct, frozen=True):
    """The totals of a resource in the month of ``date``."""

    resource: str
    date: str
    usages: tuple[UsageItem, ...]


class UserUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The amount of one user; ``user`` is the URL of the offering's user, if there is one."""

    username: str
    usage: str
    date: str
    user: str | msgspec.UnsetType = msgspec.UNSET


class UserUsages(msgspec.Struct, frozen=True):
    """The amounts of many users."""

    usages: tuple[UserUsage, ...]


def amount_text(amount: Decimal) -> str:
    """An amount as it is sent. It was rounded once already, and is not rounded again.

    Raises:
        ValueError: it has more than two decimals, or is no number.
    """
    if not amount.is_finite() or amount != amount.quantize(CENT, context=_WIDE):
        raise ValueError(f"{amount} has more decimals than Waldur keeps, or is no number: round it first")
    return f"{amount:.2f}"


def resource_usage(resource: UUID, moment: datetime, amounts: Mapping[str, Decimal]) -> ResourceUsage:
    """The totals of a resource, by component."""
    items = tuple(UsageItem(component, amount_text(amount)) for component, amount in amounts.items())
    return ResourceUsage(str(resource), moment.isoformat(), items)


def user_usage(username: str, moment: datetime, amount: Decimal, link: str | None) -> UserUsage:
    """The amount of a user."""
    return UserUsage(username, amount_text(amount), moment.isoformat(), msgspec.UNSET if link is None else link)
