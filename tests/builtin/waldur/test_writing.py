"""One month's figures on their way to Waldur: everything arrives in the end, and nothing is asked that need not be."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from auditord.testing import FakePluginContext
from auditord_builtin.waldur.api import AccessDenied, DateIgnored, Unreachable
from auditord_builtin.waldur.client import open_client
from auditord_builtin.waldur.planning import MonthPlan, ResourcePlan
from auditord_builtin.waldur.state import ReportState
from auditord_builtin.waldur.usage import BillingMonth, moment_of
from auditord_builtin.waldur.writing import DateCheck, MonthOutcome, write_month
from tests.waldur_server import (
    BROKEN,
    CUT,
    RESET,
    RESET_AFTER,
    STAFF_TOKEN,
    TOKEN,
    FakeWaldur,
    Fault,
    fake_waldur,
    throttled,
    uuid_of,
)
from tests.waldur_settings import waldur_config

pytestmark = pytest.mark.anyio

MARCH, FEBRUARY = date(2026, 3, 1), date(2026, 2, 1)
NOW = datetime(2026, 3, 15, 11, tzinfo=UTC)
NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
NAMES = [f"r{number}" for number in range(6)]

SET_USAGE = "POST /api/marketplace-component-usages/set_usage/"
TOTALS = "GET /api/marketplace-component-usages/"
USERS = "GET /api/marketplace-component-user-usages/"


def resources(names: Sequence[str] = NAMES) -> dict[str, tuple[str, str]]:
    return {name: (f"acct-{name}", "OK") for name in names}


def figures(amount: str, users: Mapping[str, str]) -> tuple[dict[str, Decimal], dict[str, dict[str, Decimal]]]:
    components: list[str] = ["cpu", "mem"]
    totals = dict.fromkeys(components, Decimal(amount))
    return totals, {user: dict.fromkeys(components, Decimal(text)) for user, text in users.items()}


def plan(names: Sequence[str] = NAMES, *, closed: bool = False, amount: str = "6.59") -> MonthPlan:
    totals, users = figures(amount, {"alice": "0.19", "bob": "6.40"})
    each = [ResourcePlan(uuid_of(name), f"acct-{name}", totals, users) for name in names]
    return MonthPlan(FEBRUARY if closed else MARCH, NOON if closed else NOW, closed, each)


async def report(
    waldur: FakeWaldur,
    wanted: MonthPlan,
    token: str = TOKEN,
    shown: list[str] | None = None,
    concurrent_requests: int = 2,
) -> MonthOutcome:
    access = {"waldur_api_url": waldur.url, "waldur_api_token": token}
    config = waldur_config(**access)
    show = None if shown is None else shown.append
    async with open_client(config, FakePluginContext().http, show=show, monotonic=lambda: 0.0) as client:
        client.concurrency = concurrent_requests
        return await write_month(client, wanted, DateCheck(client, ReportState(FakePluginContext()), NOW))


def amounts(waldur: FakeWaldur, month: str = "2026-03") -> tuple[set[str], int, int]:
    totals, users = waldur.totals(month), waldur.user_amounts(month)
    return set(totals.values()), len(totals), len(users)


async def test_a_month_in_as_few_requests_as_can_be() -> None:
    with fake_waldur(resources=resources()) as waldur:
        outcome = await report(waldur, plan())
        assert outcome.complete
        assert amounts(waldur) == ({"6.59"}, 12, 24)
        asked = waldur.asked()
        assert len(asked) == 1 + 6 + 1 + 1 + 6 * 2  # the totals, set_usage, the totals again, users, users by component
        assert asked[0] == TOTALS
        assert [each.users for each in outcome.resources] == [4] * 6


async def test_reporting_again_writes_nothing() -> None:
    with fake_waldur(resources=resources()) as waldur:
        await report(waldur, plan())
        waldur.requests.clear()
        outcome = await report(waldur, plan())
        assert outcome.complete
        assert waldur.asked() == [TOTALS, USERS]
        assert not any(each.totals for each in outcome.resources)


async def test_what_was_read_before_is_not_read_again() -> None:
    with fake_waldur(resources=resources()) as waldur:
        outcome = await report(waldur, replace(plan(), rows=(), user_rows=()))
        assert outcome.complete
        assert waldur.asked("GET") == [TOTALS]


async def test_only_what_differs_is_written() -> None:
    with fake_waldur(resources=resources()) as waldur:
        await report(waldur, plan())
        waldur.rows[0].usage = Decimal("1.00")
        waldur.rows[1].users["bob"] = Decimal("2.00"), None
        waldur.requests.clear()
        assert (await report(waldur, plan())).complete
        assert [each["type"] for body in waldur.bodies("set_usage") for each in body["usages"]] == ["cpu"]
        assert [each["username"] for body in waldur.bodies("set_user_usages") for each in body["usages"]] == ["bob"]


async def test_a_user_who_joined_the_offering_later_gets_a_link() -> None:
    with fake_waldur(resources=resources(["r0"])) as waldur:
        await report(waldur, plan(["r0"]))
        linked = replace(plan(["r0"]), links={"alice": "https://waldur.example/alice/"})
        await report(waldur, linked)
        assert waldur.rows[0].users["alice"] == (Decimal("0.19"), "https://waldur.example/alice/")
        waldur.requests.clear()
        await report(waldur, linked)
        assert waldur.asked("POST") == []


# -- isolation --------------------------------------------------------------------------------------------------------


async def test_one_resource_that_is_refused_does_not_keep_the_others_out() -> None:
    there = resources() | {"r2": ("acct-r2", "Erred")}
    with fake_waldur(resources=there) as waldur:
        outcome = await report(waldur, plan())
        assert not outcome.complete
        assert outcome.stopped is None
        assert [each.plan.backend_id for each in outcome.resources if each.problems] == ["acct-r2"]
        assert "not in valid state" in outcome.resources[2].problems[0]
        assert amounts(waldur) == ({"6.59"}, 10, 20)
        assert len(waldur.bodies("set_usage")) == 6  # a refusal is not argued with


async def test_users_stay_as_they_are_below_a_total_that_was_refused() -> None:
    with fake_waldur(resources=resources(["r0"])) as waldur:
        await report(waldur, replace(plan(["r0"]), resources=[replace(plan().resources[0], users={})]))
        waldur.resources["r0"] = ("acct-r0", "Erred")
        outcome = await report(waldur, plan(["r0"], amount="7.00"))
        assert len(outcome.resources[0].problems) == 1
        assert waldur.user_amounts("2026-03") == {}


async def test_a_resource_that_breaks_the_server_does_not_keep_the_others_out() -> None:
    with fake_waldur(resources=resources()) as waldur:
        waldur.fail(SET_USAGE, *[Fault(500)] * 3)
        first = await report(waldur, replace(plan(), resources=plan().resources[:1]))
        assert not first.complete
        outcome = await report(waldur, plan())
        assert outcome.complete


async def test_users_that_are_refused_do_not_keep_the_others_out() -> None:
    with fake_waldur(resources=resources(["r0"]), refused_users={"bob"}) as waldur:
        wanted = plan(["r0"])
        odd = {**wanted.resources[0].users, "": {"cpu": Decimal(1)}, "x" * 101: {"cpu": Decimal(2)}}
        outcome = await report(waldur, replace(wanted, resources=[replace(wanted.resources[0], users=odd)]))
        assert sorted(each[:10] for each in outcome.resources[0].problems) == [
            "user '': W",
            "user 'xxxx",
            "user bob: ",
            "user bob: ",
        ]
        assert set(waldur.user_amounts("2026-03")) == {("acct-r0", "cpu", "alice"), ("acct-r0", "mem", "alice")}


async def test_users_below_a_total_of_which_there_are_two_are_not_guessed() -> None:
    with fake_waldur(resources=resources(["r0"])) as waldur:
        await report(waldur, plan(["r0"]))
        waldur.rows.append(dataclasses.replace(waldur.rows[0], uuid=uuid_of("second")))
        waldur.requests.clear()
        outcome = await report(waldur, plan(["r0"]))
        assert outcome.resources[0].problems == [
            "cpu: Waldur has several totals of this month, so its users were not reported"
        ]


# -- faults -----------------------------------------------------------------------------------------------------------

FAULTS = [RESET, RESET_AFTER, CUT, Fault(502), Fault(503, after=True), throttled(3), Fault(500)]


@pytest.mark.parametrize("seed", range(7))
async def test_everything_is_reported_in_the_end_whatever_happens_on_the_way(seed: int) -> None:
    faults = [*FAULTS[seed:], *FAULTS[:seed]]
    with fake_waldur(resources=resources(), page_size=5) as waldur:
        for beginning in (SET_USAGE, TOTALS, USERS, "POST /api/marketplace-component-usages/"):
            waldur.fail(beginning, *[each for fault in faults for each in (fault, None)])
        for _ in range(20):
            if (await report(waldur, plan())).complete:
                break
        assert amounts(waldur) == ({"6.59"}, 12, 24)
        again = len(waldur.asked("POST"))
        assert (await report(waldur, plan())).complete
        assert len(waldur.asked("POST")) == again


async def test_a_token_that_is_not_valid_is_tried_once() -> None:
    with fake_waldur(resources=resources()) as waldur:
        outcome = await report(waldur, plan(), token="stolen")  # noqa: S106 a test's own
        assert isinstance(outcome.stopped, AccessDenied)
        assert waldur.asked() == [TOTALS]


async def test_a_token_without_a_role_is_not_tried_on_every_resource() -> None:
    with fake_waldur(resources=resources(), roles=False) as waldur:
        outcome = await report(waldur, plan())
        assert isinstance(outcome.stopped, AccessDenied)
        assert len(waldur.asked("POST")) <= 4  # three in a row, and one that was under way


async def test_a_server_that_went_away_is_not_tried_for_every_resource() -> None:
    with fake_waldur(resources=resources([f"r{number}" for number in range(20)])) as waldur:
        waldur.always[SET_USAGE] = Fault(503)
        outcome = await report(waldur, plan([f"r{number}" for number in range(20)]))
        assert isinstance(outcome.stopped, Unreachable)
        assert len(outcome.resources) <= 4
        assert outcome.resources[0].problems


async def test_faults_that_are_not_in_a_row_do_not_end_the_month() -> None:
    names = [f"r{number}" for number in range(9)]
    with fake_waldur(resources=resources(names)) as waldur:
        waldur.fail(SET_USAGE, *[Fault(302), Fault(302), None] * 3)
        outcome = await report(waldur, plan(names), concurrent_requests=1)
        assert outcome.stopped is None
        assert len(waldur.totals("2026-03")) == 3 * 2
        waldur.faults.clear()
        waldur.fail(SET_USAGE, *[Fault(302), Fault(302), Fault(400)] * 3)
        assert (await report(waldur, plan(names, amount="7.00"), concurrent_requests=1)).stopped is None


async def test_what_need_not_be_written_is_no_sign_that_waldur_is_there() -> None:
    names = [f"r{number}" for number in range(9)]
    with fake_waldur(resources=resources(names)) as waldur:
        waldur.fail(SET_USAGE, *[Fault(400), None] * 4, Fault(400))
        await report(waldur, plan(names), concurrent_requests=1)
        waldur.always[SET_USAGE] = Fault(503)
        waldur.requests.clear()
        outcome = await report(waldur, plan(names), concurrent_requests=1)
        assert isinstance(outcome.stopped, Unreachable)
        assert sum(bool(each.problems) for each in outcome.resources) == 3


async def test_half_an_answer_is_no_list_of_totals() -> None:
    with fake_waldur(resources=resources()) as waldur:
        waldur.fail(TOTALS, BROKEN)
        outcome = await report(waldur, plan())
        assert outcome.stopped is not None
        assert waldur.asked() == [TOTALS]


# -- months that are over ---------------------------------------------------------------------------------------------


async def test_a_month_that_is_over_is_written_at_its_noon_and_looked_at_once() -> None:
    with fake_waldur(resources=resources()) as waldur:
        outcome = await report(waldur, plan(closed=True), STAFF_TOKEN)
        assert outcome.complete
        assert amounts(waldur, "2026-02") == ({"6.59"}, 12, 24)
        assert amounts(waldur, "2026-03")[1:] == (0, 0)
        assert {body["date"] for body in waldur.bodies("set_usage")} == {"2026-02-01T12:00:00+00:00"}
        asked = waldur.asked()
        assert asked[:5] == [TOTALS, TOTALS, SET_USAGE, TOTALS, SET_USAGE], "the present one, too"
        assert asked.count(TOTALS) == 4


@pytest.mark.parametrize("before", [None, "3.00"], ids=["first time", "month has a figure"])
async def test_a_server_that_does_not_know_dates_gets_one_amount_and_no_more(before: str | None) -> None:
    with fake_waldur(resources=resources(), knows_dates=False, has_bulk=False) as waldur:
        if before is not None:
            waldur.now -= timedelta(days=28)
            await report(waldur, plan(amount=before))
            waldur.now += timedelta(days=28)
            waldur.requests.clear()
        outcome = await report(waldur, plan(closed=True), STAFF_TOKEN)
        assert isinstance(outcome.stopped, DateIgnored)
        assert str(outcome.stopped).startswith("acct-r0: Waldur accepted the usage of 2026-02 but does not have it")
        assert len(waldur.asked("POST")) == 2  # it is taken back
        assert [each.totals for each in outcome.resources] == [{}], "and not reported as written"
        assert waldur.totals("2026-03")["acct-r0", "cpu"] == "0.00"
        assert (await report(waldur, plan(amount="7.00"))).complete
        assert amounts(waldur) == ({"7.00"}, 12, 24)


async def test_what_a_provider_may_not_report_any_more_is_named_as_lost() -> None:
    with fake_waldur(resources=resources(["r0", "r1"])) as waldur:
        outcome = await report(waldur, plan(["r0", "r1"], closed=True))
        assert [each.lost for each in outcome.resources] == [{"cpu": Decimal("6.59"), "mem": Decimal("6.59")}] * 2
        assert outcome.stopped is None
        assert len(waldur.asked("POST")) == 2


def test_the_instant_that_goes_with_a_month() -> None:
    tallinn = ZoneInfo("Europe/Tallinn")
    march = BillingMonth(2026, 3, tallinn)
    assert moment_of(march.previous, NOW) == NOON
    assert moment_of(march, NOW) == NOW - timedelta(minutes=5)
    first_hours = march.window.start + timedelta(minutes=30)  # 28 February in UTC
    assert moment_of(march, first_hours) is None
    assert moment_of(march.previous, first_hours) == NOON
    honolulu = BillingMonth(2026, 3, ZoneInfo("Pacific/Honolulu"))
    assert moment_of(honolulu, datetime(2026, 4, 1, 3, tzinfo=UTC)) is None  # 31 March there
    assert moment_of(march, march.window.start + timedelta(hours=2, minutes=4)) is None


# -- dry run ----------------------------------------------------------------------------------------------------------


async def test_a_dry_run_shows_every_request_and_makes_none() -> None:
    with fake_waldur(resources=resources(["r0"])) as waldur:
        shown: list[str] = []
        outcome = await report(waldur, plan(["r0"], closed=True), shown=shown)
        assert outcome.complete
        assert waldur.asked("POST") == []
        assert [line.split(" {")[0] for line in shown] == [
            SET_USAGE,
            "POST /api/marketplace-component-usages/<the new total of cpu>/set_user_usages/",
            "POST /api/marketplace-component-usages/<the new total of mem>/set_user_usages/",
        ]
