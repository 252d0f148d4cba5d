"""Files of ours, and changes between them, on the ways that records take: ``python tests/measurements/ways.py``.

A daemon of its own is profiled (sys.setprofile) over one warm call of each way: ``POST /record`` until it is on disk,
``GET /records`` and the page's ``GET /usage`` until they are answered, a row of sacct until its record is stored, the
queue is empty and the run over.

Several tasks and threads work at a time, and which of them the interpreter turns to next differs from try to try. So
the calls of each are listed by themselves, as somebody reads them one after the other: a list for every task of the
event loop, and for every call that a thread, or the loop itself, makes beside them. The changes of file within each
list are added up; that one list begins another is no change. The least of several tries counts, since what else a
daemon does (watchdog, gauges) falls between some of them.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

TRIES: Final = 20
RUNS: Final = 7
"""Tries of the way that takes seconds."""
PROFILED: Final = Path(__file__).with_name("profiled")
COLUMNS: Final = {"Cluster": "c1", "State": "COMPLETED", "User": "alice", "UID": "1000", "Group": "atlas", "GID": "100"}
SACCT: Final = """#!/usr/bin/env python3
import sys, time
from pathlib import Path
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
state = Path(__file__).with_name("jobs")
number = len(state.read_text()) if state.exists() else 0
if Path(__file__).with_name("another").exists() and "--allocations" not in sys.argv:
    Path(__file__).with_name("another").unlink()
    state.write_text("." * (number + 1))
    end = int(time.time()) - 5
    row = {columns} | {{"JobID": str(number + 1), "JobIDRaw": str(number + 1), "NCPUS": "4", "TotalCPU": "00:03:20",
        "Submit": str(end - 90), "Start": str(end - 60), "End": str(end),
        "AllocTRES": "billing=4,cpu=4,mem=4096M,node=1",
        "Partition": "short", "Account": "physics", "NodeList": "n01"}}
    print(options["delimiter"].join(row.get(column, "") for column in options["format"].split(",")))
"""

Calls: TypeAlias = Sequence[Sequence[str]]
"""The files of the calls, in their order, for each task, and for each call of a thread or of the loop beside them."""


class Daemon:
    """A running daemon that is profiled.

    Args:
        folder: where its files are.
        process: it.
        url: where it answers.
    """

    def __init__(self, folder: Path, process: "subprocess.Popen[str]", url: str) -> None:
        self.folder = folder
        self._connection = HTTPConnection(url.removeprefix("http://"), timeout=30)
        self._process = process

    def ask(self, path: str, body: object = None) -> bytes:
        """The answer's body; the connection is kept."""
        data = None if body is None else json.dumps(body)
        self._connection.request("GET" if data is None else "POST", path, data, {"Content-Type": "application/json"})
        return self._connection.getresponse().read()

    def profiled(self, act: Callable[[], object]) -> Calls:
        """The calls of our own while something is done."""
        target = self.folder / "calls.json"
        target.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(0.05)  # the handler runs when the loop wakes up
        act()
        time.sleep(0.2)  # until all that took part is at rest
        self._process.send_signal(signal.SIGUSR2)
        self.ask("/health_check")
        wait_until(target.exists)
        calls: Calls = json.loads(target.read_text())
        return calls


