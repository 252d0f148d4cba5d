"""Waldur's answers, as far as we need them; unknown members are passed over, as its own client does."""

from datetime import date
from decimal import Decimal
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from auditord_builtin.waldur.errors import InvalidAnswer

T = TypeVar("T")

ERRED: Final = "Erred"
"""The state of a resource that is listed, and of which Waldur refuses every amount."""


class Permission(msgspec.Struct, frozen=True):
    """A role of a user."""

    role_name: str = ""
    scope_uuid: UUID | None = None


class User(msgspec.Struct, frozen=True):
    """The user of a token."""

    uuid: UUID
    username: str = ""
    full_name: str = ""
    is_staff: bool = False
    permissions: tuple[Permission, ...] = ()


class Version(msgspec.Struct, frozen=True):
    """The server's version."""

    version: str = "unknown"


class OfferingComponent(msgspec.Struct, frozen=True):
    """A measurable dimension of an offering.

    Args:
        type: its name in payloads.
        billing_type: ``usage``, ``limit``, ``one``, ``fixed`` or ``few``; amounts go to the first two only.
    """

    type: str
    name: str = ""
    billing_type: str = ""
    measured_unit: str = ""
    unit_factor: float | None = None

    @property
    def takes_usage(self) -> bool:
        """True if Waldur accepts amounts."""
        return self.billing_type in {"usage", "limit"}


class Offering(msgspec.Struct, frozen=True):
    """The offering."""

    uuid: UUID
    name: str = ""
    state: str = ""
    paused_reason: str | None = None
    backend_id: str | None = None
    customer_uuid: UUID | None = None
    customer_name: str | None = None
    components: tuple[OfferingComponent, ...] = ()


class Resource(msgspec.Struct, frozen=True):
    """One allocation; ``backend_id`` is the account's name."""

    uuid: UUID
    backend_id: str | None = None
    name: str = ""
    state: str = ""

    @property
    def takes_usage(self) -> bool:
        """True if Waldur accepts amounts."""
        return self.state != ERRED


class OfferingUser(msgspec.Struct, frozen=True):
    """A person's login at the offering; the name is missing until an account has been made."""

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
    """The amount of one user, below a total; ``component_usage`` is the total's URL."""

    username: str
    component_type: str
    usage: Decimal
    component_usage: str
    user: str | None = None
    resource_uuid: UUID | None = None

    @property
    def row(self) -> UUID:
        """The total that it is below.

        Raises:
            InvalidAnswer: its URL does not end in a UUID.
        """
        try:
            return UUID(self.component_usage.rstrip("/").rpartition("/")[2])
        except ValueError as error:
            raise InvalidAnswer(f"{self.component_usage!r} is no URL of a component usage") from error


def decode(body: bytes, kind: type[T], request: object) -> T:
    """Read an answer. UUIDs come with dashes or without; amounts as text, or as numbers.

    Raises:
        InvalidAnswer: it is something else.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = body[:200].decode(errors="replace")
        raise InvalidAnswer(
            f"{request} was answered with something that Waldur does not say ({error}): {text}"
        ) from None
