"""``auditord report`` and ``auditord top``: beside a daemon, at a URL with a token, and without a daemon."""

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from auditord.cli import auditord
from auditord.client import Client
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import Component, Record

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
GROUPS = {"atlas": "alice", "belle": "bob", "=cms": "carol"}
RECORDS = [
    Record(
        f"{group}-{number}",
        NOON + timedelta(days=number),
        (Component("Cores", 4, ()), Component("TotalCPU", 3_600 * (1 + at), ())),
        NOON + timedelta(days=number, hours=2 - at // 2),
        {"site_id": ("KIT",), "group_id": (group,), "user_id": (user,)},
    )
    for at, (group, user) in enumerate(GROUPS.items())
    for number in range(0, 62, 31)
]
ZONED = ("--bin", "day", "--timezone", "Pacific/Kiritimati")
SPAN = ("--from", "2026-03-01", "--to", "2026-05-01")


class Site:
    """A daemon with an authenticator, and commands of its host."""

    def __init__(self, folder: Path, url: str, token: Path) -> None:
        self.config, self.url, self.token = folder / "auditord.json", url, token

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(auditord, [*arguments, "--config", str(self.config)])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("reports")
    sections = {
        "authenticators": {"tokens": {"kind": "tokens"}},
        "pledges": [{"site": "KIT", "amount": 1, "from": "2026-03-01", "to": "2026-03-31"}],
    }
    with running_daemon(folder, sections) as daemon:
        made = CliRunner().invoke(
            auditord, ["token", "create", "test", "--role", "administrator", "--config", str(folder / "auditord.json")]
        )
        assert made.exit_code == 0, made.output
        token = folder / "token"
        token.write_text(made.stdout)
        Client(daemon.url, token=made.stdout.strip()).add_all(RECORDS)
        yield Site(folder, daemon.url, token)


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "usage", *SPAN),
        ("report", "usage", *SPAN, "--by", "site", "--bin", "none", "--measure", "jobs", "--measure", "cpu-efficiency"),
        ("report", "usage", *SPAN, "--by", "none", "--filter", "group=belle"),
        ("report", "usage", *SPAN, "--by", "user", "--filter", "group=", "--filter", "VO="),
        ("report", "usage", *SPAN, *ZONED),
        ("report", "efficiency", *SPAN),
        ("top", "users", *SPAN),
    ],
)
def test_a_server_and_the_store_give_the_same(site: Site, arguments: tuple[str, ...], form: str) -> None:
    here = site.run(*arguments, "--output", form)
    there = site.run(*arguments, "--output", form, "--url", site.url, "--token-file", str(site.token))
    assert (here.exit_code, there.exit_code) == (0, 0), (here.output, there.output)
    assert here.stdout == there.stdout


def test_usage_is_the_sum_of_the_records(site: Site) -> None:
    report = json.loads(site.run("report", "usage", *SPAN, "--output", "json").stdout)
    assert report["bins"] == {"2026-03-01": {"core-hours": 20}, "2026-04-01": {"core-hours": 20}}
    assert {row["label"]: row["total"]["core-hours"] for row in report["rows"]} == {"atlas": 16, "belle": 16, "=cms": 8}
    rows = list(csv.reader(io.StringIO(site.run("report", "usage", *SPAN, "--output", "csv").stdout)))
    assert rows[0] == ["month", "group", "core-hours", "partial"]
    assert ["2026-04-01", "'=cms", "4", ""] in rows
    without = site.run("report", "usage", *SPAN, "--filter", "group=atlas", "--filter", "VO=", "--output", "json")
    assert json.loads(without.stdout)["total"]["core-hours"] == 16
    far_east = json.loads(site.run("report", "usage", *SPAN, *ZONED, "--output", "json").stdout)
    assert (far_east["timezone"], far_east["from"]) == ("Pacific/Kiritimati", "2026-03-01T00:00:00+14:00")
    assert far_east["bins"] == {
        "2026-03-02": {"core-hours": 20},
        "2026-04-02": {"core-hours": 20},
    }  # noon is over there


