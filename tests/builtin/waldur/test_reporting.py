"""Reports from records to a server that behaves as Waldur does."""

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest
from prometheus_client.registry import Collector

from auditord.testing import FakePluginContext, make_record
from auditord_builtin.waldur import metrics
from auditord_builtin.waldur.api import AccessDenied, WaldurError
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.reporting import NothingReported, NotReported, report_usage
from auditord_builtin.waldur.usage import Source
from auditord_hookspecs import Record
from tests.waldur_server import RESET_AFTER, STAFF_TOKEN, TOKEN, FakeWaldur, Fault, fake_waldur, uuid_of
from tests.waldur_settings import waldur_config

pytestmark = pytest.mark.anyio

NOW: Final = datetime(2026, 3, 15, 12, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
SET_USAGE: Final = "POST /api/marketplace-component-usages/set_usage/"
WRITES: Final = "POST"


def job(
    number: int = 1,
    *,
    start: datetime = NOW - 10 * HOUR,
    hours: float | None = 1,
    account: str = "acct1",
    user: str = "alice",
    cores: int = 60,
) -> Record:
    """With 60 cores an hour is 0.06 k-hours, and ten hours are 0.60."""
    runtime = None if hours is None else hours * HOUR
    meta = {"account": account, "user_id": user, "site_id": "cluster"}
    return make_record(f"job-{number}", start=start, runtime=runtime, cores=cores, components={"Memory": 1024}, **meta)


@pytest.fixture(autouse=True)
def one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord_builtin.waldur.client.CONCURRENT_REQUESTS", 1)


@pytest.fixture
def waldur() -> Iterator[FakeWaldur]:
    with fake_waldur(now=NOW, resources={"one": ("acct1", "OK"), "idle": ("acct2", "OK")}) as server:
        yield server


def settings(waldur: FakeWaldur, **options: Any) -> WaldurConfig:  # Any: as they would stand in a file
    access = {"waldur_api_url": waldur.url, "waldur_api_token": STAFF_TOKEN, "retry_for": "0s"}
    cpu = {"backend_components": {"cpu": {"unit_factor": 6000}}}
    return waldur_config(**{**access, **cpu, **options})


def context_of(
    *records: Record, moment: datetime = NOW, dry_run: bool = False, instance: str = "test"
) -> FakePluginContext:
    return FakePluginContext(stored=records, moment=moment, dry_run=dry_run, instance=instance)


def value(metric: Collector, *labels: object) -> float | None:
    """The samples that a scrape would find."""
    samples = [sample for family in metric.collect() for sample in family.samples]
    texts = [str(label) for label in labels]
    return next((each.value for each in samples if list(each.labels.values()) == texts), None)


async def test_the_last_and_the_present_month_are_reported(waldur: FakeWaldur) -> None:
    february = job(1, start=datetime(2026, 2, 28, 14, tzinfo=UTC), hours=20, user="bob")
    await report_usage(settings(waldur), context_of(february, job(2, hours=1)))
    assert waldur.totals("2026-02") == {("acct1", "cpu"): "6.00"}
    assert waldur.totals("2026-03") == {("acct1", "cpu"): "6.60", ("acct2", "cpu"): "0.00"}, "idle resources are zero"
    assert waldur.user_amounts("2026-02") == {("acct1", "cpu", "bob"): "6.00"}
    assert waldur.user_amounts("2026-03") == {("acct1", "cpu", "alice"): "0.60", ("acct1", "cpu", "bob"): "6.00"}


async def test_what_waldur_has_is_remembered_for_the_page(waldur: FakeWaldur) -> None:
    february = job(1, start=datetime(2026, 2, 28, 14, tzinfo=UTC), hours=20, user="bob")
    context, months = context_of(february, job(2, hours=1)), list[str]()
    for _ in range(2):  # the second time there is nothing to write
        await report_usage(settings(waldur), context)
        months = sorted(context.state["amounts"])
        assert [context.state["amounts"][month]["acct1"] for month in months] == [{"cpu": "6.00"}, {"cpu": "6.60"}]
    waldur.now = context.moment = NOW + timedelta(days=60)
    await report_usage(settings(waldur, lag="0s"), context)
    assert set(months).isdisjoint(context.state.get("amounts", {}))


async def test_reporting_again_writes_nothing(waldur: FakeWaldur) -> None:
    context = context_of(job(1), job(2, user="carol"))
    await report_usage(settings(waldur), context)
    written = len(waldur.asked(WRITES))
    await report_usage(settings(waldur), context)
    assert len(waldur.asked(WRITES)) == written > 0


async def test_a_running_job_counts_up_to_the_lag(waldur: FakeWaldur) -> None:
    running = job(start=NOW - 2 * HOUR, hours=None)
    await report_usage(settings(waldur, lag="1h"), context_of(running))
    assert waldur.totals("2026-03")["acct1", "cpu"] == "0.60"
    ended = job(start=NOW - 2 * HOUR, hours=1.5)
    await report_usage(settings(waldur, lag="1h"), context_of(ended, moment=NOW + HOUR / 2))  # our clock is fast
    assert waldur.totals("2026-03")["acct1", "cpu"] == "0.90", "its end was known before it counted as running on"


async def test_names_are_matched_in_any_case_and_as_waldur_spells_them(waldur: FakeWaldur) -> None:
    waldur.resources = {"one": ("Acct1", "OK")}
    waldur.users = ["Alice", "Bob:Requested"]
    await report_usage(settings(waldur), context_of(job(1, account="ACCT1", user="ALICE"), job(2, user="carol")))
    assert set(waldur.user_amounts("2026-03")) == {("Acct1", "cpu", "Alice"), ("Acct1", "cpu", "carol")}
    links = {usage["username"]: "user" in usage for usage in waldur.bodies("set_user_usages")[0]["usages"]}
    assert links == {"Alice": True, "carol": False}, "a user without an account in Waldur is reported without link"


async def test_a_decrease_is_explained_and_held_back(waldur: FakeWaldur, caplog: pytest.LogCaptureFixture) -> None:
    await report_usage(settings(waldur), context_of(job(1, hours=5), job(2, user="bob"), job(3, account="acct2")))
    fewer = context_of(job(2, user="bob"), job(3, account="acct2", hours=2))
    await report_usage(settings(waldur), fewer)
    assert waldur.totals("2026-03") == {("acct1", "cpu"): "3.60", ("acct2", "cpu"): "1.20"}, "others are reported"
    assert waldur.user_amounts("2026-03")["acct1", "cpu", "alice"] == "3.00"
    assert "acct1, 2026-03: held back: cpu would go from 3.60 to 0.60 (alice from 3.00 to 0.00)" in caplog.text
    assert "auditord waldur explain acct1 --month 2026-03" in caplog.text
    assert value(metrics.HELD_BACK, "test", "decrease") == 1
    await report_usage(settings(waldur, allow_decrease=True), fewer)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "0.60"
    assert waldur.user_amounts("2026-03")["acct1", "cpu", "alice"] == "0.00", "who is gone is not left as he was"
    assert value(metrics.HELD_BACK, "test", "decrease") == 0


async def test_a_users_decrease_behind_a_growing_total_is_held_back(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    await report_usage(settings(waldur), context_of(job(1, hours=5)))
    await report_usage(settings(waldur), context_of(job(2, hours=9, user="bob")))
    assert "cpu would go from 3.00 to 5.40 (alice from 3.00 to 0.00)" in caplog.text
    assert waldur.totals("2026-03")["acct1", "cpu"] == "3.00"


@pytest.mark.parametrize("allowed", [False, True])
async def test_stale_records_make_nothing_fall_and_nothing_zero(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture, *, allowed: bool
) -> None:
    config = settings(waldur, allow_decrease=allowed)
    await report_usage(config, context_of(job(1, hours=5), job(2, user="bob")))
    waldur.rows = [row for row in waldur.rows if row.usage]
    later = NOW + timedelta(days=2)
    waldur.now = later
    await report_usage(config, context_of(job(2, user="bob"), moment=later))
    assert waldur.totals("2026-03") == {("acct1", "cpu"): "3.60"}, "and the idle resource is not zero"
    assert "the records are not up to date: no record began or ended since 2026-03-16T12:00:00" in caplog.text
    assert value(metrics.HELD_BACK, "test", "stale") == 1


async def test_stale_records_may_still_say_more(waldur: FakeWaldur) -> None:
    await report_usage(settings(waldur), context_of(job(1)))
    waldur.now = NOW + timedelta(days=2)
    running = job(2, hours=None, start=NOW - 10 * HOUR, user="bob")
    await report_usage(settings(waldur), context_of(job(1), running, moment=waldur.now))
    assert float(waldur.totals("2026-03")["acct1", "cpu"]) > 30


async def test_each_configured_site_must_be_up_to_date(waldur: FakeWaldur, caplog: pytest.LogCaptureFixture) -> None:
    await report_usage(settings(waldur, sites=["cluster", "second"]), context_of(job(1)))
    assert waldur.totals("2026-03") == {("acct1", "cpu"): "0.60"}, "no zero for the idle one: second may know more"
    await report_usage(settings(waldur, sites=["cluster", "second"]), context_of(job(2, user="bob")))
    assert "no record of second began or ended" in caplog.text


async def test_a_month_that_is_over_is_never_zeroed_unasked(waldur: FakeWaldur) -> None:
    await report_usage(settings(waldur), context_of(job(1)))
    assert waldur.totals("2026-02") == {}
    assert all(body["date"].startswith("2026-03") for body in waldur.bodies("set_usage"))


async def test_two_resources_of_one_account_are_no_reason_to_bill_it_twice(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    waldur.resources = {"one": ("acct1", "OK"), "again": ("ACCT1", "OK")}
    with pytest.raises(NothingReported):
        await report_usage(settings(waldur), context_of(job(1)))
    assert waldur.rows == []
    assert "2 resources have this backend_id: one, again" in caplog.text


async def test_components_and_names_without_counterpart_are_reported(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    waldur.components = {"cpu": "usage", "mem": "fixed"}
    components = {"cpu": {"unit_factor": 6000}, "mem": {}, "gres/gpu": {}}
    records = [job(1), job(2, account="unknown"), job(3, user="stranger")]
    await report_usage(settings(waldur, backend_components=components), context_of(*records))
    assert "accepts no usage of mem, gres/gpu" in caplog.text
    assert "1 account has usage but no resource: unknown" in caplog.text
    assert "1 user has usage but is not an offering user: stranger" in caplog.text
    assert value(metrics.ACCOUNTS, "test") == 1
    assert value(metrics.USERS, "test") == 1
    assert value(metrics.AMOUNT, "test", "cpu", 0) == 1.2
    assert value(metrics.AMOUNT, "test", "cpu", 1) == 0


async def test_december_is_one_month_ago_in_january(waldur: FakeWaldur) -> None:
    waldur.now = datetime(2026, 1, 15, 12, tzinfo=UTC)
    december, january = (job(number, start=waldur.now - days * 24 * HOUR) for number, days in ((1, 20), (2, 1)))
    context = context_of(december, january, moment=waldur.now, instance="january")
    await report_usage(settings(waldur), context)
    assert waldur.totals("2025-12") == {("acct1", "cpu"): "0.60"}
    assert value(metrics.AMOUNT, "january", "cpu", 1) == 0.6


async def test_prefixes_leave_resources_alone(waldur: FakeWaldur) -> None:
    waldur.resources = {"one": ("hpc_1", "OK"), "other": ("other", "OK"), "nameless": ("", "OK")}
    await report_usage(settings(waldur, account_prefixes=["HPC_"]), context_of(job(1, account="hpc_1")))
    assert set(waldur.totals("2026-03")) == {("hpc_1", "cpu")}


async def test_a_dry_run_shows_what_would_be_done(waldur: FakeWaldur) -> None:
    await report_usage(settings(waldur), context_of(job(1, hours=2)))
    written = len(waldur.asked(WRITES))
    context = context_of(job(1), job(2, account="acct2"), dry_run=True)
    await report_usage(settings(waldur), context)
    assert len(waldur.asked(WRITES)) == written
    shown = "\n".join(context.shown)
    assert "acct1, 2026-03: held back: cpu would go from 1.20 to 0.60" in shown
    assert '"amount":"0.60"' in shown.replace(" ", "")
    assert shown.endswith("2026-03: 1 total and 1 user amount of 1 resource would be written; 1 resource held back")


async def test_a_provider_is_told_what_nobody_is_billed_for(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    february = job(1, start=datetime(2026, 2, 28, 14, tzinfo=UTC), hours=20)
    context = context_of(february, job(2))
    await report_usage(settings(waldur, waldur_api_token=TOKEN), context)
    assert waldur.totals("2026-02") == {}
    assert waldur.totals("2026-03")["acct1", "cpu"] == "6.60"
    assert (
        "acct1, 2026-02: Waldur accepts no more usage of this month from us, although cpu 6.00 is right" in caplog.text
    )
    assert value(metrics.CLOSED, "test") == 1


async def test_what_is_refused_for_good_is_asked_again_the_next_day_or_when_it_changes(waldur: FakeWaldur) -> None:
    february = job(1, start=datetime(2026, 2, 28, 14, tzinfo=UTC), hours=5)
    context, provider = context_of(february, job(2)), settings(waldur, waldur_api_token=TOKEN)

    async def asked_again() -> int:
        waldur.requests.clear()
        await report_usage(provider, context)
        assert value(metrics.CLOSED, "test") == 1, "it is still reported"
        return sum(body["date"].startswith("2026-02") for body in waldur.bodies("set_usage"))

    assert await asked_again() == 1
    assert await asked_again() == 0
    context.stored = [february, job(2), job(3, start=datetime(2026, 2, 3, tzinfo=UTC))]
    assert await asked_again() == 1
    assert await asked_again() == 0
    waldur.now = context.moment = NOW + timedelta(days=1)
    assert await asked_again() == 1
    waldur.now = context.moment = NOW + timedelta(days=60)
    provider = settings(waldur, waldur_api_token=STAFF_TOKEN, lag="0s")
    await report_usage(provider, context)
    assert context.state == {"refused": {}}, "nothing is kept for ever"


async def test_a_server_that_ignores_dates_is_found_out_once(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    waldur.knows_dates = False
    months = [job(n, start=datetime(2026, n, 3, tzinfo=UTC), hours=10 * n) for n in (1, 2, 3)]
    context = context_of(*months)
    with pytest.raises(NotReported, match="ignores dates"):
        await report_usage(settings(waldur, reporting_periods=3, allow_decrease=True), context)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "18.00", "the present month is put right"
    sent = [usage["amount"] for body in waldur.bodies("set_usage") for usage in body["usages"]]
    assert sent.count("6.00") == 1
    assert "12.00" not in sent, "no other month of the past was tried"
    waldur.requests.clear()
    await report_usage(settings(waldur, reporting_periods=3), context)
    assert waldur.asked(WRITES) == [], "nor on the next run"
    assert "2026-02: not reported, since this Waldur ignores dates" in caplog.text
    waldur.version, waldur.knows_dates = "7.6.0", True
    await report_usage(settings(waldur, reporting_periods=3), context)
    assert waldur.totals("2026-01") == {("acct1", "cpu"): "6.00"}


OLD_AND_NEW: Final = (job(1, start=datetime(2026, 2, 3, tzinfo=UTC), hours=50), job(2, start=NOW - 30 * HOUR, hours=10))
"""Of February 30.00, of March 6.00."""


@pytest.mark.parametrize("before", [None, 5])
async def test_an_amount_that_a_server_without_dates_put_into_the_present_month_is_taken_back(
    waldur: FakeWaldur, before: int | None
) -> None:
    waldur.knows_dates, waldur.components = False, {"cpu": "usage"}
    if before is not None:
        await report_usage(settings(waldur, reporting_periods=1), context_of(job(2, hours=before)))
    context = context_of(*OLD_AND_NEW)
    with pytest.raises(NotReported, match=r"wrote the amounts into 2026-03, where they have been taken back"):
        await report_usage(settings(waldur), context)
    assert waldur.totals("2026-03") == {("acct1", "cpu"): "6.00", ("acct2", "cpu"): "0.00"}
    assert value(metrics.HELD_BACK, "test", "decrease") == 0
    context.stored = [*OLD_AND_NEW, job(3)]
    await report_usage(settings(waldur), context)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "6.60"


async def test_what_is_taken_back_is_not_a_licence_to_let_figures_fall(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    await report_usage(settings(waldur, reporting_periods=1), context_of(job(2, start=NOW - 30 * HOUR, hours=20)))
    waldur.knows_dates = False
    with pytest.raises(NotReported, match="taken back"):
        await report_usage(settings(waldur), context_of(*OLD_AND_NEW))
    assert waldur.totals("2026-03")["acct1", "cpu"] == "12.00", "as it was before"
    assert "cpu would go from 12.00 to 6.00" in caplog.text


async def test_an_amount_in_the_wrong_month_is_taken_back_by_the_next_report_where_this_one_was_cut_off(
    waldur: FakeWaldur,
) -> None:
    class Killed(FakePluginContext):
        """Ends when the amount is on its way."""

        async def save_state(self, state: Any) -> None:  # Any: JSON
            await super().save_state(state)
            if "probes" in state:
                waldur.fail(SET_USAGE, RESET_AFTER)
                waldur.always["GET"] = Fault(401)

    await report_usage(settings(waldur, reporting_periods=1), context_of(job(2, hours=5)))
    waldur.knows_dates = False
    killed = Killed(stored=OLD_AND_NEW, moment=NOW, instance="test")
    with pytest.raises(WaldurError):
        await report_usage(settings(waldur), killed)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "30.00"
    waldur.always.clear()
    context = FakePluginContext(stored=OLD_AND_NEW, moment=NOW, state=killed.state)
    with pytest.raises(NotReported, match="taken back"):
        await report_usage(settings(waldur, reporting_periods=1), context)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "6.00"
    assert "probes" not in context.state


async def test_an_amount_that_arrived_although_its_report_was_cut_off_stays(waldur: FakeWaldur) -> None:
    waldur.fail("GET /api/marketplace-component-usages/", None, None, Fault(400, body=b"{}"))
    context = context_of(*OLD_AND_NEW)
    with pytest.raises(NotReported, match=r"the report of 2026-02 stopped: .* answered 400"):
        await report_usage(settings(waldur), context)
    assert (waldur.totals("2026-02")["acct1", "cpu"], waldur.totals("2026-03")["acct1", "cpu"]) == ("30.00", "6.00")
    assert "probes" not in context.state


async def test_an_amount_in_a_month_that_is_over_by_now_is_reported(waldur: FakeWaldur) -> None:
    waldur.knows_dates = False
    probe = {"resource": str(uuid_of("one")), "backend_id": "acct1", "month": "2026-01-01", "present": "2026-02-01"}
    amounts = {"written": {"cpu": "30.00"}, "before": {"cpu": "5.00"}}
    context = context_of(job(2, hours=10))
    context.state = {"probes": [{**probe, **amounts}]}
    waldur.now = datetime(2026, 2, 20, tzinfo=UTC)
    await report_usage(settings(waldur, reporting_periods=1), context_of(
        job(1, start=datetime(2026, 2, 3, tzinfo=UTC), hours=50), moment=waldur.now
    ))  # fmt: skip
    waldur.now = NOW
    with pytest.raises(NotReported, match=r"acct1: 2026-02 has the usage of 2026-01, cpu 30.00 instead of 5.00"):
        await report_usage(settings(waldur), context)
    assert "probes" not in context.state


async def test_what_was_refused_fails_the_run_and_no_other_resource(waldur: FakeWaldur) -> None:
    waldur.fail(SET_USAGE, Fault(400, body=b'{"resource": ["No plan."]}'))
    before = value(metrics.LAST_SUCCESS, "refused")
    with pytest.raises(NotReported, match=r"1 problem: acct1, 2026-03: .*No plan"):
        await report_usage(settings(waldur), context_of(job(1), job(2, account="acct2"), instance="refused"))
    assert waldur.totals("2026-03") == {("acct2", "cpu"): "0.60"}
    assert value(metrics.LAST_SUCCESS, "refused") == before
    await report_usage(settings(waldur), context_of(job(1), job(2, account="acct2"), instance="refused"))
    assert value(metrics.LAST_SUCCESS, "refused") == NOW.timestamp()
    assert value(metrics.REQUESTS, "refused", "400") == 1


async def test_a_token_that_is_refused_ends_the_run(waldur: FakeWaldur) -> None:
    waldur.always["GET /api/marketplace-provider-offerings/"] = Fault(401, body=b'{"detail": "Invalid token."}')
    with pytest.raises(AccessDenied):
        await report_usage(settings(waldur), context_of(job(1)))
    assert len(waldur.requests) == 1


async def test_no_answer_of_the_store_is_no_report(waldur: FakeWaldur) -> None:
    class Broken(FakePluginContext):
        async def aggregate(self, query: object) -> Any:  # Any: it never answers
            del query
            raise ConnectionError("the store is away")

    with pytest.raises(ConnectionError):
        await report_usage(settings(waldur), Broken(moment=NOW))
    assert waldur.asked(WRITES) == []


@pytest.mark.parametrize(
    ("zone", "now", "months"),
    [
        ("Europe/Tallinn", "2026-03-31T22:30:00+00:00", []),  # there April has begun, and Waldur would say March
        ("Europe/Tallinn", "2026-04-01T00:10:00+00:00", []),
        ("Europe/Tallinn", "2026-04-01T00:30:00+00:00", ["2026-04"]),
        ("America/Los_Angeles", "2026-04-01T00:10:00+00:00", []),
        ("America/Los_Angeles", "2026-04-01T05:00:00+00:00", []),  # there it is March, and Waldur would say April
        ("UTC", "2026-04-01T00:05:00+00:00", []),  # the lag: nothing is known of April yet
    ],
)
async def test_the_present_month_waits_until_waldur_calls_it_the_same(
    waldur: FakeWaldur, zone: str, now: str, months: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    waldur.now = datetime.fromisoformat(now)
    context = context_of(job(1, start=waldur.now - 2 * HOUR), moment=waldur.now)
    await report_usage(settings(waldur, timezone=zone, reporting_periods=1), context)
    assert sorted({body["date"][:7] for body in waldur.bodies("set_usage")} - {"2026-03"}) == months


# -- success ----------------------------------------------------------------------------------------------------------


async def test_a_month_of_which_everything_is_held_back_is_no_success(waldur: FakeWaldur) -> None:
    both = (job(1, hours=5), job(2, hours=5, account="acct2"))
    await report_usage(settings(waldur), context_of(*both, instance="held"))
    assert value(metrics.LAST_SUCCESS, "held") == NOW.timestamp()
    fewer = context_of(job(1), job(2, account="acct2"), instance="held", moment=NOW + timedelta(minutes=30))
    with pytest.raises(NothingReported, match=r"2026-03: all resources \(2\) are held back") as raised:
        await report_usage(settings(waldur), fewer)
    assert raised.value.exit_status == 4
    assert value(metrics.LAST_SUCCESS, "held") == NOW.timestamp()
    fewer.stored = [job(1), job(2, hours=5, account="acct2")]
    await report_usage(settings(waldur), fewer)
    assert value(metrics.LAST_SUCCESS, "held") == fewer.moment.timestamp(), "one of two is reported in its own metric"


@pytest.mark.parametrize(
    ("resources", "components", "options", "words"),
    [
        ({}, {"cpu": "usage"}, {}, "no resource with a backend_id: nothing"),
        ({"one": ("acct1", "OK")}, {"cpu": "usage"}, {"account_prefixes": ["hpc_"]}, "that begins with hpc_: nothing"),
        ({"one": ("acct1", "Erred")}, {"cpu": "usage"}, {}, r"all resources \(1\) are held back"),
        ({"one": ("acct1", "OK")}, {"cpu": "fixed"}, {}, "accepts no usage of any configured component"),
    ],
)
async def test_an_offering_with_nothing_to_report_to_is_no_success(
    waldur: FakeWaldur,
    resources: dict[str, tuple[str, str]],
    components: dict[str, str],
    options: dict[str, Any],
    words: str,
) -> None:
    waldur.resources, waldur.components = resources, components
    with pytest.raises(NothingReported, match=words):
        await report_usage(settings(waldur, **options), context_of(job(1), instance="empty"))
    assert value(metrics.LAST_SUCCESS, "empty") is None


async def test_a_resource_in_state_erred_is_reported_and_no_failure(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    waldur.resources = {"one": ("acct1", "Erred"), "two": ("acct2", "OK"), "three": ("acct3", "Updating")}
    records = [job(number, account=f"acct{number}") for number in (1, 2, 3)]
    context = context_of(*records, instance="erred")
    await report_usage(settings(waldur), context)
    assert waldur.totals("2026-03") == {("acct2", "cpu"): "0.60", ("acct3", "cpu"): "0.60"}
    assert value(metrics.HELD_BACK, "erred", "state") == 1
    assert value(metrics.LAST_SUCCESS, "erred") == NOW.timestamp()
    assert "acct1, 2026-03: held back: its state is Erred, in which Waldur accepts no usage" in caplog.text
    assert {made.status for made in waldur.requests} == {200, 201}, "and Waldur is not asked to refuse it"
    waldur.resources["one"] = ("acct1", "OK")
    await report_usage(settings(waldur), context)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "0.60"


# -- faults of one month ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [SET_USAGE, "GET /api/marketplace-component-usages/"])
async def test_a_month_that_is_denied_does_not_keep_the_next_one_from_being_reported(
    waldur: FakeWaldur, request_: str
) -> None:
    february = job(1, start=datetime(2026, 2, 3, tzinfo=UTC), hours=5)
    waldur.fail(request_, Fault(403, body=b'{"detail": "You do not have permission."}'))
    with pytest.raises(NotReported, match=r"2026-02.* answered 403"):
        await report_usage(settings(waldur), context_of(february, job(2)))
    assert waldur.totals("2026-03")["acct1", "cpu"] == "0.60"


async def test_a_resource_that_is_denied_does_not_keep_the_others_out(waldur: FakeWaldur) -> None:
    waldur.fail(SET_USAGE, Fault(403, body=b"{}"))
    with pytest.raises(NotReported, match="1 problem: acct1, 2026-03"):
        await report_usage(settings(waldur), context_of(job(1), job(2, account="acct2")))
    assert waldur.totals("2026-03") == {("acct2", "cpu"): "0.60"}


async def test_a_token_that_is_no_more_valid_ends_the_run(waldur: FakeWaldur) -> None:
    waldur.always[SET_USAGE] = Fault(401, body=b"{}")
    february = job(1, start=datetime(2026, 2, 3, tzinfo=UTC), hours=5)
    with pytest.raises(AccessDenied):
        await report_usage(settings(waldur), context_of(february, job(2)))
    assert len(waldur.asked(WRITES)) == 1


async def test_a_new_token_or_role_is_a_reason_to_try_again_at_once(waldur: FakeWaldur) -> None:
    february = job(1, start=datetime(2026, 2, 3, tzinfo=UTC), hours=5)
    context = context_of(february, job(2))
    provider = settings(waldur, waldur_api_token=TOKEN)
    await report_usage(provider, context)
    await report_usage(provider, context)
    assert sum(body["date"].startswith("2026-02") for body in waldur.bodies("set_usage")) == 1
    assert TOKEN not in str(context.state)
    await report_usage(settings(waldur, waldur_api_token=STAFF_TOKEN), context)
    assert waldur.totals("2026-02") == {("acct1", "cpu"): "3.00"}
    february = job(1, start=datetime(2026, 2, 3, tzinfo=UTC), hours=6)
    context.stored = [february, job(2)]
    await report_usage(provider, context)
    waldur.staff = True  # the same token
    await report_usage(provider, context)
    assert waldur.totals("2026-02") == {("acct1", "cpu"): "3.60"}


async def test_users_of_a_month_that_is_over_are_lost_as_its_totals_are(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    start = datetime(2026, 2, 3, tzinfo=UTC)
    await report_usage(settings(waldur), context_of(job(1, start=start, hours=5), job(2)))
    other = context_of(job(1, start=start, hours=5, user="carol"), job(2), instance="users")
    await report_usage(settings(waldur, waldur_api_token=TOKEN, allow_decrease=True), other)
    assert "although cpu of carol 3.00, cpu of alice 0.00 is right" in caplog.text
    assert value(metrics.CLOSED, "users") == 1
    waldur.requests.clear()
    await report_usage(settings(waldur, waldur_api_token=TOKEN, allow_decrease=True), other)
    assert waldur.asked(WRITES) == []


# -- the end of a month -----------------------------------------------------------------------------------------------


async def across_the_end_of_march(waldur: FakeWaldur, **options: Any) -> None:  # Any: as they would stand in a file
    """Report every half hour while a job with 60 cores runs on."""
    running = job(1, start=datetime(2026, 3, 31, 20, tzinfo=UTC), hours=None)
    for half_hours in range(9):
        waldur.now = datetime(2026, 3, 31, 22, 20, tzinfo=UTC) + half_hours * HOUR / 2
        await report_usage(settings(waldur, **options), context_of(running, moment=waldur.now, instance="end"))


@pytest.mark.parametrize("periods", [1, 2])
async def test_the_last_minutes_of_a_month_are_made_up_for(waldur: FakeWaldur, periods: int) -> None:
    await across_the_end_of_march(waldur, reporting_periods=periods)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "2.40", "all four hours of it"


async def test_what_a_provider_loses_at_the_end_of_a_month_is_as_documented(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    await across_the_end_of_march(waldur, waldur_api_token=TOKEN)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "2.15", "the last report was at 23:50, with a lag of 15 minutes"
    missing = Decimal("2.40") - Decimal(waldur.totals("2026-03")["acct1", "cpu"])
    assert missing / Decimal("0.60") * 60 <= 15 + 30, "minutes: lag and interval"
    assert (
        "acct1, 2026-03: Waldur accepts no more usage of this month from us, although cpu 2.40 is right" in caplog.text
    )
    assert value(metrics.CLOSED, "end") == 1


# -- options ----------------------------------------------------------------------------------------------------------


async def test_of_a_resource_whose_memory_would_fall_the_processors_may_be_reported(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    components = {"cpu": {"unit_factor": 6000}, "mem": {}}
    two = (job(1, hours=2), job(2, hours=1, account="acct2"))
    await report_usage(settings(waldur, backend_components=components), context_of(*two))
    less_memory = make_record(
        "job-1",
        start=NOW - 10 * HOUR,
        runtime=3 * HOUR,
        cores=60,
        components={"Memory": 512},
        account="acct1",
        user_id="alice",
        site_id="cluster",
    )
    context = context_of(less_memory, two[1])
    await report_usage(settings(waldur, backend_components=components), context)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "1.20"
    omitting = settings(waldur, backend_components=components, omit_anomalous_usage_components=True)
    await report_usage(omitting, context)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "1.80"
    assert waldur.user_amounts("2026-03")["acct1", "cpu", "alice"] == "1.80"
    assert waldur.totals("2026-03")["acct1", "mem"] == "122880.00"
    assert waldur.user_amounts("2026-03")["acct1", "mem", "alice"] == "122880.00"
    assert "held back: mem would go from 122880.00 to 92160.00" in caplog.text
    assert value(metrics.HELD_BACK, "test", "decrease") == 1


async def test_a_report_from_sacct(waldur: FakeWaldur) -> None:
    def sacct(argv: Sequence[str]) -> bytes:
        return b"acct1|cpu=60|01:00:00|alice\n" if "--starttime=2026-03-01T00:00:00" in argv else b""

    context = context_of()
    context.commands = sacct
    await report_usage(settings(waldur), context, Source.SACCT)
    assert waldur.totals("2026-03") == {("acct1", "cpu"): "0.60", ("acct2", "cpu"): "0.00"}, "sacct is never stale"
    assert waldur.user_amounts("2026-03") == {("acct1", "cpu", "alice"): "0.60"}
    assert context.summed == []
    assert [each for argv in context.ran for each in argv if each.startswith("--endtime")] == [
        "--endtime=2026-03-01T00:00:00",
        "--endtime=2026-03-15T12:00:00",
    ]


async def test_a_record_of_the_future_is_no_sign_of_life(waldur: FakeWaldur) -> None:
    await report_usage(settings(waldur), context_of(job(1, hours=5), job(3, account="acct2")))
    waldur.now = NOW + timedelta(days=2)
    wrong_clock = job(2, start=NOW + timedelta(days=9), account="acct2")
    context = context_of(job(1), job(3, account="acct2"), wrong_clock, moment=waldur.now, instance="future")
    await report_usage(settings(waldur, allow_decrease=True), context)
    assert value(metrics.HELD_BACK, "future", "stale") == 1
    assert waldur.totals("2026-03")["acct1", "cpu"] == "3.00"
