"""The commands, as an operator types them: beside a running daemon and without one."""

import csv
import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from auditord_builtin.slurm.demo import RECORDED, replay

PATIENCE = 60.0
JOBS = 75  # in the recorded accounting; three more never started
WINDOW = ("--from", f"{RECORDED.start:%Y-%m-%dT%H:%M:%SZ}", "--to", "2026-11-20T12:00:00Z")


class Site:
    """A configuration of its own, and the commands on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "auditord.yml"
        self.configure()

    def configure(self, **slurm: Any) -> None:
        document = {
            "state_dir": str(self.folder / "state"),
            "api": {"listen": ["127.0.0.1:0"]},
            "collectors": {"slurm": {"kind": "slurm", **replay(), **slurm}},
        }
        self.file.write_text(json.dumps(document))

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "auditord", *arguments, "--config", str(self.file)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--output", "json")
        assert done.stderr == ""
        return json.loads(done.stdout)

    @contextmanager
    def daemon(self) -> Generator[str, None, None]:
        """A running daemon; gives its URL, and stops it in order."""
        log = self.folder / "log"
        command = [sys.executable, "-m", "auditord", "run", "--config", str(self.file)]
        with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            try:
                yield self._url(process, log)
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0, log.read_text()
            finally:
                process.kill()

    def _url(self, process: "subprocess.Popen[bytes]", log: Path) -> str:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and process.poll() is None:
            if match := re.search(r"is ready: (\S+)", log.read_text()):
                return match[1]
            time.sleep(0.02)
        raise AssertionError(log.read_text())

    def wait_for_records(self, count: int) -> Mapping[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while True:
            status: Mapping[str, Any] = json.loads(self.run("status", "--output", "json").stdout)
            if status["records"] == count:
                return status
            assert time.monotonic() < deadline, status
            time.sleep(0.1)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_demo_verifies_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "auditord", "demo", "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert f"{JOBS} records; 0 quarantined; skipped: 3" in done.stdout
    assert f"{JOBS} of {JOBS} records" in done.stdout


def test_demo_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-u", "-m", "auditord", "demo", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            text = ""
            while "The configuration of this demo is" not in text:
                line = process.stdout.readline()
                assert line, text
                text += line
            (url,) = set(re.findall(r"Look at it:  (\S+)", text))
            folder = Path(text.split("The configuration of this demo is ")[1].rstrip(".\n")).parent
            with urllib.request.urlopen(f"{url}/records?limit=3") as answer:  # noqa: S310 our own server
                assert answer.read().count(b'{"record_id":') == 3
            assert folder.is_dir()
            looked = urllib.request.Request(url, headers={"Accept": "text/html"})  # noqa: S310 the same
            with urllib.request.urlopen(looked) as answer:  # noqa: S310 the same
                assert b"a made-up site" in answer.read()
            suggested = re.findall(r"^  ((?:curl|/\S+) .+)$", text, re.MULTILINE)
            assert len(suggested) == 8
            for each in suggested:
                assert re.search("slurm|demo|files|climate", try_out(each)), each
            diff = [sys.executable, "-m", "auditord", "config", "diff", "--config", f"{folder}/auditord.yml"]
            assert subprocess.run(diff, capture_output=True, check=True).stdout == b""
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert not folder.exists()


def try_out(suggested: str) -> str:
    """The effect of a line that the demo prints when it is typed."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", suggested], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{suggested}: {done.stderr}"
    return done.stdout + done.stderr


def test_collecting_without_a_daemon_keeps_everything_once(site: Site) -> None:
    assert site.run("status").returncode == 3
    first = site.run("collect", "slurm")
    assert (first.returncode, f"slurm: {JOBS} records" in first.stderr) == (0, True), first.stderr
    again = site.run("collect", "slurm", "--once")
    assert "slurm: 0 records" in again.stderr
    assert "jobs that ended in the last 1m (lag) are collected later\n" in again.stderr
    old = site.run("collect", "slurm", "--from", "2001-01-01", "--to", "2001-01-02")
    assert ("slurm: 0 records" in old.stderr, "lag" in old.stderr) == (True, False)
    period = site.run("collect", "slurm", *WINDOW)
    assert period.returncode == 0, period.stderr
    assert len(site.json("records")) == JOBS
    assert site.run("records", "--differences").stderr == "0 differences\n"


def test_a_dry_run_prints_and_keeps_nothing(site: Site) -> None:
    done = site.run("collect", "slurm", "--dry-run")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(records)) == (0, JOBS), done.stderr
    assert not (site.folder / "state").exists()
    assert f"slurm: {JOBS} records" in site.run("collect", "slurm").stderr


