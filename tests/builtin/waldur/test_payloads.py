"""Our payloads against the models of Waldur's own released client: every member is one that it knows, in its form."""

# pyright: reportPrivateUsage=false
# Their arguments are to be had from their private functions only.

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, cast

import msgspec
import pytest
from waldur_api_client.api.marketplace_component_usages import (
    marketplace_component_usages_list,
    marketplace_component_usages_set_usage,
    marketplace_component_usages_set_user_usage,
    marketplace_component_usages_set_user_usages,
)
from waldur_api_client.api.marketplace_component_user_usages import marketplace_component_user_usages_list
from waldur_api_client.api.marketplace_offering_users import marketplace_offering_users_list
from waldur_api_client.api.marketplace_provider_offerings import marketplace_provider_offerings_retrieve
from waldur_api_client.api.marketplace_provider_resources import marketplace_provider_resources_list
from waldur_api_client.api.users import users_me_retrieve
from waldur_api_client.api.version import version_retrieve
from waldur_api_client.models.component_usage_create_request import ComponentUsageCreateRequest
from waldur_api_client.models.component_usage_field_enum import ComponentUsageFieldEnum
from waldur_api_client.models.component_user_usage_bulk_create_request import ComponentUserUsageBulkCreateRequest
from waldur_api_client.models.component_user_usage_create_request import ComponentUserUsageCreateRequest
from waldur_api_client.models.component_user_usage_field_enum import ComponentUserUsageFieldEnum
from waldur_api_client.models.offering_user_field_enum import OfferingUserFieldEnum
from waldur_api_client.models.provider_offering_details_field_enum import ProviderOfferingDetailsFieldEnum
from waldur_api_client.models.resource_field_enum import ResourceFieldEnum
from waldur_api_client.models.resource_state import ResourceState

from auditord_builtin.waldur import api
from auditord_builtin.waldur.api import Request, UserUsage, user_usage
from tests.waldur_server import OFFERING, uuid_of

MARCH: Final = date(2026, 3, 1)
NOW: Final = datetime(2026, 3, 15, 11, 30, 5, 250_000, tzinfo=UTC)
NOON: Final = datetime(2026, 2, 1, 12, tzinfo=UTC)
LINK: Final = "https://host/api/marketplace-offering-users/0123/"
RESOURCE: Final = uuid_of("one")
ROW: Final = uuid_of("row")

ALICE: Final = user_usage("alice", NOW, Decimal("0.19"), LINK)
BOB: Final = user_usage("bob", NOON, Decimal("6.4"), None)
TOTALS: Final = api.set_usage(RESOURCE, NOON, {"cpu": Decimal("6.59"), "gres/gpu": Decimal(0)})
USERS: Final = api.set_user_usages(ROW, [ALICE, BOB])


def plain(payload: Request | UserUsage) -> dict[str, Any]:  # Any: JSON
    encoded = (payload.body or b"") if isinstance(payload, Request) else msgspec.json.encode(payload)
    sent: dict[str, Any] = msgspec.json.decode(encoded)
    return sent


@pytest.mark.parametrize(
    ("payload", "model"),
    [
        (TOTALS, ComponentUsageCreateRequest),
        (USERS, ComponentUserUsageBulkCreateRequest),
        (ALICE, ComponentUserUsageCreateRequest),
        (BOB, ComponentUserUsageCreateRequest),
    ],
    ids=["totals", "users", "user with a link", "user"],
)
def test_payloads_survive_the_released_client(payload: Request | UserUsage, model: Any) -> None:  # Any: their models
    sent = plain(payload)
    read = model.from_dict(sent)
    assert read.to_dict() == sent
    assert not read.additional_properties
    assert not any(each.additional_properties for each in getattr(read, "usages", ()))


def test_the_documented_bodies() -> None:
    assert plain(TOTALS) == {
        "resource": str(RESOURCE),
        "date": "2026-02-01T12:00:00+00:00",
        "usages": [{"type": "cpu", "amount": "6.59"}, {"type": "gres/gpu", "amount": "0.00"}],
    }
    assert plain(USERS)["usages"][1] == {"username": "bob", "usage": "6.40", "date": "2026-02-01T12:00:00+00:00"}