@pytest.mark.parametrize("form", ["table", "chart"])
def test_bins_that_are_not_whole_are_named(site: Site, form: str) -> None:
    words = ("report", "usage", "--from", "2026-02-20", "--to", "2026-04-03", "--bin", "quarter", "--output", form)
    printed = site.run(*words).stdout
    assert [part in printed for part in ("from 20 Feb", "to 2 Apr")] == [True, True]


@pytest.mark.parametrize(("form", "begin"), [("xlsx", b"PK"), ("parquet", b"PAR1")])
def test_files_go_to_standard_output(site: Site, form: str, begin: bytes) -> None:
    assert site.run("report", "usage", *SPAN, "--output", form).stdout_bytes[: len(begin)] == begin


def test_tables_and_charts_are_readable(site: Site) -> None:
    table = site.run("report", "usage", *SPAN)
    assert table.stdout.split("\n")[-2].split() == ["total", "16.0", "16.0", "8.0", "40.0"]
    covered = "pledge covers only part of the period: KIT, 1 Mar 2026 to 30 Mar 2026"
    assert ("% used" in table.stderr, covered in table.stderr) == (False, True)
    march = site.run("report", "usage", *SPAN[:3], "2026-03-31").stderr
    assert ("Pledge 720 core h: 2.8 % used" in march, covered in march) == (True, False)
    chart = site.run("report", "usage", *SPAN, "--output", "chart")
    assert "2026-04-01  █" in chart.stdout
    worst = site.run("report", "efficiency", *SPAN, "--worst", "1", "--output", "table")
    assert worst.stdout.splitlines()[1].split()[:2] == ["alice", "14.0"]
    assert "2 more" in worst.stdout
    assert site.run("top", "groups", *SPAN, "--output", "chart").stdout.splitlines()[1].startswith("atlas  █")


def test_reports_of_hook_modules_stay_where_they_were(site: Site) -> None:
    helped = site.run("report", "--help")
    assert [each in helped.stdout for each in ("usage", "efficiency", "utilisation")] == [True] * 3
    refused = site.run("report", "utilisation")
    assert (refused.exit_code, "which plugin of kind utilisation?" in refused.stderr) == (2, True), refused.output


def test_a_label_that_no_record_has_is_named(site: Site) -> None:
    remark = "remark: none of these records has the label "
    mistyped = site.run("report", "usage", *SPAN, "--by", "usr")
    assert mistyped.exit_code == 0, mistyped.exception
    assert (mistyped.exit_code, f"{remark}usr; they have group_id, " in mistyped.stderr) == (0, True)
    assert remark not in site.run("report", "usage", *SPAN, "--by", "user").stderr
    assert f"{remark}usr; " in site.run("report", "usage", *SPAN, "--by", "user", "--then", "usr").stderr


def test_the_section_labels_says_what_a_group_is_to_page_and_reports(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {"labels": {"group": "account"}}) as daemon:
        accounts = [replace(each, meta={**(each.meta or {}), "account": ("acc-1",)}) for each in RECORDS]
        Client(daemon.url).add_all(accounts)
        site = Site(tmp_path, daemon.url, tmp_path)
        printed = site.run("top", "groups", *SPAN, "--output", "csv").stdout.splitlines()
        assert [line.split(",")[0] for line in printed] == ["group", "acc-1"]
        for at in ((), ("--url", daemon.url)):  # --url asks the server for its labels
            assert site.run("top", "groups", *SPAN, "--output", "csv", *at).stdout.splitlines() == printed
            listed = site.run("records", "--meta", "group=acc-1", *at).stdout.split()
            assert [listed.count(word) for word in ("KIT", "acc-1", "belle")] == [len(RECORDS), len(RECORDS), 0]
        with urlopen(f"{daemon.url}/usage?from=2026-03-01&to=2026-04-30&by=group", timeout=60) as answer:  # noqa: S310 our own server
            page = answer.read().decode()
        assert ("acc-1" in page, "belle" in page) == (True, False)


