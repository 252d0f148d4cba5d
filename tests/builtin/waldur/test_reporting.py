"""Reports from records to a server that behaves as Waldur does."""

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from prometheus_client.registry import Collector

from auditord.testing import FakePluginContext, make_record
from auditord_builtin.waldur import metrics
from auditord_builtin.waldur.client import AccessDenied
from auditord_builtin.waldur.config import WaldurConfig
from auditord_builtin.waldur.reporting import NotReported, report_usage
from auditord_hookspecs import Record
from tests.waldur_server import STAFF_TOKEN, TOKEN, FakeWaldur, Fault, fake_waldur
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


@pytest.fixture
def waldur() -> Iterator[FakeWaldur]:
    with fake_waldur(now=NOW, resources={"one": ("acct1", "OK"), "idle": ("acct2", "OK")}) as server:
        yield server


def settings(waldur: FakeWaldur, **options: Any) -> WaldurConfig:  # Any: as they would stand in a file
    access = {"waldur_api_url": waldur.url, "waldur_api_token": STAFF_TOKEN, "retry_for": "0s"}
    cpu = {"backend_components": {"cpu": {"unit_factor": 6000}}}
    return waldur_config(**{**access, **cpu, "concurrent_requests": 1, **options})


def context_of(
    *records: Record, moment: datetime = NOW, dry_run: bool = False, instance: str = "test"
) -> FakePluginContext:
    return FakePluginContext(stored=records, moment=moment, dry_run=dry_run, instance=instance)


def value(metric: Collector, *labels: object) -> float | None:
    """What a scrape would find."""
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
    await report_usage(settings(waldur), context_of(job(1)))
    assert waldur.rows == []
    assert "2 resources have this backend_id: one, again" in caplog.text


async def test_components_and_names_without_counterpart_are_told_of(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    waldur.components = {"cpu": "usage", "mem": "fixed"}
    components = {"cpu": {"unit_factor": 6000}, "mem": {}, "gres/gpu": {}}
    records = [job(1), job(2, account="unknown"), job(3, user="stranger")]
    await report_usage(settings(waldur, backend_components=components), context_of(*records))
    assert "takes no usage of mem, gres/gpu" in caplog.text
    assert "1 accounts have usage and no resource: unknown" in caplog.text
    assert "1 users have usage and are no offering users: stranger" in caplog.text
    assert value(metrics.ACCOUNTS, "test") == 1
    assert value(metrics.USERS, "test") == 1
    assert value(metrics.AMOUNT, "test", "cpu", 0) == 1.2
    assert value(metrics.AMOUNT, "test", "cpu", 1) == 0


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
    assert shown.endswith(
        "2026-03: 1 totals and 1 amounts of users would be written, of 1 resources; 1 resources held back"
    )


async def test_a_provider_is_told_what_nobody_is_billed_for(
    waldur: FakeWaldur, caplog: pytest.LogCaptureFixture
) -> None:
    february = job(1, start=datetime(2026, 2, 28, 14, tzinfo=UTC), hours=20)
    context = context_of(february, job(2))
    await report_usage(settings(waldur, waldur_api_token=TOKEN), context)
    assert waldur.totals("2026-02") == {}
    assert waldur.totals("2026-03")["acct1", "cpu"] == "6.60"
    assert "acct1, 2026-02: Waldur takes nothing more of this month from us, although cpu 6.00 is right" in caplog.text
    assert value(metrics.CLOSED, "test") == 1


async def test_what_is_refused_for_good_is_asked_again_the_next_day_or_when_it_changes(waldur: FakeWaldur) -> None:
    february = job(1, start=datetime(2026, 2, 28, 14, tzinfo=UTC), hours=5)
    context, provider = context_of(february, job(2)), settings(waldur, waldur_api_token=TOKEN)

    async def asked_again() -> int:
        waldur.requests.clear()
        await report_usage(provider, context)
        assert value(metrics.CLOSED, "test") == 1, "it is still told of"
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
    with pytest.raises(NotReported, match="does not know dates"):
        await report_usage(settings(waldur, reporting_periods=3, allow_decrease=True), context)
    assert waldur.totals("2026-03")["acct1", "cpu"] == "18.00", "the present month is put right"
    sent = [usage["amount"] for body in waldur.bodies("set_usage") for usage in body["usages"]]
    assert sent.count("6.00") == 1
    assert "12.00" not in sent, "no other month of the past was tried"
    waldur.requests.clear()
    await report_usage(settings(waldur, reporting_periods=3), context)
    assert waldur.asked(WRITES) == [], "nor on the next run"
    assert "2026-02: not reported, this Waldur does not know dates" in caplog.text
    waldur.version, waldur.knows_dates = "7.6.0", True
    await report_usage(settings(waldur, reporting_periods=3), context)
    assert waldur.totals("2026-01") == {("acct1", "cpu"): "6.00"}


async def test_what_was_refused_fails_the_run_and_no_other_resource(waldur: FakeWaldur) -> None:
    waldur.fail(SET_USAGE, Fault(400, body=b'{"resource": ["No plan."]}'))
    before = value(metrics.LAST_SUCCESS, "refused")
    with pytest.raises(NotReported, match=r"1 figures are not in Waldur: acct1, 2026-03: .*No plan"):
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