def fields(kind: Any, answer: type[msgspec.Struct]) -> Any:  # Any: their enumerations
    return [kind(name) for name in answer.__struct_fields__]


READING: Final[list[tuple[Request, Any]]] = [  # Any: their keyword arguments
    (api.ME, users_me_retrieve._get_kwargs()),
    (api.VERSION, version_retrieve._get_kwargs()),
    (
        api.offering(OFFERING),
        marketplace_provider_offerings_retrieve._get_kwargs(
            OFFERING, field=fields(ProviderOfferingDetailsFieldEnum, api.Offering)
        ),
    ),
    (
        api.resources(OFFERING),
        marketplace_provider_resources_list._get_kwargs(
            offering_uuid=[OFFERING],
            state=[ResourceState(state) for state in api.RESOURCE_STATES],
            field=fields(ResourceFieldEnum, api.Resource),
        ),
    ),
    (
        api.offering_users(OFFERING),
        marketplace_offering_users_list._get_kwargs(
            offering_uuid=[OFFERING],
            is_restricted=False,
            field=fields(OfferingUserFieldEnum, api.OfferingUser),
        ),
    ),
    (
        api.component_usages(OFFERING, MARCH),
        marketplace_component_usages_list._get_kwargs(
            offering_uuid=OFFERING,
            billing_period=MARCH,
            field=fields(ComponentUsageFieldEnum, api.ComponentUsage),
        ),
    ),
    (
        api.component_usages(OFFERING, MARCH, RESOURCE),
        marketplace_component_usages_list._get_kwargs(
            resource_uuid=RESOURCE,
            billing_period=MARCH,
            field=fields(ComponentUsageFieldEnum, api.ComponentUsage),
        ),
    ),
    (
        api.user_usages(OFFERING, MARCH),
        marketplace_component_user_usages_list._get_kwargs(
            offering_uuid=OFFERING,
            component_usage_billing_period=MARCH,
            field=fields(ComponentUserUsageFieldEnum, api.ComponentUserUsage),
        ),
    ),
]
"""Each request for reading, and the released client's arguments for the same."""

WRITING: Final[list[tuple[Request, Any]]] = [  # Any: the same
    (
        TOTALS,
        marketplace_component_usages_set_usage._get_kwargs(body=ComponentUsageCreateRequest.from_dict(plain(TOTALS))),
    ),
    (
        USERS,
        marketplace_component_usages_set_user_usages._get_kwargs(
            ROW, body=ComponentUserUsageBulkCreateRequest.from_dict(plain(USERS))
        ),
    ),
    (
        api.set_user_usage(ROW, ALICE),
        marketplace_component_usages_set_user_usage._get_kwargs(
            ROW, body=ComponentUserUsageCreateRequest.from_dict(plain(ALICE))
        ),
    ),
]


def grouped(request: Request) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in request.parameters:
        found.setdefault(name, []).append(value)
    return found


def listed(parameters: dict[str, Any]) -> dict[str, list[str]]:  # Any: httpx takes many types
    def texts(value: object) -> list[str]:
        each = cast("list[object]", value) if isinstance(value, list) else [value]
        return [str(one).lower() if isinstance(one, bool) else str(one) for one in each]

    return {name: texts(value) for name, value in parameters.items()}


@pytest.mark.parametrize(("ours", "theirs"), READING, ids=lambda each: str(each) if isinstance(each, Request) else "")
def test_requests_for_reading_are_those_of_the_released_client(ours: Request, theirs: dict[str, Any]) -> None:
    assert (ours.method.lower(), ours.path) == (theirs["method"], theirs["url"])
    assert grouped(ours) == listed(theirs.get("params", {}))


@pytest.mark.parametrize(("ours", "theirs"), WRITING, ids=lambda each: str(each) if isinstance(each, Request) else "")
def test_requests_that_write_are_those_of_the_released_client(ours: Request, theirs: dict[str, Any]) -> None:
    assert (ours.method.lower(), ours.path) == (theirs["method"], theirs["url"])
    assert ours.body is not None
    assert msgspec.json.decode(ours.body) == theirs["json"]
