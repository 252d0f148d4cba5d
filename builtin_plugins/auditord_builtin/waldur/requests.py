"""The requests of Waldur's API that we make, as values; paths and parameters as its released client sends them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Final
from uuid import UUID

import msgspec

from auditord_builtin.waldur.answers import ERRED

PAGE_SIZE: Final = 300
"""The most that servers gave; more is cut to that without a word."""

RESOURCE_STATES: Final = ("OK", "Updating", "Terminating", ERRED)
"""Of the resources that are listed: those whose usage Waldur takes, and those that are named until they recover."""

CENT: Final = Decimal("0.01")
"""Waldur keeps two decimals; more are refused with 400."""

MAX_USERNAME: Final = 100
"""Characters; Waldur refuses longer ones."""

OFFERING_FIELDS: Final = (
    *("uuid", "name", "state", "paused_reason", "backend_id", "customer_uuid", "customer_name", "components"),
)
RESOURCE_FIELDS: Final = ("uuid", "backend_id", "name", "state")
OFFERING_USER_FIELDS: Final = ("url", "username", "uuid", "state")
COMPONENT_USAGE_FIELDS: Final = ("uuid", "type", "usage", "resource_uuid", "billing_period")
USER_USAGE_FIELDS: Final = ("username", "component_type", "usage", "component_usage", "user", "resource_uuid")

_USAGES: Final = "/api/marketplace-component-usages/"
_WIDE: Final = Context(prec=100)

Parameters = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a path behind the server's address, parameters of the query in order, JSON or nothing."""

    method: str
    path: str
    parameters: Parameters = ()
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def page(self, number: int) -> "Request":
        """One page of the request."""
        parameters = (*self.parameters, ("page", str(number)), ("page_size", str(PAGE_SIZE)))
        return Request(self.method, self.path, parameters)


def _get(path: str, *parameters: tuple[str, str], fields: Sequence[str] = ()) -> Request:
    return Request("GET", path, (*parameters, *(("field", name) for name in fields)))


ME: Final = _get("/api/users/me/")
VERSION: Final = _get("/api/version/")
BULK_PROBE: Final = Request("OPTIONS", f"{_USAGES}{UUID(int=0)}/set_user_usages/")
"""Asks which methods the address for many users knows; it changes nothing, and 404 says that there is none."""


def offering(uuid: UUID) -> Request:
    """Ask for an offering with its components."""
    return _get(f"/api/marketplace-provider-offerings/{uuid}/", fields=OFFERING_FIELDS)


def resources(offering_uuid: UUID) -> Request:
    """Ask for the resources that can have usage."""
    states = [("state", state) for state in RESOURCE_STATES]
    of = ("offering_uuid", str(offering_uuid))
    return _get("/api/marketplace-provider-resources/", of, *states, fields=RESOURCE_FIELDS)


def offering_users(offering_uuid: UUID) -> Request:
    """Ask for the users of an offering, in whatever state, but for those whose access is restricted."""
    of = (("offering_uuid", str(offering_uuid)), ("is_restricted", "false"))
    return _get("/api/marketplace-offering-users/", *of, fields=OFFERING_USER_FIELDS)


def component_usages(offering_uuid: UUID, month: date, resource: UUID | None = None) -> Request:
    """Ask for the totals of a month, of all resources or of one."""
    of = ("offering_uuid", str(offering_uuid)) if resource is None else ("resource_uuid", str(resource))
    return _get(_USAGES, of, ("billing_period", month.isoformat()), fields=COMPONENT_USAGE_FIELDS)


def user_usages(offering_uuid: UUID, month: date) -> Request:
    """Ask for the amounts of all users in a month."""
    of = (("offering_uuid", str(offering_uuid)), ("component_usage__billing_period", month.isoformat()))
    return _get("/api/marketplace-component-user-usages/", *of, fields=USER_USAGE_FIELDS)


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


def set_usage(payload: ResourceUsage) -> Request:
    """Write the totals of one resource and month."""
    return Request("POST", f"{_USAGES}set_usage/", body=msgspec.json.encode(payload))


def set_user_usages(row: str, payload: UserUsages) -> Request:
    """Write the amounts of many users below a total, all or none."""
    return Request("POST", f"{_USAGES}{row}/set_user_usages/", body=msgspec.json.encode(payload))


def set_user_usage(row: str, payload: UserUsage) -> Request:
    """Write the amount of one user below a total."""
    return Request("POST", f"{_USAGES}{row}/set_user_usage/", body=msgspec.json.encode(payload))


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