def test_failed_core_hours_by_user(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {}) as daemon:
        ended = [
            replace(each, record_id=f"{each.record_id}-{outcome}", meta={**(each.meta or {}), "outcome": (outcome,)})
            for each in RECORDS
            for outcome in ("completed", "failed")
        ]
        Client(daemon.url).add_all(ended)
        failed = ("--filter", "outcome=failed", "--output", "csv")
        site = Site(tmp_path, daemon.url, tmp_path)
        top = [line.split(",")[:2] for line in site.run("top", "users", *SPAN, *failed).stdout.splitlines()[1:]]
        assert top == [["alice", "16"], ["bob", "16"], ["carol", "8"]]
        by_outcome = site.run("report", "usage", *SPAN, "--by", "outcome", "--bin", "none", "--output", "csv").stdout
        assert [line.split(",")[:2] for line in by_outcome.splitlines()[1:]] == [["completed", "40"], ["failed", "40"]]
        usage = f"{daemon.url}/usage.csv?from=2026-03-01&to=2026-04-30&bin=none&by=user&outcome=failed"
        with urlopen(usage, timeout=60) as answer:  # noqa: S310 our own server
            rows = answer.read().decode().splitlines()
        assert [row.split(",")[:2] for row in rows[1:]] == top


def test_rows_of_two_labels_and_any_filter_of_the_api(site: Site) -> None:
    options = ("--by", "group", "--then", "user", "--bin", "none", "--where", "meta[user_id][c][]=alice&runtime[gte]=1")
    lines = site.run("report", "usage", *SPAN, *options, "--output", "csv").stdout.splitlines()
    assert lines[0] == "group,user,core-hours"
    assert {line.split(",")[1] for line in lines[1:]} == {"alice"}
    users = site.run("top", "sites", *SPAN, "--measure", "active-users", "--measure", "core-hours-per-job")
    assert ("Active users" in users.stdout, "Core hours per job" in users.stdout) == (True, True)
    refused = site.run("report", "usage", *SPAN, "--where", "size[gte]=1")
    assert (refused.exit_code, "unknown field 'size'" in refused.stderr) == (2, True)


def test_any_label_has_a_top_list(site: Site) -> None:
    by_key, by_word = (site.run("top", label, *SPAN, "--output", "csv").stdout for label in ("group_id", "groups"))
    assert by_key.splitlines()[1:] == by_word.splitlines()[1:]
    assert len(by_key.splitlines()) > len(GROUPS)


def test_no_records_make_no_figures(site: Site) -> None:
    nothing = site.run("report", "usage", "--from", "2020-01-01", "--to", "2020-02-01")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "No record stopped in this period." in nothing.stderr
    for form in ("table", "chart"):
        filtered = site.run("report", "usage", *SPAN, "--filter", "user=nobody", "--output", form)
        assert "No record that matches the filters stopped in this period." in filtered.stderr


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("top", "--filter", "alice"), "is not LABEL=VALUE"),
        (
            ("top", "--from", "2026-02-01", "--to", "2026-01-01"),
            "--to (2026-01-01T00:00+00:00) must be later than --from (2026-02-",
        ),
        (("audit", "--from", "2999-01-01"), "must be later than --from (2999-01-01T00:00+00:00)"),
        (("top", "--url", "unix:/run/x"), "neither http://host:port nor https://host"),
        (("report", "usage", "--period", "yesterday"), "is not one of"),
        (("report", "usage", "--period", "this-year", "--from", "2026-01-01"), "give --period, or --from and --to"),
        (("top", "--to", "2026-01-01", "--period", "this-month"), "give --period, or --from and --to, not both"),
        (("report", "usage", "--co2-per-kwh", "-1"), "-1"),
        (("top", "--timezone", "Moon/Base"), "is not a time zone that this host knows"),
    ],
)
def test_wrong_options_are_named(site: Site, arguments: tuple[str, ...], remedy: str) -> None:
    refused = site.run(*arguments)
    assert (refused.exit_code, remedy in refused.stderr) == (2, True), refused.output


