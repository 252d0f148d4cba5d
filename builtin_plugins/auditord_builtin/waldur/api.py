"""Waldur's API: requests, answers and errors.

Paths and parameters are those that Waldur's released client sends.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Context, Decimal
from http import HTTPStatus
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from auditord_builtin.waldur.config import CENT
from auditord_hookspecs import AuditordError


class WaldurError(AuditordError):
    """The base class of this client's errors.

    Remedy:
        see the class that was raised; `auditord waldur diagnose` checks everything between the records and Waldur.
    """


class Unreachable(WaldurError):
    """All attempts failed, without an answer or with 429 or 5xx except 500. Waldur may or may not have the amounts.

    Remedy:
        check network, proxy and Waldur; the next run reports the amounts.
    """


class InvalidAnswer(WaldurError):
    """The answer was incomplete, or did not come from Waldur. A retry would not help.

    Remedy:
        check waldur_api_url: it must end in /api/, and Waldur itself must answer there.
    """


class Answered(WaldurError):
    """Waldur answered with an error: ``status``, and ``body`` as text.

    Remedy:
        read the body, which is Waldur's own message; `auditord waldur diagnose` checks token, offering and accounts.
    """

    def __init__(self, text: str, status: int, body: str) -> None:
        super().__init__(text)
        self.status = status
        self.body = body


class AccessDenied(Answered):
    """401 or 403: the token is not valid, or its user may not do this.

    Remedy:
        create a new token in Waldur for a user with a role on the offering, write it to waldur_api_token, and run
        `auditord waldur diagnose`.
    """

    @property
    def for_all(self) -> bool:
        """True if the token itself is not valid, so that every other request will fail as well."""
        return self.status == HTTPStatus.UNAUTHORIZED


class Refused(Answered):
    """Waldur refused this request with another 4xx status.

    Remedy:
        read the body, which is Waldur's own message; `auditord waldur diagnose` checks for causes.
    """

    @property
    def about_a_closed_month(self) -> bool:
        """True if Waldur refused because the token may not report for past months."""
        return "backfilling past billing periods" in self.body.casefold()


class ServerFailed(Answered):
    """Waldur answered 500 to every attempt: it cannot handle this request.

    Remedy:
        read Waldur's log; the next run tries again.
    """


class DateIgnored(WaldurError):
    """This Waldur ignores dates: an amount for a past month did not arrive in that month.

    An old Waldur answers 201 and writes the amount into the current month.

    Remedy:
        upgrade Waldur, or load the month with a staff token: `auditord waldur load-history`.
    """


T = TypeVar("T")

ERRED: Final = "Erred"
"""The state of resources for which Waldur refuses every amount."""


class Permission(msgspec.Struct, frozen=True):
    """A role of a user."""

    role_name: str = ""
    scope_uuid: UUID | None = None


class User(msgspec.Struct, frozen=True):
    uuid: UUID
    username: str = ""
    full_name: str = ""
    is_staff: bool = False
    permissions: tuple[Permission, ...] = ()


class Version(msgspec.Struct, frozen=True):
    version: str = "unknown"


class OfferingComponent(msgspec.Struct, frozen=True):
    """A measurable dimension of an offering.

    Args:
        type: its name in payloads.
        billing_type: ``usage``, ``limit``, ``one``, ``fixed`` or ``few``. Only the first two accept usage.
    """

    type: str
    name: str = ""
    billing_type: str = ""
    measured_unit: str = ""
    unit_factor: float | None = None

    @property
    def takes_usage(self) -> bool:
        """True if Waldur accepts usage of this component."""
        return self.billing_type in {"usage", "limit"}


class Offering(msgspec.Struct, frozen=True):
    uuid: UUID
    name: str = ""
    state: str = ""
    paused_reason: str | None = None
    backend_id: str | None = None
    customer_uuid: UUID | None = None
    customer_name: str | None = None
    components: tuple[OfferingComponent, ...] = ()


class Resource(msgspec.Struct, frozen=True):
    """An allocation. ``backend_id`` is the account's name."""

    uuid: UUID
    backend_id: str | None = None
    name: str = ""
    state: str = ""

    @property
    def takes_usage(self) -> bool:
        """True if Waldur accepts usage of this resource."""
        return self.state != ERRED


class OfferingUser(msgspec.Struct, frozen=True):
    """A person's login at the offering. The name is missing until an account has been created."""

    uuid: UUID
    url: str
    username: str | None = None
    state: str | None = None


class ComponentUsage(msgspec.Struct, frozen=True):
    """The total of a resource, component and month."""

    uuid: UUID
    type: str
    usage: Decimal
    resource_uuid: UUID
    billing_period: date | None = None


class ComponentUserUsage(msgspec.Struct, frozen=True):
    """The amount of one user, below a total. ``component_usage`` is the total's URL."""

    username: str
    component_type: str
    usage: Decimal
    component_usage: str
    user: str | None = None
    resource_uuid: UUID | None = None

    @property
    def row(self) -> UUID:
        """The UUID of the total that this amount belongs to.

        Raises:
            InvalidAnswer: the total's URL does not end in a UUID.
        """
        try:
            return UUID(self.component_usage.rstrip("/").rpartition("/")[2])
        except ValueError as error:
            raise InvalidAnswer(f"{self.component_usage!r} is not the URL of a component usage") from error


