"""The real process: killed, stopped, watched by systemd, its disk full. Nothing is lost, nothing counted twice."""

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.daemon_process import PATIENCE, DaemonProcess, wait_until

PROGRAM = Path(__file__).with_name("numbers_daemon.py")
SIGNALLED_TWICE = """
import os, signal
from auditord.cli.installation import run_async
from auditord.cli.run import run_until_signalled

async def work(stop):
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()

assert run_async(run_until_signalled, work)
os.kill(os.getpid(), signal.SIGTERM)
"""
COUNT = 2_000


class Folder(DaemonProcess):
    """A state folder, and daemons that run on it one after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        super().__init__(path / "log", {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ})

    def configure(self, **sections: Any) -> None:
        document = {
            "state_dir": str(self.state),
            "api": {"listen": ["127.0.0.1:0"]},
            "collectors": {"numbers": {"kind": "numbers", "interval": "1h", "count": COUNT}},
            **sections,
        }
        (self.path / "auditord.yml").write_text(json.dumps(document))

    def daemon(self, *prefix: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        """A daemon on this folder."""
        return self.running([*prefix, sys.executable, PROGRAM, self.path / "auditord.yml"])

    def rows(self, database: str, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query of a file of the daemon; none while the file is not there."""
        file = self.state / database
        if not file.exists():
            return []
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)) as connection:
            return connection.execute(query).fetchall()

    def checkpoint(self) -> int:
        try:
            rows = self.rows("spool.db", "SELECT value FROM checkpoint")
        except sqlite3.OperationalError:  # not migrated yet
            return 0
        return json.loads(rows[0][0]) if rows else 0

    def has_read(self, target: int) -> bool:
        return self.checkpoint() >= target

    def queued(self) -> int:
        (row,) = self.rows("spool.db", "SELECT count(*) FROM queue")
        return int(row[0])


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310 our own server
        text: str = answer.read().decode()
        return text


def record_ids(url: str) -> list[str]:
    return re.findall(r'"record_id":"([^"]+)"', fetch(f"{url}/records"))


def all_are_there_once(folder: Folder) -> None:
    """A daemon finishes the source; then every job is stored exactly once and nothing waits any more."""
    with folder.daemon() as process:
        url = folder.url()
        wait_until(lambda: folder.checkpoint() == COUNT and folder.queued() == 0, folder.text)
        ids = record_ids(url)
        assert sorted(ids) == sorted(f"job-{number}" for number in range(COUNT))
        process.terminate()
        assert process.wait(PATIENCE) == 0, folder.text()
    assert folder.rows("spool.db", "SELECT count(*) FROM quarantine") == [(0,)]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.configure()
    return folder


@pytest.mark.slow
def test_killed_again_and_again_it_loses_and_doubles_nothing(folder: Folder) -> None:
    interrupted = list[int]()
    for target in (1, 300, 301, 700, 1_100, 1_500):
        with folder.daemon() as process:
            wait_until(partial(folder.has_read, target), folder.text)
            process.kill()
        interrupted.append(folder.checkpoint())
    assert 0 < interrupted[0] < COUNT
    all_are_there_once(folder)


def test_sigterm_ends_the_run_and_drains_the_queue(folder: Folder) -> None:
    with folder.daemon() as process:
        wait_until(lambda: folder.checkpoint() >= 200, folder.text)
        process.terminate()
        assert process.wait(PATIENCE) == 0, folder.text()
    assert folder.queued() == 0
    assert 200 <= folder.checkpoint() < COUNT
    assert "Traceback" not in folder.text()
    all_are_there_once(folder)


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once_and_loses_nothing(folder: Folder) -> None:
    folder.configure(shutdown={"grace": "1h"})
    with folder.daemon() as process:
        folder.url()
        with closing(sqlite3.connect(folder.state / "records.db", isolation_level=None)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")  # the store cannot be written, so the queue cannot drain
            wait_until(lambda: folder.checkpoint() >= 500 and folder.queued() > 0, folder.text)
            process.send_signal(signal.SIGINT)
            wait_until(lambda: "shutting down" in folder.text(), folder.text)
            time.sleep(0.6)  # a signal right behind the first one is taken for its echo
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: "ending at once" in folder.text(), folder.text)
        assert process.wait(PATIENCE) == 1, folder.text()
    folder.configure()
    all_are_there_once(folder)


