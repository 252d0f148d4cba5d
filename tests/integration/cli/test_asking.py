"""Commands that ask a daemon: over its control socket, at a URL over TCP, or at the socket's own URL."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.cli import installation as installation_module
from auditord.client.exchange import UnsupportedQuery
from auditord.client.query_string import encode_for_api
from auditord.hooks import HookEntry, HookModule, find_entries, load_hooks
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import (
    Batch,
    CollectorContext,
    CollectorKind,
    Component,
    Quarantined,
    Record,
    RecordQuery,
    RunConfig,
    hookimpl,
)
from auditord_hookspecs.query import AllOf, IsOpen, MetaAbsent, MetaContains, MetaContainsAny, Order, SortField
from tests.host_certificates import Authority

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
RECORDS = [
    Record(f"job {number}/é", EPOCH + timedelta(hours=number), (Component("Cores", number, ()),), stop, {"u": (user,)})
    for number, (stop, user) in enumerate([(None, "alice"), (EPOCH + timedelta(days=1), "bob"), (EPOCH, "alice")])
]


async def collect(config: RunConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    del config, context
    yield Batch(RECORDS, [Quarantined("odd", {"user": "alice"}, "has no end")], checkpoint=1)


def kinds() -> ModuleType:
    found = ModuleType("asking_kinds")

    @hookimpl
    def auditord_collectors() -> Iterable[CollectorKind[Any]]:
        yield CollectorKind(name="jobs", config=RunConfig, collect=collect)

    found.auditord_collectors = auditord_collectors  # type: ignore[attr-defined] # that is how modules work
    return found


@dataclass(frozen=True)
class CommandLine:
    """A daemon, and commands of its host."""

    daemon: TestDaemon
    config: Path

    @property
    def socket(self) -> str:
        return f"unix:{self.daemon.state_dir / 'control.sock'}"

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(auditord, ["--config", str(self.config), *arguments])

    def json(self, *arguments: str) -> Any:  # Any: JSON
        done = self.run(*arguments, "--output", "json")
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def command_line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder, module = tmp_path_factory.mktemp("asking"), kinds()
    ours = HookEntry(HookModule("asking_kinds", "asking_kinds", "(test)", "0"), lambda: module)
    sections = {"collectors": {"jobs": {"kind": "jobs", "interval": "1d"}, "off": {"kind": "jobs", "enabled": False}}}
    with running_daemon(folder, sections, [module]) as daemon, pytest.MonkeyPatch.context() as patch:
        patch.setattr(installation_module, "load_installed_hooks", lambda: load_hooks([], [*find_entries(), ours]))
        assert daemon.finish_run("jobs").records == len(RECORDS)
        yield CommandLine(daemon, folder / "auditord.json")


@pytest.mark.parametrize("how", ["here", "http", "unix"])
def test_status_is_live(command_line: CommandLine, how: str) -> None:
    url = {"here": (), "http": ("--url", command_line.daemon.url), "unix": ("--url", command_line.socket)}[how]
    status = command_line.json("status", *url)
    assert (status["running"], status["status"], status["records"], status["errors"]) == (True, "ok", len(RECORDS), [])
    jobs, off = status["instances"]
    assert (jobs["task"], jobs["running"], jobs["records"], jobs["quarantined"]) == ("jobs", False, len(RECORDS), 1)
    assert jobs["next_run"] > jobs["last_run"]
    assert (off["task"], off["enabled"], off["next_run"]) == ("off", False, None)
    (sender,) = status["senders"]
    assert (sender["task"], sender["error"], sender["failures"]) == ("local", None, 0)
    assert status["quarantine"] == {"jobs (job)": 1}
    text = command_line.run("status", *url)
    assert (text.exit_code, "running (ok)" in text.stdout, "not enabled" in text.stdout) == (0, True, True)
    assert "sender      local: delivers" in text.stdout


def test_status_of_nobody(command_line: CommandLine, tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:1", f"unix:{tmp_path}/none.sock"):
        done = command_line.run("status", "--url", url)
        assert (done.exit_code, "does not answer" in done.stderr) == (3, True)


@pytest.mark.parametrize("output", ["json", "ndjson", "csv"])
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--open",),
        ("--meta", "u=alice", "--sort", "start_time", "--descending"),
        ("--id", "job 1/é"),
        ("--stopped-since", "2026-01-01", "--limit", "1"),
        ("--started-before", "2026-01-01T02:00:00Z", "--sort", "record_id"),
        ("--limit", "0"),
    ],
)
def test_records_are_the_same_wherever_they_are_asked_for(
    command_line: CommandLine, options: tuple[str, ...], output: str
) -> None:
    here = command_line.run("records", *options, "--output", output)
    assert here.exit_code == 0, here.output
    for url in (command_line.daemon.url, command_line.daemon.url + "/", command_line.socket):
        there = command_line.run("records", *options, "--output", output, "--url", url)
        assert (there.exit_code, there.stdout) == (0, here.stdout), there.output


def test_the_quarantine_at_a_url(command_line: CommandLine) -> None:
    (here,) = command_line.json("quarantine", "list")
    assert command_line.json("quarantine", "list", "--url", command_line.daemon.url, "--task", "jobs") == [here]
    assert command_line.json("quarantine", "list", "--url", command_line.socket, "--task", "nobody") == []
    shown = command_line.run("quarantine", "show", str(here["number"]))
    assert json.loads(shown.stdout)["raw"] == {"user": "alice"}
    assert (
        command_line.run("quarantine", "show", str(here["number"]), "--url", command_line.socket).stdout == shown.stdout
    )


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_a_task_needs_all_entries(command_line: CommandLine, verb: str) -> None:
    refused = command_line.run("quarantine", verb, "1", "--task", "jobs", *(["--yes"] if verb == "discard" else []))
    assert (refused.exit_code, "--task needs --all" in refused.output) == (2, True)
    assert len(command_line.json("quarantine", "list")) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("quarantine", "show", "1"),
        ("quarantine", "retry", "1"),
        ("quarantine", "discard", "1", "--yes"),
        ("collect", "jobs", "--from", "2026-01-01", "--dry-run"),
    ],
)
def test_what_acts_is_refused_over_tcp_and_says_where_to_go(
    command_line: CommandLine, arguments: tuple[str, ...]
) -> None:
    refused = command_line.run(*arguments, "--url", command_line.daemon.url)
    assert "control.sock" in str(refused.exception)
    assert refused.exit_code == 1
    assert len(command_line.json("quarantine", "list")) == 1


def test_collecting_at_the_sockets_url(command_line: CommandLine) -> None:
    done = command_line.run("collect", "jobs", "--from", "2026-01-01", "--dry-run", "--url", command_line.socket)
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, len(RECORDS)), done.output
    assert "would be quarantined: odd: has no end" in done.stderr
    unknown = command_line.run("collect", "nobody", "--url", command_line.socket)
    assert "there are: jobs" in str(unknown.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("records", "--url", "ftp://host"), "neither http"),
        (("records", "--differences", "--url", "http://host"), "leave --url out"),
    ],
)
def test_wrong_urls(command_line: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    done = command_line.run(*arguments)
    assert (done.exit_code, message in done.stderr) == (2, True), done.output


def test_queries_in_the_apis_words() -> None:
    query = RecordQuery(AllOf((IsOpen(), AllOf((MetaContains("a b", "c&d"),)))), Order(SortField.START), 5)
    assert encode_for_api(query) == "meta[a+b][c][0]=c%26d&limit=5&sort_by[asc]=start_time&open=true"
    for condition in (MetaAbsent("k"), MetaContainsAny("k", ("v",))):
        with pytest.raises(UnsupportedQuery):
            encode_for_api(RecordQuery(condition))


def test_a_server_with_a_certificate_of_the_sites_ca_is_asked_with_ca_or_by_the_environment(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    host = authority.issue("host", old_style_key=False)
    tls = {"certificate": str(host.certificate), "key": str(host.key)}
    trusted = ("--ca", str(authority.file))
    with running_daemon(tmp_path, {"api": {"listen": [{"address": "127.0.0.1:0", "tls": tls}]}}) as daemon:
        command_line = CommandLine(daemon, tmp_path / "auditord.json")
        for words in (("status",), ("records",), ("top", "users"), ("report", "usage")):
            asked = command_line.run(*words, "--url", daemon.url, *trusted)
            assert asked.exit_code == 0, (asked.output, asked.exception)
            useless = command_line.run(*words, *trusted)
            assert (useless.exit_code, "--ca needs --url with https://" in useless.stderr) == (2, True)
        for words, code in ((("status",), 3), (("top", "users"), 1)):
            command = [sys.executable, "-m", "auditord", *words, "--url", daemon.url]
            for variables, expected in (({}, code), ({"SSL_CERT_FILE": str(authority.file)}, 0)):
                done = subprocess.run(
                    command, env={"HOME": str(tmp_path), **variables}, capture_output=True, check=False
                )
                assert done.returncode == expected, done.stderr
                assert (b"certificate with --ca FILE" in done.stderr) == (expected > 0)