def test_a_correction_replaces_what_is_stored(site: Site) -> None:
    site.run("collect", "slurm")
    site.configure(sites=[{"name": "right-site"}])
    again = site.run("collect", "slurm", *WINDOW)
    assert again.returncode == 0
    different = site.run("records", "--differences")
    assert different.stderr == f"{JOBS - 1} differences\n"  # a requeued run is overwritten
    rows = re.findall(r"slurm-\S+\s+(\S.*\S)\s+demo-site\s+right-site", different.stdout)
    assert rows == ["label site_id"] * (JOBS - 1), different.stdout
    counted = Counter(record["meta"]["site_id"][0] for record in site.json("records"))
    assert counted == {"demo-site": JOBS - 1, "right-site": 1}
    replaced = site.run("collect", "slurm", *WINDOW, "--replace")
    assert replaced.returncode == 0, replaced.stderr
    records = site.json("records")
    assert {record["meta"]["site_id"][0] for record in records} == {"right-site"}
    assert len(records) == len({record["record_id"] for record in records}) == JOBS


def test_the_daemon_does_what_commands_ask(site: Site) -> None:
    with site.daemon() as url:
        status = site.wait_for_records(JOBS)
        assert status["running"] is True
        (instance,) = status["instances"]
        assert (instance["task"], instance["error"], sum(instance["skipped"].values())) == ("slurm", None, 3)
        dry = site.run("collect", "slurm", "--dry-run", *WINDOW)
        assert (dry.returncode, len(dry.stdout.splitlines())) == (0, JOBS), dry.stderr
        again = site.run("collect", "slurm", *WINDOW)
        assert again.returncode == 0, again.stderr
        unknown = site.run("collect", "slrum")
        assert (unknown.returncode, unknown.stderr) == (1, "auditord: no enabled collector 'slrum'; there are: slurm\n")
        refused = urllib.request.Request(f"{url}/record", b"{", {"Content-Type": "application/json"})  # noqa: S310 ours
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(refused)  # noqa: S310 our own server
        (entry,) = site.json("quarantine", "list")
        assert (entry["task"], entry["stage"], entry["route"]) == ("api", "body", "POST /record")
        retried = site.run("quarantine", "retry", "--all")
        assert (retried.returncode, "1 failed again" in retried.stdout) == (1, True), retried.stderr
        assert site.run("quarantine", "discard", "--all", "--yes").stdout == "1 discarded\n"
        assert len(site.json("records")) == JOBS


def test_exports_hold_the_same_records(site: Site) -> None:
    site.run("collect", "slurm")
    records = site.json("records")
    lines = site.run("records", "--output", "ndjson").stdout.splitlines()
    rows = list(csv.DictReader(io.StringIO(site.run("records", "--output", "csv").stdout)))
    assert [json.loads(line) for line in lines] == records
    assert [row["record_id"] for row in rows] == [record["record_id"] for record in records]
    assert [json.loads(row["components"]) for row in rows] == [record["components"] for record in records]
    assert {row["site_id"] for row in rows} == {"demo-site"}


def test_records_are_chosen_by_options(site: Site) -> None:
    site.run("collect", "slurm")
    everything = site.json("records")
    alice = site.json("records", "--meta", "user_id=alice", "--sort", "start_time", "--descending")
    assert [record["record_id"] for record in alice] == [
        record["record_id"]
        for record in sorted(everything, key=lambda each: (each["start_time"], each["record_id"]), reverse=True)
        if record["meta"]["user_id"] == ["alice"]
    ]
    assert site.json("records", "--id", everything[5]["record_id"]) == [everything[5]]
    assert site.json("records", "--open") == []
    assert site.json("records", "--stopped-before", "2026-11-20") == []
    assert site.json("records", "--stopped-since", "2026-11-20", "--limit", "7") == everything[:7]
    table = site.run("records", "--limit", "2")
    assert len(table.stdout.splitlines()) == 3
    assert "2 records" in table.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("records", "--meta", "alice"), "KEY=VALUE"),
        (("records", "--started-since", "yesterday"), "neither a date"),
        (("collect", "slurm", "--to", "2026-11-20"), "need --from"),
        (("collect", "slurm", "--schedd", "s1"), "needs --job-id"),
        (("collect", "slurm", "--job-id", "1", "--from", "2026-11-20"), "use only one of them"),
        (("collect", "slurm", "--once", "--from", "2026-11-20"), "use only one of them"),
        (("collect", "slurm", "--from", "2026-11-20", "--to", "2026-11-19"), "later than"),
        (("quarantine", "discard", "--yes"), "--all"),
    ],
)
def test_wrong_usage_says_what_is_right(site: Site, arguments: tuple[str, ...], message: str) -> None:
    done = site.run(*arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_the_control_socket_is_its_owners_alone(site: Site) -> None:
    if os.geteuid():
        pytest.skip("only root can be somebody else")
    with site.daemon():
        control = site.folder / "state" / "control.sock"
        assert control.stat().st_mode & 0o777 == 0o600
        for path in (control, *control.parents):
            path.chmod(stat.S_IMODE(path.stat().st_mode) | (0o006 if path == control else 0o001))
        program = (
            "import http.client, os, socket, sys\n"
            "os.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n"
            "connection = http.client.HTTPConnection('auditord')\n"
            "connection.sock = socket.socket(socket.AF_UNIX)\n"
            "connection.sock.connect(sys.argv[1])\n"
            "connection.request('POST', '/api/v1/quarantine/discard', '{\"ids\": []}')\n"
            "print(connection.getresponse().status)\n"
        )
        done = subprocess.run([sys.executable, "-c", program, control], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("403\n", "")
