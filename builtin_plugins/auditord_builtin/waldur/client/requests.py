"""The requests of Waldur's API that we make, as values; paths and parameters as its released client sends them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final
from uuid import UUID

import msgspec

from auditord_builtin.waldur.client.answers import ERRED

PAGE_SIZE: Final = 300
"""The most that servers gave; more is cut to that without a word."""

RESOURCE_STATES: Final = ("OK", "Updating", "Terminating", ERRED)
"""Of the resources that are listed: those whose usage Waldur takes, and those that are told of until they recover."""

Parameters = Sequence[tuple[str, str]]

OFFERING_FIELDS: Final = (
    "uuid",
    "name",
    "state",
    "paused_reason",
    "backend_id",
    "customer_uuid",
    "customer_name",
    "components",
)
RESOURCE_FIELDS: Final = ("uuid", "backend_id", "name", "state")
OFFERING_USER_FIELDS: Final = ("url", "username", "uuid", "state")
COMPONENT_USAGE_FIELDS: Final = ("uuid", "type", "usage", "resource_uuid", "billing_period")
USER_USAGE_FIELDS: Final = ("username", "component_type", "usage", "component_usage", "user", "resource_uuid")


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Args:
        method: of HTTP.
        path: behind the server's address, with ``/api/``.
        parameters: of the query, in order; a name may be there several times.
        body: JSON, or None.
    """

    method: str
    path: str
    parameters: Parameters = ()
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def _get(path: str, *parameters: tuple[str, str], fields: Sequence[str] = ()) -> Request:
    return Request("GET", path, (*parameters, *(("field", name) for name in fields)))


ME: Final = _get("/api/users/me/")
VERSION: Final = _get("/api/version/")


def offering(uuid: UUID) -> Request:
    """Ask for an offering with its components."""
    return _get(f"/api/marketplace-provider-offerings/{uuid}/", fields=OFFERING_FIELDS)


def resources(offering_uuid: UUID) -> Request:
    """Ask for the resources that can have usage."""
    states = [("state", state) for state in RESOURCE_STATES]
    return _get(
        "/api/marketplace-provider-resources/",
        ("offering_uuid", str(offering_uuid)),
        *states,
        fields=RESOURCE_FIELDS,
    )


def offering_users(offering_uuid: UUID) -> Request:
    """Ask for the users of an offering, in whatever state, but for those whose access is restricted."""
    return _get(
        "/api/marketplace-offering-users/",
        ("offering_uuid", str(offering_uuid)),
        ("is_restricted", "false"),
        fields=OFFERING_USER_FIELDS,
    )


def component_usages(offering_uuid: UUID, month: date, resource: UUID | None = None) -> Request:
    """Ask for the totals of a month, of all resources or of one."""
    of = ("offering_uuid", str(offering_uuid)) if resource is None else ("resource_uuid", str(resource))
    return _get(
        "/api/marketplace-component-usages/",
        of,
        ("billing_period", month.isoformat()),
        fields=COMPONENT_USAGE_FIELDS,
    )


def user_usages(offering_uuid: UUID, month: date) -> Request:
    """Ask for the amounts of all users in a month."""
    return _get(
        "/api/marketplace-component-user-usages/",
        ("offering_uuid", str(offering_uuid)),
        ("component_usage__billing_period", month.isoformat()),
        fields=USER_USAGE_FIELDS,
    )


def set_usage(payload: msgspec.Struct) -> Request:
    """Write the totals of one resource and month."""
    return Request("POST", "/api/marketplace-component-usages/set_usage/", body=msgspec.json.encode(payload))


def set_user_usages(row: str, payload: msgspec.Struct) -> Request:
    """Write the amounts of many users below a total, all or none."""
    return Request(
        "POST", f"/api/marketplace-component-usages/{row}/set_user_usages/", body=msgspec.json.encode(payload)
    )


def set_user_usage(row: str, payload: msgspec.Struct) -> Request:
    """Write the amount of one user below a total."""
    return Request(
        "POST", f"/api/marketplace-component-usages/{row}/set_user_usage/", body=msgspec.json.encode(payload)
    )


def bulk_probe() -> Request:
    """Ask which methods the address for many users knows; it changes nothing, and 404 says that there is none."""
    return Request("OPTIONS", f"/api/marketplace-component-usages/{UUID(int=0)}/set_user_usages/")


def page(request: Request, number: int) -> Request:
    """The same, one page of it."""
    parameters = (*request.parameters, ("page", str(number)), ("page_size", str(PAGE_SIZE)))
    return Request(request.method, request.path, parameters)
