"""A daemon under attack, and others who want to be served meanwhile."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from tests.api_server import record

ATTACKING: Final = Path(__file__).with_name("attacking.py")
PATIENCE: Final = 30.0
DESCRIPTORS: Final = 1_024
STORED: Final = 30_000


@dataclass
class Client:
    """The findings of one client.

    Args:
        name: what it is.
        answered: how many requests were answered rightly.
        failed: what else became of requests.
        worst: the longest time that one took, in seconds.
    """

    name: str
    answered: int = 0
    failed: list[str] = field(default_factory=list[str])
    worst: float = 0.0

    def __str__(self) -> str:
        return f"{self.name}: {self.answered} ok, {len(self.failed)} failed, worst {self.worst:.2f} s"


class Daemon:
    """``auditord run`` as the README starts it, with fewer descriptors than it would like.

    Args:
        folder: of its configuration, state and log.
        store: its URL; None for the default.
        stored: how many records it is given before anything else.
    """

    def __init__(self, folder: Path, store: str | None = None, stored: int = STORED) -> None:
        self._stored = stored
        self._log = folder / "log"
        self._file = folder / "auditord.yml"
        document: dict[str, object] = {"state_dir": str(folder / "state"), "api": {"listen": ["127.0.0.1:0"]}}
        if store is not None:
            document["store"] = {"url": store}
        self._file.write_text(json.dumps(document))
        self.pid = 0
        self.port = 0

    @contextmanager
    def running(self) -> Generator["Daemon", None, None]:
        """The process, with records in its store."""
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
        few = ["prlimit", f"--nofile={DESCRIPTORS}"]
        command = [*few, sys.executable, "-m", "auditord", "run", "--config", str(self._file)]
        with self._log.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            self.pid, self.port = process.pid, self._port()
            for begin in range(0, self._stored, 3_000):
                status, _ = self.ask("POST", "/records", [record(f"old-{begin + each}") for each in range(3_000)])
                assert status == 200
            yield self
        finally:
            process.kill()
            process.wait()

    def _port(self) -> int:
        deadline = time.monotonic() + 180
        while (found := re.search(r"is ready: http://127.0.0.1:(\d+)", self.text())) is None:
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)
        return int(found[1])

    def text(self) -> str:
        """The log."""
        return self._log.read_text()

    def peak(self) -> int:
        """The most memory that the process has used since it was asked to forget, in MiB."""
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert match is not None
        return int(match[1]) >> 10

    def forget_peak(self) -> None:
        """Begin to measure :meth:`peak`."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def cpu(self) -> float:
        """The seconds of CPU time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, method: str, target: str, body: object = None) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            text = None if body is None else json.dumps(body).encode()
            connection.request(method, target, text, {"Content-Type": "application/json", "Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read()


def reading(daemon: Daemon, _number: int) -> bool:
    """Read some records, and sums."""
    asked = [daemon.ask("GET", target) for target in ("/records?limit=2000", "/api/v1/aggregates?by=meta:site_id")]
    return [status for status, _ in asked] == [200, 200] and asked[0][1].count(b'"record_id"') == 2_000


def writing(daemon: Daemon, number: int) -> bool:
    """Write one record and some."""
    many = [record(f"new-{number}-{each}") for each in range(500)]
    asked = [daemon.ask("POST", "/record", record(f"new-{number}")), daemon.ask("POST", "/records", many)]
    return asked == [(200, b""), (200, b"")]


def looking(daemon: Daemon, _number: int) -> bool:
    """Ask for the daemon's health."""
    return daemon.ask("GET", "/health_check") == (200, b"")


CLIENTS: Final[dict[str, tuple[Callable[[Daemon, int], bool], float]]] = {
    "reader": (reading, 0.5),
    "writer": (writing, 0.5),
    "anonymous": (looking, 0.2),
}
"""The work of each client, and the seconds that it waits in between."""


def served(daemon: Daemon, name: str, until: float) -> Client:
    """Do it again and again."""
    do, pause = CLIENTS[name]
    client = Client(name)
    number = 0
    while time.monotonic() < until:
        begun = time.monotonic()
        try:
            right = do(daemon, number)
        except (OSError, HTTPException) as error:
            client.failed.append(repr(error))
        else:
            client.answered += right
            if not right:
                client.failed.append("a wrong answer")
        client.worst = max(client.worst, time.monotonic() - begun)
        number += 1
        time.sleep(pause)
    return client


def under_attack(daemon: Daemon, attack: str, seconds: float) -> tuple[int, dict[str, Client], str]:
    """The peak of the daemon's memory, what the clients found, and what the attacker did."""
    daemon.forget_peak()
    command = [sys.executable, str(ATTACKING), attack, str(daemon.port), str(seconds)]
    found: dict[str, Client] = {}

    def client(name: str, until: float) -> None:
        found[name] = served(daemon, name, until)

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=client, args=(name, until)) for name in CLIENTS]
        for thread in threads:
            thread.start()
        said, _ = attacker.communicate(timeout=seconds + 60)
        for thread in threads:
            thread.join()
    return daemon.peak(), found, said.strip()
