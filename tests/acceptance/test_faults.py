"""The real process in trouble: one clear message, the right exit code, nothing acknowledged is ever lost."""

import http.client
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count, repeat
from pathlib import Path
from threading import Event
from typing import Any

import pytest

PATIENCE = 60.0
JSON = {"Content-Type": "application/json"}


class Site:
    """A configuration of its own, and what runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "auditord.yml"
        self.state = folder / "state"
        self.log = folder / "log"
        self.configure()

    def configure(self, **sections: Any) -> None:
        document = {"state_dir": str(self.state), "api": {"listen": ["127.0.0.1:0"]}, **sections}
        self.file.write_text(json.dumps(document))

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "auditord", *arguments, "--config", str(self.file)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def daemon(self) -> Generator[tuple["subprocess.Popen[bytes]", int], None, None]:
        """A running daemon and its port; killed at the end if it is still there."""
        command = [sys.executable, "-m", "auditord", "run", "--config", str(self.file)]
        with self.log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            try:
                wait_until(lambda: "is ready" in self.text() or process.poll() is not None, self.text)
                match = re.search(r"is ready: \S+:(\d+)", self.text())
                assert match is not None, self.text()
                yield process, int(match[1])
            finally:
                process.kill()

    def text(self) -> str:
        return self.log.read_text()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def wait_until(condition: Callable[[], object], say: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, say()
        time.sleep(0.01)


def record(record_id: str, start: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {"record_id": record_id, "meta": None, "components": [], "start_time": start, "stop_time": None}


def post(connection: http.client.HTTPConnection, path: str, document: Any) -> int:
    connection.request("POST", path, json.dumps(document), JSON)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def get(port: int, path: str) -> bytes:
    return get_answer(port, path)[1]


def get_answer(port: int, path: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def stored_ids(port: int) -> list[str]:
    return [found.decode() for found in re.findall(rb'"record_id":"([^"]+)"', get(port, "/records"))]


# -- start-up -------------------------------------------------------------------------------------------------------


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def make_database(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def from_the_future(site: Site, name: str) -> None:
    with site.daemon() as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    make_database(site.state / name, "PRAGMA user_version = 99")


BROKEN_FILES: dict[str, tuple[Callable[[Site, str], None], str]] = {
    "garbage": (lambda site, name: write(site.state / name, b"no database " * 999), "is not an SQLite database"),
    "foreign": (
        lambda site, name: make_database(site.state / name, "CREATE TABLE x (y)"),
        "another program's database",
    ),
    "folder": (lambda site, name: (site.state / name).mkdir(parents=True), "Is a directory"),
    "newer": (from_the_future, "has schema 99, this version of auditord knows up to"),
}


@pytest.mark.parametrize("name", ["spool.db", "records.db"])
@pytest.mark.parametrize("fault", BROKEN_FILES)
def test_a_database_that_is_not_ours_is_named_and_left_alone(site: Site, fault: str, name: str) -> None:
    prepare, message = BROKEN_FILES[fault]
    prepare(site, name)
    file = site.state / name
    before = file.read_bytes() if file.is_file() else b""
    one_clear_message(site.run("run"), f"{file}", message)
    assert (file.read_bytes() if file.is_file() else b"") == before
    file.rename(site.folder / "aside")
    if fault == "newer":  # the one that is left knows the one that is gone now
        assert site.run("database", "adopt", "--yes").returncode == 0
    with site.daemon() as (_, port):
        assert get(port, "/health_check") == b""


BROKEN_DOCUMENTS: dict[str, tuple[str, Sequence[str]]] = {
    "no YAML": ("collectors: [", ("auditord.yml:4", "not YAML")),
    "unknown kind": ("collectors: {s: {kind: slurmm}}", ("auditord.yml:3", "collectors.s.kind", "'slurm'?")),
    "another store": ('store: {url: "mysql://u:geheim@h/d"}', ("auditord.yml:3", "store.url", "postgresql")),
}
"""One from each part of reading a configuration; tests/unit/config/test_faults.py has the other messages."""


@pytest.mark.parametrize("fault", BROKEN_DOCUMENTS)
@pytest.mark.parametrize("command", [("run",), ("config", "check")], ids=["run", "check"])
def test_a_broken_configuration_is_named_before_anything_is_touched(
    site: Site, fault: str, command: tuple[str, ...]
) -> None:
    text, expected = BROKEN_DOCUMENTS[fault]
    site.file.write_text(f"state_dir: {site.state}\napi: {{listen: ['127.0.0.1:0']}}\n{text}\n")
    one_clear_message(site.run(*command), *expected)
    assert not site.state.exists()


def one_clear_message(done: "subprocess.CompletedProcess[str]", *texts: str) -> None:
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.stderr
    assert done.stderr.startswith("auditord: ")
    assert "geheim" not in done.stderr
    for text in texts:
        assert text in done.stderr


# -- under load -----------------------------------------------------------------------------------------------------


def keep_posting(port: int, worker: int, numbers: Iterator[int], stop: Event) -> list[str]:
    """Post until the server is gone, two workers out of three one by one; the ids that were acknowledged."""
    acknowledged = list[str]()
    size = 1 if worker % 3 else 20
    with (
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection,
        suppress(OSError, http.client.HTTPException),
    ):
        while not stop.is_set():
            ids = [f"job-{worker}-{next(numbers)}" for _ in range(size)]
            single = size == 1
            document: Any = record(ids[0]) if single else [record(each) for each in ids]
            assert post(connection, "/record" if single else "/records", document) == 200
            acknowledged += ids
    return acknowledged


def test_killed_under_load_it_has_every_record_that_it_acknowledged(site: Site) -> None:
    acknowledged = list[str]()
    for after in (0.2, 0.5, 0.8):
        stop = Event()
        with site.daemon() as (process, port), ThreadPoolExecutor(6) as pool:
            numbers = count(len(acknowledged))
            workers = [pool.submit(keep_posting, port, worker, numbers, stop) for worker in range(6)]
            stop.wait(after)  # the load goes on meanwhile; the instant of the kill is what is varied
            process.kill()
            for worker in workers:
                acknowledged += worker.result(PATIENCE)
            stop.set()
    assert len(acknowledged) > 100
    with site.daemon() as (_, port):
        found = stored_ids(port)
    assert len(found) == len(set(found))
    assert set(acknowledged) <= set(found)


POISON: Sequence[Any] = [
    record("nul\0"),
    record("e" + "\u0301" * 2_000),
    record("late", start="9999-12-31T23:59:59-01:00"),
    record("typed") | {"components": [{"name": "Cores", "amount": 1.5, "scores": []}]},
    record("naive", start="2026-01-01T00:00:00"),
    "no record at all",
]


def test_poison_among_good_posts_is_refused_alone_and_kept_for_the_operator(site: Site) -> None:
    good = [record(f"good-{number}") for number in range(60)]
    bodies = [*good, *POISON]
    with site.daemon() as (_, port), ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(post_alone, repeat(port), bodies[::2] + bodies[1::2]))
        assert sorted(statuses) == [200] * len(good) + [400] * len(POISON)
        assert sorted(stored_ids(port)) == sorted(each["record_id"] for each in good)
        kept = site.json("quarantine", "list", "--output", "json")
        assert [(each["task"], each["stage"]) for each in kept] == [("api", "body")] * len(POISON)
        shown = [site.json("quarantine", "show", str(each["number"]))["raw"] for each in kept]
        assert sorted(map(json.dumps, shown)) == sorted(map(json.dumps, POISON))
        retried = site.run("quarantine", "retry", "--all")
        assert (retried.returncode, "0 resolved" in retried.stdout) == (1, True)
        assert f"{len(POISON)} failed again" in retried.stdout
        assert site.run("quarantine", "discard", "--yes", str(kept[0]["number"])).stdout == "1 discarded\n"
    assert len(site.json("quarantine", "list", "--output", "json")) == len(POISON) - 1
    assert "Traceback" not in site.text()


def post_alone(port: int, body: Any) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        return post(connection, "/record", body)


def test_idle_connections_shut_nobody_out(site: Site) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))  # the daemon inherits it
    try:
        with site.daemon() as (_, port), ExitStack() as idle:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for _ in range(100):
                idle.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            assert post_alone(port, record("afterwards")) == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- a disk that is full --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path, None, None]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("on_it", ["the store", "everything"])
def test_on_a_full_disk_no_acknowledged_record_is_lost(site: Site, small_disk: Path, on_it: str) -> None:
    if on_it == "everything":
        site.state = small_disk / "state"
    site.configure(store={"url": f"sqlite://{small_disk / 'records.db'}"})
    acknowledged = list[str]()
    with site.daemon() as (_, port):
        for number in range(100):
            ids = [f"job-{number}-{each}" for each in range(100)]
            with suppress(http.client.RemoteDisconnected, ConnectionError):
                assert post_bulk(port, ids) == 200
                acknowledged += ids
        assert "no room left on its disk" in site.text()
        assert "Traceback" not in site.text()
        assert (len(acknowledged) < 10_000) == (on_it == "everything")
        assert on_it == "everything" or get_answer(port, "/health_check")[0] == 200
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        wait_until(lambda: set(acknowledged) <= set(stored_ids(port)), site.text)
        assert post_bulk(port, ["afterwards"]) == 200
        found = stored_ids(port)
        assert len(found) == len(set(found))


def post_bulk(port: int, ids: Sequence[str]) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        return post(connection, "/records", [record(each) for each in ids])
