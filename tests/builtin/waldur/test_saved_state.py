"""A state that an earlier version saved is understood."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pytest

from auditord.testing import FakePluginContext
from auditord_builtin.waldur.api import Permission, User
from auditord_builtin.waldur.planning import ResourcePlan
from auditord_builtin.waldur.state import RETRY_AFTER, Refusals, ReportState, identity_of
from tests.waldur_settings import waldur_config

SAVED: Final[dict[str, Any]] = {
    "refused": {
        "2026-02 00000000-0000-0000-0000-000000000007": {
            "figures": "5cb0e5f9470f5878",
            "identity": "60a19f84f5090730",
            "at": "2026-03-15T12:00:00+00:00",
        }
    },
    "ignores_dates": "7.1.0",
    "probes": [{"resource": "00000000-0000-0000-0000-000000000007"}],
}
"""As version 1.0.0 saves it."""
AT: Final = datetime(2026, 3, 15, 12, tzinfo=UTC)
PLAN: Final = ResourcePlan(
    UUID(int=7), "acct", {"cpu": Decimal("1.50"), "mem": Decimal("0.25")}, {"alice": {"cpu": Decimal("1.00")}}
)


def refusals(now: datetime) -> Refusals:
    user = User(UUID(int=9), "x", permissions=(Permission("OFFERING.MANAGER", scope_uuid=UUID(int=3)),))
    config = waldur_config(waldur_api_url="http://h/api/", waldur_api_token="secret")  # noqa: S106 of a test
    return Refusals(SAVED["refused"], now, identity_of(config, user))


def test_what_waldur_refused_is_not_sent_again_before_its_time() -> None:
    assert refusals(AT).has("2026-02", PLAN)
    assert not refusals(AT + RETRY_AFTER).has("2026-02", PLAN)
    assert not refusals(AT + timedelta(hours=1)).has("2026-01", PLAN)
    found = Refusals({}, AT, "60a19f84f5090730")
    found.add("2026-02", PLAN)
    assert found.as_json(["2026-02"]) == SAVED["refused"]


@pytest.mark.anyio
async def test_the_state_is_saved_as_it_was_read() -> None:
    context = FakePluginContext(state=SAVED)
    state = ReportState(context)
    assert (state.ignores_dates, state.refused, state.probes) == tuple(
        SAVED[key] for key in ("ignores_dates", "refused", "probes")
    )
    state.ignores_dates = None
    await state.save()
    assert context.state == {"refused": SAVED["refused"], "probes": SAVED["probes"]}