def wait_until(condition: Callable[[], object]) -> None:
    """Look often."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise TimeoutError(condition)


@contextmanager
def daemon(folder: Path) -> Generator[Daemon, None, None]:
    """Start one with a Slurm collector."""
    sacct, log = folder / "sacct", folder / "log"
    sacct.write_text(SACCT.format(columns=COLUMNS))
    sacct.chmod(0o700)
    slurm = {
        "kind": "slurm",
        "interval": "3s",
        "sacct": [str(sacct)],
        "earliest_datetime": datetime.now(UTC) - timedelta(hours=1),
        "lag": "0s",
        "sites": [{"name": "A"}],
    }
    section = {"state_dir": str(folder / "state"), "api": {"listen": ["127.0.0.1:0"]}, "collectors": {"slurm": slurm}}
    (folder / "auditord.yml").write_text(json.dumps(section, default=str))
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PROFILE_TO": str(folder / "calls.json")}
    environment["PYTHONPATH"] = os.pathsep.join([str(PROFILED), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "auditord", "--config", str(folder / "auditord.yml"), "run"]
    with log.open("w") as errors, subprocess.Popen(command, env=environment, stderr=errors, text=True) as process:
        try:
            wait_until(lambda: "is ready: " in log.read_text() or process.poll() is not None)
            ready = re.search(r"is ready: (\S+)", log.read_text())
            assert ready, log.read_text()
            yield Daemon(folder, process, ready[1])
        finally:
            process.terminate()


def record(number: int) -> object:
    """A record as clients send it."""
    times = {"start_time": "2026-06-01T08:00:00Z", "stop_time": "2026-06-01T09:00:00Z"}
    scores = [{"name": "HEPscore23", "value": 12.5}]
    meta = {"site_id": ["A"], "user_id": ["alice"]}
    return {
        "record_id": f"job-{number}",
        "meta": meta,
        "components": [{"name": "Cores", "amount": 8, "scores": scores}],
        **times,
    }


def collect(profiled: Daemon) -> Calls:
    """One more job, from sacct's line to the store, and all that its run does until nothing is left to do."""
    with ExitStack() as stack:
        store, spool = (
            stack.enter_context(closing(sqlite3.connect(profiled.folder / f"state/{name}.db")))
            for name in ("records", "spool")
        )

        def stored() -> int:
            return number(store, "SELECT count(*) FROM records WHERE record_id LIKE 'slurm-%'")

        def runs() -> int:
            return number(spool, "SELECT max(number) FROM run")

        def act() -> None:
            before = stored()
            (profiled.folder / "another").touch()
            wait_until(lambda: runs() > last)
            wait_until(lambda: stored() > before and not number(spool, "SELECT count(*) FROM queue"))

        before = runs()
        wait_until(lambda: runs() > before)  # the next run is seconds away, and the only one that is profiled
        last = runs()
        return profiled.profiled(act)


def number(database: sqlite3.Connection, question: str) -> int:
    """The one number that answers a question."""
    ((answer,),) = database.execute(question)
    return int(answer or 0)


def least(name: str, tried: Sequence[Calls]) -> str:
    """The fewest files and changes of a way."""
    files = min(tried, key=lambda calls: (sum(map(changes, calls)), len({file for each in calls for file in each})))
    distinct = sorted({file for each in files for file in each})
    if "-v" in sys.argv:
        sys.stdout.writelines(re.sub(r".*/(?=(auditord|auditord_\w+)/)", "  ", file) + "\n" for file in distinct)
    return f"{name}: {len(distinct)} files, {sum(map(changes, files))} changes"


def changes(calls: Sequence[str]) -> int:
    """Steps from one file to another."""
    return max(0, sum(1 for _ in groupby(calls)) - 1)


def main() -> None:
    """Measure every way."""
    with tempfile.TemporaryDirectory() as folder, daemon(Path(folder)) as profiled:
        for number in range(20):
            profiled.ask("/record", record(number))
            profiled.ask("/records?start_time[gte]=2026-01-01T00:00:00Z")
            profiled.ask("/usage")
        names = iter(range(100, 100 + TRIES))
        find = "/records?start_time[gte]=2026-01-01T00:00:00Z&meta[site_id][c]=A"
        ways: Mapping[str, Callable[[], Calls]] = {
            "POST /record": lambda: profiled.profiled(lambda: profiled.ask("/record", record(next(names)))),
            "GET /records": lambda: profiled.profiled(lambda: profiled.ask(find)),
            "GET /usage": lambda: profiled.profiled(lambda: profiled.ask("/usage")),
            "sacct row to stored record": lambda: collect(profiled),
        }
        for name, way in ways.items():
            tries = RUNS if name.startswith("sacct") else TRIES
            sys.stdout.write(least(name, [way() for _ in range(tries)]) + "\n")


if __name__ == "__main__":
    main()