def decode(body: bytes, kind: type[T], request: object) -> T:
    """Decode an answer. UUIDs may lack dashes, and amounts may be strings or numbers.

    Raises:
        InvalidAnswer: the body is not JSON of this kind.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = body[:200].decode(errors="replace")
        raise InvalidAnswer(f"{request}: the answer is not in Waldur's format ({error}): {text}") from None


PAGE_SIZE: Final = 300
"""The largest page size. Servers reduce larger sizes without an error."""

RESOURCE_STATES: Final = ("OK", "Updating", "Terminating", ERRED)
"""The states of resources to list: those that accept usage, and ``Erred``, which is reported as held back."""

MAX_USERNAME: Final = 100
"""The maximum length in characters. Waldur refuses longer names."""

_USAGES: Final = "/api/marketplace-component-usages/"
_WIDE: Final = Context(prec=100)


class Request(msgspec.Struct, frozen=True):
    """A request: a path below the server's address, ordered query parameters, and an optional JSON body."""

    method: str
    path: str
    parameters: Sequence[tuple[str, str]] = ()
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def page(self, number: int) -> "Request":
        parameters = (*self.parameters, ("page", str(number)), ("page_size", str(PAGE_SIZE)))
        return Request(self.method, self.path, parameters)


def _get(path: str, *parameters: tuple[str, str], kind: type[msgspec.Struct] | None = None) -> Request:
    """Return a GET request for the fields of ``kind``, or for all fields without a kind."""
    fields = () if kind is None else kind.__struct_fields__
    return Request("GET", path, (*parameters, *(("field", name) for name in fields)))


ME: Final = _get("/api/users/me/")
VERSION: Final = _get("/api/version/")
BULK_PROBE: Final = Request("OPTIONS", f"{_USAGES}{UUID(int=0)}/set_user_usages/")
"""Asks for the methods of the bulk endpoint, without changing anything. 404 means that the server has none."""


def offering(uuid: UUID) -> Request:
    return _get(f"/api/marketplace-provider-offerings/{uuid}/", kind=Offering)


def resources(offering_uuid: UUID) -> Request:
    states = [("state", state) for state in RESOURCE_STATES]
    of = ("offering_uuid", str(offering_uuid))
    return _get("/api/marketplace-provider-resources/", of, *states, kind=Resource)


def offering_users(offering_uuid: UUID) -> Request:
    """Return the request for an offering's users in any state, except those whose access is restricted."""
    of = (("offering_uuid", str(offering_uuid)), ("is_restricted", "false"))
    return _get("/api/marketplace-offering-users/", *of, kind=OfferingUser)


def component_usages(offering_uuid: UUID, month: date, resource: UUID | None = None) -> Request:
    """Return the request for the totals of a month, of all resources or of one."""
    of = ("offering_uuid", str(offering_uuid)) if resource is None else ("resource_uuid", str(resource))
    return _get(_USAGES, of, ("billing_period", month.isoformat()), kind=ComponentUsage)


def user_usages(offering_uuid: UUID, month: date) -> Request:
    of = (("offering_uuid", str(offering_uuid)), ("component_usage__billing_period", month.isoformat()))
    return _get("/api/marketplace-component-user-usages/", *of, kind=ComponentUserUsage)


class UserUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The amount to write for one user. ``user`` is the URL of the offering user, if known."""

    username: str
    usage: str
    date: str
    user: str | msgspec.UnsetType = msgspec.UNSET


def set_usage(resource: UUID, moment: datetime, amounts: Mapping[str, Decimal]) -> Request:
    """Return the request that writes a resource's totals, by component, for the month of ``moment``."""
    items = [{"type": component, "amount": amount_text(amount)} for component, amount in amounts.items()]
    return _post("set_usage/", {"resource": str(resource), "date": moment.isoformat(), "usages": items})


def set_user_usages(row: UUID | str, usages: Sequence[UserUsage]) -> Request:
    """Return the request that writes the amounts of many users below a total, in one transaction."""
    return _post(f"{row}/set_user_usages/", {"usages": usages})


def set_user_usage(row: UUID | str, usage: UserUsage) -> Request:
    """Return the request that writes the amount of one user below a total."""
    return _post(f"{row}/set_user_usage/", usage)


def _post(path: str, payload: object) -> Request:
    return Request("POST", f"{_USAGES}{path}", body=msgspec.json.encode(payload))


def amount_text(amount: Decimal) -> str:
    """Return an amount as text with two decimals. It must already be rounded.

    Raises:
        ValueError: the amount has more than two decimals, or is not finite.
    """
    if not amount.is_finite() or amount != amount.quantize(CENT, context=_WIDE):
        raise ValueError(f"{amount} has more decimals than Waldur keeps, or is not a number: round it first")
    return f"{amount:.2f}"


def user_usage(username: str, moment: datetime, amount: Decimal, link: str | None) -> UserUsage:
    """Return the payload for a user's amount. ``link`` is the URL of the offering user, if known."""
    return UserUsage(username, amount_text(amount), moment.isoformat(), msgspec.UNSET if link is None else link)
