"""``auditord apel`` over a fake host."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner, Result

from auditord.testing import FakeCommandContext, FakePluginContext
from auditord_builtin.apel import auditord_commands, auditord_metrics, auditord_plugins
from auditord_builtin.apel.metrics import INSTRUMENTS
from auditord_builtin.apel.publishing import APEL
from auditord_hookspecs import Component, Record, Score
from tests.builtin.apel.apel_settings import apel_settings

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)


def job(name: str, days_ago: float) -> Record:
    stop = NOW - timedelta(days=days_ago)
    components = (Component("Cores", 1, (Score("HEPscore23", 10.0),)), Component("TotalCPU", 3_000, ()))
    meta: dict[str, tuple[str, ...]] = {"site_id": ("a",), "voms": ("atlas",), "submit_host": ("ce",)}
    return Record(name, stop - timedelta(hours=1), components, stop, meta)


@pytest.fixture
def host() -> FakeCommandContext:
    config = apel_settings(sites={"SITE-A": ["a"]}, since=datetime(2026, 1, 1, tzinfo=UTC))
    records = [job("1", 1), job("2", 30), job("3", 65)]
    return FakeCommandContext({"apel": ("apel", config)}, FakePluginContext(moment=NOW, stored=records))


def run(host: FakeCommandContext, *arguments: str) -> Result:
    (declared,) = auditord_commands()
    command = declared.load()
    return CliRunner().invoke(command, list(arguments), obj=host)


def test_the_module_brings_all_of_it() -> None:
    assert [each.load() for each in auditord_plugins()] == [APEL]
    assert tuple(auditord_metrics()) == INSTRUMENTS


def test_publish_shows_what_would_be_sent(host: FakeCommandContext) -> None:
    done = run(host, "publish", "--dry-run")
    assert done.exit_code == 0
    assert done.output.count("APEL-normalised-summary-message: v0.4") == 3
    assert done.output.count("APEL-sync-message: v0.1") == 3


def test_republish_shows_whole_months(host: FakeCommandContext) -> None:
    done = run(host, "republish", "--from", "2026-01-31", "--to", "2026-02-01T12:00:00+01:00", "--dry-run")
    assert "reporting 2026-01 to 2026-02" in done.output
    assert "Month: 1\n" in done.output
    assert "Month: 3\n" not in done.output
    one = run(host, "republish", "--month", "2026-03", "--site", "SITE-A", "--dry-run")
    assert "reporting" not in one.output
    assert one.output.count("Month: 3\n") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--month", "2026-03", "--from", "2026-03-01"),
        ("--month", "2026-03", "--to", "2026-03-05"),
        ("--to", "2026-03-05"),
        ("--month", "March"),
        ("--from", "yesterday"),
        ("--month", "2026-03", "--instance", "other"),
    ],
)
def test_what_cannot_be_meant_is_said(host: FakeCommandContext, arguments: tuple[str, ...]) -> None:
    done = run(host, "republish", *arguments)
    assert done.exit_code == 2
    assert host.opened == []


def test_show_has_nothing_then_a_table_then_messages(host: FakeCommandContext) -> None:
    assert run(host, "show").output == "nothing has been reported yet\n"
    run(host, "publish", "--dry-run")  # the fake host keeps the state
    lines = run(host, "show").output.splitlines()
    assert [line.split()[:6] for line in lines[1:]] == [
        ["SITE-A", f"2026-0{month}", "1", "1", "1", "0"] for month in (1, 2, 3)
    ]
    month = run(host, "show", "--month", "2026-02").output
    assert month.count("Month: 2\n") == 2
    assert run(host, "show", "--month", "2026-02", "--site", "SITE-X").exit_code == 2


def test_show_as_json(host: FakeCommandContext) -> None:
    assert json.loads(run(host, "show", "--output", "json").stdout) == []
    run(host, "publish", "--dry-run")
    months = json.loads(run(host, "show", "--output", "json").stdout)
    assert [(each["month"], each["acknowledged"], each["problems"]) for each in months] == [
        (f"2026-0{month}", 1, []) for month in (1, 2, 3)
    ]
    messages = json.loads(run(host, "show", "--month", "2026-02", "--output", "json").stdout)
    assert {(each["site"], each["month"]) for each in messages} == {("SITE-A", "2026-02")}
    assert any(each["text"].startswith("APEL-normalised-summary-message: v0.4") for each in messages)


def test_show_names_site_and_month_of_a_problem_once(host: FakeCommandContext) -> None:
    bare = Record("bare", NOW - timedelta(days=1, hours=1), (), NOW - timedelta(days=1), {"site_id": ("a",)})
    host.plugin_context.stored = [job("1", 1), bare]
    run(host, "publish", "--dry-run")
    problem = run(host, "show").output.splitlines()[-1]
    assert problem == "! SITE-A 2026-03: no score HEPscore23: left out (1 job)"


def test_show_lists_the_first_problems_as_text_and_all_of_them_as_json() -> None:
    config = apel_settings(sites={"SITE-A": ["a"]}, since=datetime(2026, 1, 1, tzinfo=UTC), jobs=True)
    end = NOW - timedelta(days=1)
    stored = [
        Record(f"{number}", end - timedelta(hours=1), (), end, {"site_id": ("a",)}) for number in range(501)
    ]  # two problems each
    host = FakeCommandContext({"apel": ("apel", config)}, FakePluginContext(moment=NOW, stored=stored))
    lines = run(host, "show", "--month", "2026-03").output.splitlines()
    assert [len(lines), lines[-1]] == [1_001, "# and 2 more"]
    found = json.loads(run(host, "show", "--month", "2026-03", "--output", "json").stdout)
    assert [set(each) for each in found] == [{"site", "month", "problem"}] * 1_002