@pytest.mark.slow
def test_a_signal_that_is_sent_to_process_and_group_is_one(folder: Folder) -> None:
    folder.configure()
    with folder.daemon() as process:
        folder.url()
        wait_until(lambda: folder.checkpoint() >= 100, folder.text)  # so that the queue takes a while to drain
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "shutting down" in folder.text(), folder.text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, folder.text()
    all_are_there_once(folder)


def test_a_signal_behind_the_end_does_not_spoil_it() -> None:
    subprocess.run([sys.executable, "-c", SIGNALLED_TWICE], check=True, timeout=PATIENCE)


@pytest.mark.slow
def test_a_store_that_cannot_be_written_for_a_while_gets_everything(folder: Folder) -> None:
    with folder.daemon():
        folder.url()
        with closing(sqlite3.connect(folder.state / "records.db", isolation_level=None)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            wait_until(lambda: folder.checkpoint() == COUNT, folder.text)
            wait_until(lambda: "cannot deliver" in folder.text(), folder.text)
        wait_until(lambda: "delivers again" in folder.text(), folder.text)
    all_are_there_once(folder)


def test_a_full_disk_is_one_clear_message_and_loses_nothing(folder: Folder) -> None:
    with folder.daemon("sh", "-c", 'ulimit -f 700; exec "$0" "$@"'):
        wait_until(lambda: "run failed" in folder.text(), folder.text)
        failed = next(line for line in folder.text().splitlines() if "run failed" in line)
        assert "spool.db" in failed
        assert "Traceback" not in folder.text()
        reached = folder.checkpoint()
    assert reached < COUNT
    all_are_there_once(folder)


def test_a_second_daemon_is_refused_and_the_first_one_named(folder: Folder) -> None:
    with folder.daemon() as first:
        folder.url()
        other = Folder(folder.path)
        other.log = folder.path / "other.log"
        with other.daemon() as second:
            assert second.wait(PATIENCE) == 1
        assert f"is in use by process {first.pid}: stop that daemon first" in other.text()


def test_systemd_hears_of_the_whole_life(folder: Folder) -> None:
    address = folder.path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(PATIENCE)
        folder.environment |= {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "100000"}
        with folder.daemon() as process:
            heard = hear(systemd, lambda states: states.get("WATCHDOG", 0) > 2 and "READY" in states)
            assert heard["READY"] == 1
            process.terminate()
            hear(systemd, lambda states: "STOPPING" in states)
            assert process.wait(PATIENCE) == 0


def hear(systemd: socket.socket, enough: Callable[[Mapping[str, int]], bool]) -> Mapping[str, int]:
    """The number of times that each state was announced until it is enough."""
    states = dict[str, int]()
    while not enough(states):
        name = systemd.recv(4_096).decode().partition("=")[0]
        states[name] = states.get(name, 0) + 1
    return states


def test_metrics_tell_of_runs_queue_and_records(folder: Folder) -> None:
    folder.configure(metrics={"database": {"interval": "50ms"}})
    with folder.daemon():
        url = folder.url()
        wanted = (
            f"num_records_database {COUNT}",
            f'num_records_database_per_site{{site="A"}} {COUNT}',
            'auditord_run_failures_total{kind="numbers",task="numbers"} 0.0',
            'auditord_queue_entries{kind="local",task="local"} 0.0',
        )
        wait_until(lambda: all(line in fetch(f"{url}/metrics") for line in wanted), lambda: fetch(f"{url}/metrics"))
        assert fetch(f"{url}/health_check") == ""


@pytest.mark.slow
def test_posts_are_taken_while_the_store_cannot_be_written(folder: Folder) -> None:
    body = b'{"record_id":"posted","components":[],"start_time":"2026-01-01T00:00:00Z"}'
    with folder.daemon() as process:
        url = folder.url()
        wait_until(partial(folder.has_read, COUNT), folder.text)
        request = urllib.request.Request(f"{url}/record", body, {"Content-Type": "application/json"})  # noqa: S310 ours
        with closing(sqlite3.connect(folder.state / "records.db", isolation_level=None)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 our own server
                assert answer.status == 200
            assert folder.rows("spool.db", "SELECT count(*) FROM queue WHERE record_id = 'posted'") == [(1,)]
            process.kill()
            process.wait()
    with folder.daemon():
        url = folder.url()
        wait_until(lambda: "posted" in record_ids(url), folder.text)
