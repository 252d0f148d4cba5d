"""``auditord waldur load-history`` against records and a server: what it prints, what arrives, and how it ends."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from auditord.testing import FakeCommandContext, FakePluginContext, make_record
from auditord_builtin.waldur.history import History, load_history, load_history_command
from auditord_builtin.waldur.reporting import NothingReported
from auditord_hookspecs import CommandFailed, Record
from tests.waldur_server import STAFF_TOKEN, TOKEN, FakeWaldur, Fault, fake_waldur, throttled
from tests.waldur_settings import OFFERING, waldur_config

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
YEAR = ("--start-date", "2025-12-03", "--end-date", "2026-03-10")
SET_USAGE = "POST /api/marketplace-component-usages/set_usage/"


def job(number: int, start: datetime, account: str = "acct1", user: str = "alice", hours: int = 100) -> Record:
    """Six processors and 12 GiB for a hundred hours: 0.60 k-hours of the one, 1200 GB-hours of the other."""
    return make_record(
        f"job-{number}",
        start=start,
        runtime=timedelta(hours=hours),
        cores=6,
        components={"Memory": 12_288},
        account=account,
        user_id=user,
        site_id="here",
    )


RECORDS = [
    job(1, datetime(2025, 12, 5, tzinfo=UTC)),
    job(2, datetime(2026, 1, 5, tzinfo=UTC)),
    job(3, datetime(2026, 1, 6, tzinfo=UTC), user="bob"),
    job(4, datetime(2026, 1, 30, tzinfo=UTC), account="ACCT2"),  # 48 hours in January
    job(5, datetime(2026, 3, 11, tzinfo=UTC), account="acct2"),  # ended this morning: the records are up to date
]


@pytest.fixture(autouse=True)
def one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditord_builtin.waldur.client.CONCURRENT_REQUESTS", 1)


@dataclass
class Site:
    """One installation: records, a Waldur and its configuration."""

    waldur: FakeWaldur
    context: FakePluginContext
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def load(self, *arguments: str, token: str | None = STAFF_TOKEN, others: Sequence[str] = ()) -> Result:
        config = waldur_config(waldur_api_url=self.waldur.url, waldur_api_token=TOKEN, **self.options)
        strange = config.model_copy(update={"waldur_offering_uuid": "none"})
        plugins = {"mine": ("waldur", config), **dict.fromkeys(others, ("waldur", strange))}
        return CliRunner().invoke(
            load_history_command,
            [*YEAR, *arguments],
            obj=FakeCommandContext(dict(plugins), self.context),
            env={"WALDUR_USER_TOKEN": token},
        )


@pytest.fixture
def site() -> Generator[Site]:
    resources = {"one": ("acct1", "OK"), "two": ("Acct2", "OK"), "idle": ("acct3", "OK"), "new": ("", "OK")}
    with fake_waldur(now=NOW, resources=resources) as waldur:
        yield Site(waldur, FakePluginContext(moment=NOW, stored=RECORDS), {"account_meta": "account"})


def test_the_lines_of_the_guide(site: Site) -> None:
    result = site.load()
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "🚀 Starting historical usage loading",
        "📊 Will process 4 months of data",
        "📅 Processing month 1/4: 2025-12",
        "📋 Found 3 active resources to process",
        "📊 Processing usage data for 1 accounts",
        "📤 Submitted usage for resource acct1: {'cpu': 0.60, 'mem': 1200.00}",
        "✅ Completed processing 2025-12 (1 resources)",
        "📅 Processing month 2/4: 2026-01",
        "📋 Found 3 active resources to process",
        "📊 Processing usage data for 2 accounts",
        "📤 Submitted usage for resource acct1: {'cpu': 1.20, 'mem': 2400.00}",
        "📤 Submitted usage for resource Acct2: {'cpu': 0.29, 'mem': 576.00}",
        "✅ Completed processing 2026-01 (2 resources)",
        "📅 Processing month 3/4: 2026-02",
        "📋 Found 3 active resources to process",
        "📊 Processing usage data for 1 accounts",
        "📤 Submitted usage for resource Acct2: {'cpu': 0.31, 'mem': 624.00}",
        "✅ Completed processing 2026-02 (1 resources)",
        "📅 Processing month 4/4: 2026-03",
        "📋 Found 3 active resources to process",
        "📊 Processing usage data for 1 accounts",
        "📤 Submitted usage for resource acct1: {'cpu': 0.00, 'mem': 0.00}",
        "📤 Submitted usage for resource Acct2: {'cpu': 0.60, 'mem': 1200.00}",
        "📤 Submitted usage for resource acct3: {'cpu': 0.00, 'mem': 0.00}",
        "✅ Completed processing 2026-03 (3 resources)",
        "🎉 Historical usage loading completed successfully!",
        "Processed 4 months from 2025-12-03 to 2026-03-10",
    ]
    assert site.waldur.totals("2026-01")["Acct2", "mem"] == "576.00"
    assert site.waldur.user_amounts("2026-01")["acct1", "cpu", "bob"] == "0.60"


def test_loading_again_writes_nothing(site: Site) -> None:
    site.load()
    site.waldur.requests.clear()
    result = site.load()
    assert result.exit_code == 0
    assert "Submitted" not in result.output
    assert site.waldur.asked("POST") == []


def test_a_month_that_fails_does_not_keep_the_others_out_and_is_loaded_by_the_next_call(site: Site) -> None:
    site.waldur.fail(SET_USAGE, None, Fault(400, body=b'["Resource has no plan."]'))
    result = site.load()
    assert result.exit_code == 1
    assert "❌ acct1: POST /api/marketplace-component-usages/set_usage/ was answered 400" in result.output
    assert "❌ Historical usage loading failed for 1 of 4 months:" in result.output
    assert "   2026-01: acct1: POST" in result.output
    assert set(site.waldur.totals("2026-01")) == {("Acct2", "cpu"), ("Acct2", "mem")}
    assert set(site.waldur.totals("2026-02")) == {("Acct2", "cpu"), ("Acct2", "mem")}
    site.waldur.requests.clear()
    assert site.load().exit_code == 0
    assert [body["date"][:7] for body in site.waldur.bodies("set_usage")] == ["2026-01"]


def test_a_month_in_which_waldur_is_away_does_not_keep_the_others_out(site: Site) -> None:
    asked_to_wait = throttled(10_000)
    site.waldur.fail("GET /api/marketplace-component-usages/", None, None, None, None, asked_to_wait)
    result = site.load()
    assert result.exit_code == 1
    assert "❌ Failed to process 2026-01: GET /api/marketplace-component-usages/ was answered 429" in result.output
    assert "✅ Completed processing 2026-02" in result.output


def test_a_token_that_is_not_one_of_staff_is_reported_before_anything_else(site: Site) -> None:
    result = site.load(token=None)
    assert result.exit_code == 1
    assert "❌ Historical usage loading requires staff user privileges" in result.output
    assert site.waldur.asked() == ["GET /api/users/me/"]


def test_the_token_may_come_from_a_file(site: Site, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{STAFF_TOKEN}\n")
    assert site.load("--token-file", str(tmp_path / "token"), token=None).exit_code == 0
    assert {made.authorization for made in site.waldur.requests} == {f"Token {STAFF_TOKEN}"}


def test_an_empty_token_is_refused_before_anything_is_asked(site: Site, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    result = site.load("--token-file", str(tmp_path / "token"))
    assert (result.exit_code, site.waldur.requests) == (2, [])
    assert "Error: the token is empty" in result.output


def test_a_month_that_is_denied_does_not_keep_the_others_out(site: Site) -> None:
    site.waldur.fail("GET /api/marketplace-component-user-usages/", Fault(403, body=b"{}"))
    result = site.load()
    assert result.exit_code == 1
    assert "❌ Failed to process 2025-12: GET /api/marketplace-component-user-usages/ was answered 403" in result.output
    assert "✅ Completed processing 2026-01" in result.output


def test_a_token_that_is_no_more_valid_ends_the_loading(site: Site) -> None:
    site.waldur.fail("GET /api/marketplace-component-user-usages/", Fault(401, body=b"{}"))
    result = site.load()
    assert "   2026-01: not tried, see above\n" in result.output


def test_an_old_server_ends_it_all_after_one_amount(site: Site) -> None:
    site.waldur.knows_dates = False
    result = site.load()
    assert result.exit_code == 1
    assert "it ignores dates" in result.output
    assert [usage["amount"] for body in site.waldur.bodies("set_usage") for usage in body["usages"]] == [
        *("0.60", "1200.00"),
        *("0.00", "0.00"),
    ]
    assert "Processing month 2/4" not in result.output
    assert "❌ Historical usage loading failed for 4 of 4 months:" in result.output
    assert "   2026-01: not tried, see above\n" in result.output


def test_a_dry_run_writes_nothing(site: Site) -> None:
    result = site.load("--dry-run", "--resource", "ACCT1", "--start-date", "2026-01-01", "--end-date", "2026-01-31")
    assert result.exit_code == 0, result.output
    assert site.waldur.asked("POST") == []
    assert f'{SET_USAGE} {{"resource":' in result.output
    assert '"date":"2026-01-01T12:00:00+00:00","usages":[{"type":"cpu","amount":"1.20"}' in result.output
    assert "nothing was written" in result.output


def test_only_the_resources_that_are_asked_for(site: Site) -> None:
    result = site.load("--resource", "acct2")
    assert result.exit_code == 0
    assert "📋 Found 1 active resources to process" in result.output
    assert "ℹ️ No usage data found for 2025-12" in result.output  # noqa: RUF001 the guide's letter
    assert {account for account, _ in site.waldur.totals("2026-01")} == {"Acct2"}
    unknown = site.load("--resource", "acct9")
    assert unknown.exit_code == 1
    assert "no resource acct9" in str(unknown.exception)


def test_an_offering_without_resources(site: Site) -> None:
    site.waldur.resources = {"new": ("", "OK")}
    result = site.load()
    assert isinstance(result.exception, NothingReported)
    assert result.output.count("ℹ️ No active resources found for offering, skipping month") == 4  # noqa: RUF001 the same


def test_figures_that_would_fall_are_held_back(site: Site) -> None:
    site.load()
    less = [*RECORDS[:1], job(2, datetime(2026, 1, 5, tzinfo=UTC), hours=50), *RECORDS[2:]]
    site.context.stored = less
    result = site.load()
    assert result.exit_code == 1
    assert "⚠️ acct1, 2026-01: held back: cpu would go from 1.20 to 0.90" in result.output
    assert site.waldur.totals("2026-01")["acct1", "cpu"] == "1.20"
    site.options["allow_decrease"] = True
    assert site.load().exit_code == 0
    assert site.waldur.totals("2026-01")["acct1", "cpu"] == "0.90"


def test_figures_fall_where_that_is_allowed(site: Site) -> None:
    site.load()
    site.context.stored = [*RECORDS[:1], job(2, datetime(2026, 1, 5, tzinfo=UTC), hours=50), *RECORDS[2:]]
    result = site.load("--allow-decrease")
    assert result.exit_code == 0, result.output
    assert site.waldur.totals("2026-01")["acct1", "cpu"] == "0.90"


def test_a_month_that_is_not_complete_has_no_tick_mark(site: Site) -> None:
    site.load()
    site.context.stored = [*RECORDS[:1], job(2, datetime(2026, 1, 5, tzinfo=UTC), hours=50), *RECORDS[2:]]
    result = site.load()
    assert "✅ Completed processing 2026-01" not in result.output
    assert "❌ 2026-01 is not complete in Waldur" in result.output
    assert "✅ Completed processing 2026-02" in result.output


def test_idle_resources_that_share_an_account_are_no_failure(site: Site) -> None:
    site.waldur.resources |= {"idle2": ("ACCT3", "OK")}
    result = site.load()
    assert result.exit_code == 0, result.output
    assert ("acct3", "cpu") not in site.waldur.totals("2026-03")
    site.context.stored = [*RECORDS, job(6, datetime(2026, 1, 5, tzinfo=UTC), account="acct3")]
    result = site.load()
    assert "⚠️ acct3, 2026-01: held back: 2 resources have this backend_id: idle, idle2" in result.output
    assert result.exit_code == 1


def test_totals_alone(site: Site) -> None:
    result = site.load("--skip-user-usage")
    assert result.exit_code == 0, result.output
    assert site.waldur.totals("2026-01")["acct1", "cpu"] == "1.20"
    assert site.waldur.user_amounts("2026-01") == {}
    site.load()
    assert site.waldur.user_amounts("2026-01")["acct1", "cpu", "bob"] == "0.60"
    renamed = job(3, datetime(2026, 1, 6, tzinfo=UTC), user="robert")
    site.context.stored = [*RECORDS[:2], renamed, *RECORDS[3:]]
    assert site.load("--skip-user-usage").exit_code == 0, "what is not written cannot fall"
    assert site.waldur.user_amounts("2026-01")["acct1", "cpu", "bob"] == "0.60"


def test_amounts_that_nobody_consumed_are_set_to_zero_when_asked(site: Site) -> None:
    site.load()
    renamed = job(3, datetime(2026, 1, 6, tzinfo=UTC), user="robert")
    before = job(6, datetime(2025, 11, 5, tzinfo=UTC))
    site.context.stored = [before, RECORDS[1], renamed, RECORDS[4]]  # nothing in December; of acct2 only March
    assert site.load().exit_code == 1
    result = site.load("--reconcile-stale")
    assert result.exit_code == 0, result.output
    assert set(site.waldur.totals("2025-12").values()) == {"0.00"}
    assert site.waldur.user_amounts("2025-12")["acct1", "cpu", "alice"] == "0.00"
    users = site.waldur.user_amounts("2026-01")
    assert (users["acct1", "cpu", "bob"], users["acct1", "cpu", "robert"]) == ("0.00", "0.60")
    assert site.waldur.totals("2026-01")["acct1", "cpu"] == "1.20"
    assert site.waldur.totals("2026-01")["Acct2", "cpu"] == "0.00"


def test_a_month_that_records_do_not_reach_back_to_is_not_reconciled(site: Site) -> None:
    site.load()
    site.context.stored = RECORDS[1:]
    result = site.load("--reconcile-stale")
    assert result.exit_code == 1
    assert "⚠️ Records do not reach back to the beginning of 2025-12: nothing is reconciled" in result.output
    assert "acct1, 2025-12: held back: cpu would go from 0.60 to 0.00" in result.output
    assert site.waldur.totals("2025-12")["acct1", "cpu"] == "0.60"
    assert "beginning of 2026-02" not in result.output


def test_a_decrease_of_who_consumed_something_is_not_reconciled(site: Site) -> None:
    site.load()
    site.context.stored = [*RECORDS[:1], job(2, datetime(2026, 1, 5, tzinfo=UTC), hours=50), *RECORDS[2:]]
    result = site.load("--reconcile-stale")
    assert result.exit_code == 1
    assert "cpu would go from 1.20 to 0.90 (alice from 0.60 to 0.30)" in result.output


def test_records_that_are_not_up_to_date_reconcile_nothing(site: Site) -> None:
    site.load()
    site.context.stored = RECORDS[1:4]
    result = site.load("--reconcile-stale", "--allow-decrease")
    assert result.exit_code == 1
    assert "but the records are not up to date" in result.output
    assert site.waldur.totals("2025-12")["acct1", "cpu"] == "0.60"


def test_a_token_that_is_not_one_of_staff_may_be_tried(site: Site) -> None:
    site.waldur.components = {"cpu": "limit", "mem": "limit"}
    result = site.load("--no-staff-check", token=None)
    assert result.exit_code == 0, result.output
    assert site.waldur.asked("GET /api/users") == []
    assert site.waldur.totals("2026-01")["acct1", "cpu"] == "1.20"


def test_a_resource_by_the_agents_name_of_the_option(site: Site) -> None:
    assert site.load("--resource-backend-id", "acct2").exit_code == 0
    assert {account for account, _ in site.waldur.totals("2026-01")} == {"Acct2"}


def test_figures_of_sacct(site: Site) -> None:
    site.context.commands = lambda argv: (
        b"acct1|billing=6,cpu=6,mem=12G,node=1|4-04:00:00|alice\n" if "--starttime=2026-01-01T00:00:00" in argv else b""
    )
    result = site.load("--source", "sacct")
    assert result.exit_code == 0, result.output
    assert site.waldur.totals("2026-01") == {("acct1", "cpu"): "0.60", ("acct1", "mem"): "1200.00"}
    assert len(site.context.ran) == 4
    assert site.context.summed == []


def test_a_month_that_sacct_cannot_tell_of_does_not_keep_the_others_out(site: Site) -> None:
    def sacct(argv: Sequence[str]) -> bytes:
        if "--starttime=2026-01-01T00:00:00" in argv:
            raise CommandFailed("sacct: slurmdbd is away")
        return b"acct1|cpu=6|1-00:00:00|alice\n"

    site.context.commands = sacct
    result = site.load("--source", "sacct")
    assert result.exit_code == 1
    assert "❌ Failed to process 2026-01: sacct: slurmdbd is away" in result.output
    assert site.waldur.totals("2026-01") == {}
    assert "acct1" in {account for account, _ in site.waldur.totals("2026-02")}


def test_the_instance_is_found_by_its_offering(site: Site) -> None:
    assert site.load("--offering-uuid", OFFERING, others=["another"]).exit_code == 0
    missing = site.load("--offering-uuid", "00000000-0000-4000-8000-000000000000", others=["another"])
    assert "no instance reports to it" in str(missing.exception)
    assert site.load("--instance", "mine", others=["another"]).exit_code == 0
    assert site.load(others=["another"]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--end-date", "2025-11-30"), "before the start"),
        (("--end-date", "2026-04-01"), "2026-04 has not begun"),
    ],
)
def test_periods_that_cannot_be(site: Site, arguments: Sequence[str], text: str) -> None:
    result = site.load(*arguments)
    assert result.exit_code == 1
    assert text in str(result.exception)
    assert site.waldur.requests == []


@pytest.mark.anyio
async def test_the_pause_is_between_months(site: Site) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    config = waldur_config(waldur_api_url=site.waldur.url, waldur_api_token=STAFF_TOKEN, **site.options)
    wanted = History(date(2025, 12, 1), date(2026, 3, 1), delay=timedelta(seconds=7))
    await load_history(config, site.context, wanted, lambda _: None, sleep=sleep)
    assert slept == [7, 7, 7]


@pytest.mark.anyio
async def test_each_month_has_as_much_time_for_retries_as_the_first(site: Site) -> None:
    passed = 0.0

    def monotonic() -> float:
        nonlocal passed
        passed += 1
        return passed

    site.waldur.fail("GET /api/marketplace-component-user-usages/", *[throttled(15), None] * 4)
    access = {"waldur_api_url": site.waldur.url, "waldur_api_token": STAFF_TOKEN, "retry_for": "20s"}
    wanted, config = History(date(2025, 12, 1), date(2026, 3, 1)), waldur_config(**access, **site.options)
    await load_history(config, site.context, wanted, lambda _: None, monotonic=monotonic)
    assert passed > 20
    assert sum("component-user-usages" in asked for asked in site.waldur.asked("GET")) == 8


@pytest.mark.parametrize("arguments", [("--delay", "5"), ("--delay", "PT5S"), ("--start-date", "yesterday")])
def test_options_that_cannot_be(site: Site, arguments: Sequence[str]) -> None:
    assert site.load(*arguments).exit_code == 2
