"""The real daemon with its records in PostgreSQL: unmigrated, killed, and while the server is away."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from auditord_hookspecs.wire import decode_record
from tests.acceptance.daemon_process import PATIENCE, DaemonProcess, wait_until
from tests.postgres_server import NoServer, OwnServer, own_server

AUDITORD = (sys.executable, "-m", "auditord")


class Site(DaemonProcess):
    """A configuration, and daemons that run with it one after another."""

    def __init__(self, folder: Path, url: str) -> None:
        self.file = folder / "auditord.yml"
        document = {
            "state_dir": str(folder / "state"),
            "api": {"listen": ["127.0.0.1:0"]},
            "store": {"url": url, "password": "env:DATABASE_PASSWORD"},
            "metrics": {"database": {"interval": "1s"}},
        }
        self.file.write_text(json.dumps(document))
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "DATABASE_PASSWORD": "geheim"}
        super().__init__(folder / "log", environment)

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run([*AUDITORD, *words, "--config", self.file])

    def daemon(self) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        return self.running([*AUDITORD, "run", "--config", self.file])

    def post(self, number: int) -> None:
        record = {"record_id": f"job-{number}", "components": list[str](), "start_time": "2024-02-03T04:05:06Z"}
        body = json.dumps({**record, "stop_time": "2024-02-03T05:05:06Z"}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url()}/record", body, headers)  # noqa: S310 our own
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 our own
            assert (answer.status, answer.read()) == (200, b"")

    def stored(self) -> set[str]:
        try:
            with urllib.request.urlopen(f"{self.url()}/records", timeout=PATIENCE) as answer:  # noqa: S310 our own
                text = answer.read()
        except urllib.error.HTTPError:
            return set()
        parts = text.replace(b"}\n{", b"}{").replace(b"}{", b"}\n{").splitlines()
        return {decode_record(part).record_id for part in parts}


@pytest.fixture
def server() -> Generator[OwnServer, None, None]:
    """A server that keeps what it has committed."""
    try:
        with own_server(()) as running:
            yield running
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture
def site(tmp_path: Path, server: OwnServer) -> Site:
    return Site(tmp_path, server.url)


def test_tables_are_made_on_demand_only(site: Site) -> None:
    refused = site.command("run")
    assert refused.returncode == 1
    assert "has no tables yet: run `auditord database migrate`" in refused.stderr
    assert site.command("database", "status").returncode == 3
    assert "CREATE SCHEMA auditord" in site.command("database", "migrate", "--sql").stdout
    first, second = (site.command("database", "migrate") for _ in range(2))
    assert (first.returncode, first.stdout.splitlines()[0]) == (0, "migrated   0001_record_feed")
    assert second.stdout.splitlines() == [f"The database {first.stdout.split('The database ')[1].strip()}"]
    status = json.loads(site.command("database", "status", "--output", "json").stdout)
    assert (status["pending"], status["records"]) == ([], 0)
    assert "geheim" not in site.command("config", "show").stdout


def test_posts_are_kept_while_the_server_is_away(site: Site, server: OwnServer) -> None:
    assert site.command("database", "migrate").returncode == 0
    with site.daemon() as process:
        site.post(1)
        server.stop()
        for number in range(2, 6):
            site.post(number)
        server.start()
        everything = {f"job-{number}" for number in range(1, 6)}
        wait_until(lambda: site.stored() == everything, site.text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert "geheim" not in site.text()


def test_a_daemon_starts_without_its_server(site: Site, server: OwnServer) -> None:
    assert site.command("database", "migrate").returncode == 0
    server.stop()
    with site.daemon():
        site.post(1)
        assert "starting without the record store" in site.text()
        server.start()
        wait_until(lambda: site.stored() == {"job-1"}, site.text)


def test_what_was_acknowledged_survives_a_kill_of_both(site: Site, server: OwnServer) -> None:
    assert site.command("database", "migrate").returncode == 0
    with site.daemon() as process:
        for number in range(20):
            site.post(number)
        process.kill()
        server.stop()
    server.start()
    with site.daemon():
        assert site.stored() == {f"job-{number}" for number in range(20)}
    assert "20" in site.command("status").stdout


def test_a_database_that_turns_out_not_to_be_migrated_ends_the_daemon(site: Site, server: OwnServer) -> None:
    server.stop()
    with site.daemon() as process:
        assert site.url()
        server.start()  # and nobody has migrated it
        assert process.wait(PATIENCE) == 1
    assert "has no tables yet: run `auditord database migrate`" in site.text()
    assert "Traceback" not in site.text()
