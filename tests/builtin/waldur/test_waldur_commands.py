"""``auditord waldur report``, ``explain`` and ``compare``."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from auditord.testing import FakeCommandContext, FakePluginContext, make_record
from auditord_builtin.waldur.commands import waldur_command
from auditord_builtin.waldur.explaining import NotExplained
from auditord_builtin.waldur.reporting import NothingReported
from auditord_hookspecs import Record, RecordQuery
from tests.filtering_context import FilteringContext
from tests.waldur_server import STAFF_TOKEN, FakeWaldur, Fault, fake_waldur
from tests.waldur_settings import waldur_config

NOW: Final = datetime(2026, 3, 15, 12, tzinfo=UTC)
MARCH: Final = datetime(2026, 3, 1, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
CORE_HOURS: Final = {"cpu": {"unit_factor": 60}}


def job(number: int, start: datetime = MARCH, hours: float | None = 1, cores: int = 1, **meta: str) -> Record:
    named: dict[str, Any] = {"account": "physics", "user_id": "alice", "site_id": "cluster", **meta}
    runtime = None if hours is None else hours * HOUR
    return make_record(f"job-{number}", start=start, runtime=runtime, cores=cores, **named)


RECORDS: Final = (
    job(1, MARCH - 2 * HOUR, hours=5, cores=2),
    job(2, NOW - 2 * HOUR, hours=None, user_id="Alice", account="PHYSICS"),
    job(3, user_id="bob"),
    job(4, account="chemistry"),
    job(5, MARCH - 9 * HOUR),
    job(6, NOW, hours=1),
    job(7, site_id="elsewhere"),
)


@pytest.fixture
def waldur() -> Iterator[FakeWaldur]:
    with fake_waldur(now=NOW, resources={"one": ("physics", "OK")}) as server:
        yield server


def run(*argv: str, context: FakePluginContext | None = None, **options: Any) -> Result:  # Any: as in a file
    config = waldur_config(backend_components=CORE_HOURS, sites=["cluster"], **options)
    plugin = context or FilteringContext(stored=RECORDS, moment=NOW)
    commands = FakeCommandContext({"waldur": ("waldur", config)}, plugin)
    return CliRunner().invoke(waldur_command, argv, obj=commands)


def columns(result: Result) -> list[list[str]]:
    return [line.split("\t") for line in result.output.splitlines() if "\t" in line]


def test_explain_lists_the_records_behind_a_figure() -> None:
    result = run("explain", "Physics", "--month", "2026-03", lag="1h")
    assert result.exit_code == 0, result.output
    heading, *rows = columns(result)
    assert heading == ["record", "user", "start", "stop", "seconds", "cpu"]
    assert sorted(rows) == [
        ["job-1", "alice", "2026-02-28T22:00:00+00:00", "2026-03-01T03:00:00+00:00", "10800", "6.000000"],
        ["job-2", "Alice", "2026-03-15T10:00:00+00:00", "running", "3600", "1.000000"],
        ["job-3", "bob", "2026-03-01T00:00:00+00:00", "2026-03-01T01:00:00+00:00", "3600", "1.000000"],
    ]
    assert "2026-03: 3 records, running jobs up to 2026-03-15T11:00:00+00:00: cpu 8.00" in result.output


def test_explain_as_json() -> None:
    explained = json.loads(run("explain", "Physics", "--month", "2026-03", "--output", "json", lag="1h").stdout)
    assert explained["sum"] == {
        "records": 3, "running": 1, "as_of": "2026-03-15T11:00:00Z", "amounts": {"cpu": "8.00"},
    }  # fmt: skip
    assert {each["record_id"]: (each["stop_time"], each["amounts"]) for each in explained["shares"]} == {
        "job-1": ("2026-03-01T03:00:00Z", {"cpu": "6.000000"}),
        "job-2": (None, {"cpu": "1.000000"}),
        "job-3": ("2026-03-01T01:00:00Z", {"cpu": "1.000000"}),
    }


def test_explain_one_user_in_the_billing_zone() -> None:
    result = run("explain", "physics", "ALICE", timezone="Europe/Tallinn", lag="1h")
    assert [row[0] for row in columns(result)[1:]] == ["job-1", "job-2"]
    assert columns(result)[1][2:5] == ["2026-03-01T00:00:00+02:00", "2026-03-01T05:00:00+02:00", "18000"]
    assert "cpu 11.00" in result.output


def test_explain_finds_each_record_once_under_several_labels() -> None:
    both = make_record("both", start=MARCH, account="physics", group_id="physics", user_id="alice", site_id="cluster")
    group = make_record("group", start=MARCH, group_id="physics", user_id="alice", site_id="cluster")
    other = make_record("other", start=MARCH, account="x", group_id="physics", user_id="alice", site_id="cluster")
    context = FilteringContext(stored=[both, group, other], moment=NOW)
    result = run("explain", "physics", context=context, account_meta=["account", "group_id"])
    assert [row[0] for row in columns(result)[1:]] == ["both", "group"]
    assert "2026-03: 2 records: cpu 2.00" in result.output


def test_explain_an_account_without_records() -> None:
    result = run("explain", "nobody")
    assert result.output == "2026-03: 0 records: cpu 0.00\n"


def test_explain_says_so_where_the_sums_are_others() -> None:
    class Losing(FilteringContext):
        @asynccontextmanager
        async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Record], None]:
            async def first() -> AsyncIterator[Record]:
                yield RECORDS[2]

            self.asked.append(query)
            yield first()

    result = run("explain", "physics", context=Losing(stored=RECORDS, moment=NOW))
    assert isinstance(result.exception, NotExplained)
    assert "the store's sum is" in str(result.exception)


@pytest.mark.parametrize("argv", [("explain", "a", "--month", "March"), ("compare", "--month", "2026-13")])
def test_what_is_no_month_is_wrong_usage(argv: tuple[str, ...]) -> None:
    result = run(*argv)
    assert result.exit_code == 2
    assert "write it as 2026-02" in result.output


SAME: Final = b"physics|cpu=2|03:00:00|alice\nphysics|cpu=1|02:00:00|alice\nphysics|cpu=1|01:00:00|bob\n"


def test_compare_by_the_agents_own_command_line() -> None:
    context = FilteringContext(stored=RECORDS, moment=NOW, commands=lambda _: SAME)
    result = run("compare", "physics", "--month", "2026-03", context=context)
    assert result.exit_code == 0, result.output
    assert result.output.endswith("records and sacct agree\n")
    assert context.ran == [
        (
            *("/usr/bin/sacct", "--parsable2", "--noheader", "--noconvert", "--truncate", "--allocations"),
            *("--allusers", "--starttime=2026-03-01T00:00:00", "--endtime=2026-03-31T23:59:59"),
            *("--accounts=physics", "--format=Account,ReqTRES,Elapsed,User"),
        )
    ]


def test_compare_exactly_and_by_what_was_allocated() -> None:
    context = FilteringContext(stored=RECORDS, moment=NOW, commands=lambda _: SAME)
    run("compare", "physics", "--exact", "--tres", "AllocTRES", context=context)
    assert {"--duplicates", "--endtime=2026-03-15T11:59:59"} < set(context.ran[0])
    assert context.ran[0][-1] == "--format=Account,AllocTRES,Elapsed,User"


def test_compare_tells_every_difference() -> None:
    context = FilteringContext(
        stored=RECORDS, moment=NOW, commands=lambda _: b"physics|cpu=1|01:30:00|bob\nnew|cpu=1|1:00:00|x\n"
    )
    result = run("compare", context=context)
    assert result.exit_code == 1
    assert columns(result) == [
        ["account", "user", "component", "records", "sacct", "difference"],
        ["chemistry", "(all)", "cpu", "1.00", "0.00", "-1.00"],
        ["chemistry", "alice", "cpu", "1.00", "0.00", "-1.00"],
        ["new", "(all)", "cpu", "0.00", "1.00", "+1.00"],
        ["new", "x", "cpu", "0.00", "1.00", "+1.00"],
        ["physics", "(all)", "cpu", "9.00", "1.50", "-7.50"],
        ["physics", "alice", "cpu", "8.00", "0.00", "-8.00"],
        ["physics", "bob", "cpu", "1.00", "1.50", "+0.50"],
    ]


def access(waldur: FakeWaldur) -> dict[str, Any]:  # Any: as in a file
    return {"waldur_api_url": waldur.url, "waldur_api_token": STAFF_TOKEN, "retry_for": "0s"}


def test_report_once(waldur: FakeWaldur) -> None:
    waldur.components = {"cpu": "usage"}
    result = run("report", "--once", **access(waldur))
    assert result.exit_code == 0, result.exception
    assert waldur.totals("2026-03") == {("physics", "cpu"): "8.75"}


def test_report_dry_run_prints_the_requests(waldur: FakeWaldur) -> None:
    result = run("report", "--dry-run", **access(waldur))
    assert result.exit_code == 0, result.exception
    assert waldur.asked("POST") == []
    assert '"8.75"' in result.output


def test_report_from_sacct(waldur: FakeWaldur) -> None:
    waldur.components = {"cpu": "usage"}

    def sacct(argv: Sequence[str]) -> bytes:
        return b"physics|cpu=2|01:00:00|alice\n" if "--starttime=2026-03-01T00:00:00" in argv else b""

    context = FakePluginContext(moment=NOW, commands=sacct)
    result = run("report", "--once", "--source", "sacct", context=context, **access(waldur))
    assert result.exit_code == 0, result.exception
    assert waldur.totals("2026-03") == {("physics", "cpu"): "2.00"}


def test_report_lets_figures_fall_when_asked(waldur: FakeWaldur) -> None:
    run("report", "--once", **access(waldur))
    fewer = FilteringContext(stored=RECORDS[2:], moment=NOW)
    held_back = run("report", "--once", context=fewer, **access(waldur)).exception
    assert isinstance(held_back, NothingReported)
    assert held_back.exit_status == 4
    assert waldur.totals("2026-03") == {("physics", "cpu"): "8.75"}
    run("report", "--once", "--allow-decrease", context=fewer, **access(waldur))
    assert waldur.totals("2026-03") == {("physics", "cpu"): "1.00"}


def test_report_goes_on_every_interval_after_faults(waldur: FakeWaldur, monkeypatch: pytest.MonkeyPatch) -> None:
    waldur.fail("GET /api/marketplace-provider-offerings/", Fault(403, body=b"{}"))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("auditord_builtin.waldur.commands.anyio.sleep", sleep)
    result = run("report", interval="20m", **access(waldur))
    assert slept == [1200, 1200]
    assert "not everything was reported" in result.output
    assert waldur.totals("2026-03") == {("physics", "cpu"): "8.75"}


def test_a_schedule_is_for_the_daemon(waldur: FakeWaldur) -> None:
    result = run("report", schedule="0 * * * *", **access(waldur))
    assert result.exit_code == 2
    assert "use --once" in result.output