def test_a_wrong_token_is_refused(site: Site, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("wrong")
    refused = site.run("top", "--url", site.url, "--token-file", str(wrong))
    assert refused.exit_code == 1
    assert str(refused.exception).startswith(f"{site.url} does not accept this token")
    without = site.run("top", "--url", site.url)
    assert str(without.exception) == f"{site.url} needs a token: give one with --token-file FILE"


def test_a_server_that_does_not_answer_is_named_without_the_query(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    nobody = site.run("top", "--url", "http://127.0.0.1:1")
    request = "GET http://127.0.0.1:1/openapi.json: cannot connect: 127.0.0.1:1: Connection refused"
    assert str(nobody.exception) == f"the daemon does not answer, or its answer was cut off: {request}"
    assert caplog.messages == []


@pytest.mark.parametrize(
    "command", [("status",), ("records",), ("records", "history", "atlas-0"), ("quarantine", "list")]
)
def test_commands_at_a_url_give_a_token(site: Site, tmp_path: Path, command: tuple[str, ...]) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("wrong")
    done = site.run(*command, "--url", site.url, "--token-file", str(site.token))
    assert done.exit_code == 0, done.output
    for token, reason in (((), "needs a token: give"), (("--token-file", str(wrong)), "does not accept this token")):
        refused = site.run(*command, "--url", site.url, *token)
        assert (refused.exit_code != 0, reason in f"{refused.stderr}{refused.exception}") == (True, True)
    unused = site.run(*command, "--token-file", str(wrong))
    assert (unused.exit_code, "--token-file needs --url" in unused.stderr) == (2, True)


def test_reports_work_without_a_daemon(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {}) as daemon:
        Client(daemon.url).add_all(RECORDS)
    done = CliRunner().invoke(auditord, ["top", *SPAN, "--output", "json", "--config", str(tmp_path / "auditord.json")])
    assert [row["label"] for row in json.loads(done.stdout)["rows"]] == ["alice", "bob", "carol"]


def test_an_efficiency_that_cannot_be_is_remarked_on(tmp_path: Path) -> None:
    with running_daemon(tmp_path, {}) as daemon:
        usage = (Component("Cores", 1, ()), Component("TotalCPU", 36_000, ()))
        Client(daemon.url).add_all([Record("job-1", NOON, usage, NOON + timedelta(hours=1), {"user_id": ("alice",)})])
        for command in (("report", "efficiency"), ("top", "users")):
            done = CliRunner().invoke(auditord, [*command, *SPAN, "--config", str(tmp_path / "auditord.json")])
            assert (done.exit_code, "above 150 %: see auditord records --implausible" in done.stderr) == (0, True)


def test_a_figure_whose_records_lack_the_component_is_unknown_and_not_zero(tmp_path: Path) -> None:
    def job(number: int, user: str, **amounts: int) -> Record:
        components = tuple(Component(name, amount, ()) for name, amount in amounts.items())
        return Record(f"job-{number}", NOON, components, NOON + timedelta(hours=1), {"user_id": (user,)})

    with running_daemon(tmp_path, {}) as daemon:
        Client(daemon.url).add_all([job(1, "alice", naive_cpu_time=8), job(2, "pods", CoreSeconds=1_440)])
        measures = ("core-hours", "cpu-hours", "gpu-hours", "jobs")
        options = [option for name in measures for option in ("--measure", name)]
        command = ["report", "usage", *options, "--by", "user", "--bin", "none", *SPAN]
        command += ["--config", str(tmp_path / "auditord.json"), "--output"]
        done = CliRunner().invoke(auditord, [*command, "json"])
        csv = CliRunner().invoke(auditord, [*command, "csv"])
    found = json.loads(done.stdout)
    assert {row["label"]: list(row["total"].values()) for row in found["rows"]} == {
        "alice": [None, None, 0, 1],
        "pods": [0.4, None, 0, 1],
    }
    assert found["remarks"] == ["CPU hours: unknown where no record has TotalCPU"]
    assert "remark: Core hours: unknown where no record has Cores (or CoreSeconds)" in done.stderr
    assert "alice,,,0,1" in csv.stdout
