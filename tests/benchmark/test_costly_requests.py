"""The costliest request of each route, by eight readers at once: what the daemon holds, and how long health takes.

By hand: ``pytest -m benchmark -s tests/benchmark/test_costly_requests.py``; ``AUDITORD_BENCHMARK_RECORDS`` is the
number of records, 200,000 by default. Durations mean something on a machine that does nothing else.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import msgspec
import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord_hookspecs import Component, Record, Score
from tests.costly_requests import COSTLIEST
from tests.page_browser import HTML
from tests.ports import free_port

RECORDS: Final = int(os.environ.get("AUDITORD_BENCHMARK_RECORDS", "200000"))
USERS: Final = 20_000
END: Final = datetime(2026, 11, 27, tzinfo=UTC)
SPAN: Final = timedelta(days=780)
BATCH: Final = 5_000
READERS: Final = 8
MOST_MEMORY: Final = 400
MOST_SECONDS: Final = 1.0
PATIENCE: Final = 300
_MIB: Final = 1 << 20


class Held(NamedTuple):
    """The price of a request of eight readers for others.

    Args:
        memory: the daemon's largest resident memory meanwhile, in MiB.
        health: the longest answer to a health check meanwhile, in seconds.
        statuses: of the answers.
        seconds: until the last of them.
    """

    memory: float
    health: float
    statuses: Sequence[int]
    seconds: float


def job(number: int, of: int) -> Record:
    """One of so many jobs that end evenly over the span, of any user."""
    chosen = random.Random(number)  # noqa: S311 no secret
    user, cores, seconds = chosen.randrange(USERS), chosen.choice((1, 2, 4, 8, 16)), chosen.randrange(60, 86_400)
    stop = END - SPAN * ((of - number) / of)
    names = {"site_id": f"site{user % 10}", "group_id": f"group{user % 50}", "user_id": f"user{user}"}
    names |= {"VO": ("atlas", "cms")[user % 2], "job_name": f"name {number}"}
    components = (
        Component("Cores", cores, (Score("HEPscore23", 15.5),)),
        Component("TotalCPU", cores * seconds * 8 // 10, ()),
    )
    meta: dict[str, tuple[str, ...]] = {key: (name,) for key, name in names.items()}
    return Record(f"job-{number}", stop - timedelta(seconds=seconds), components, stop, meta)


async def fill(url: str, records: int) -> None:
    async with open_store(url, counted_keys=("group_id", "site_id", "user_id")) as store:
        for first in range(0, records, BATCH):
            batch = [job(number, records) for number in range(first, min(first + BATCH, records))]
            await store.add_all(batch, Provenance(END), Duplicates.SAME_RUN, atomic=True)


@contextmanager
def daemon(folder: Path, url: str, *, until_idle: bool = True) -> Generator[tuple[int, int], None, None]:
    """A daemon in a process of its own: its port and its process id, once it answers or even has folded all records."""
    port, file = free_port(), folder / "auditord.yml"
    document = {"state_dir": str(folder / "state"), "store": {"url": url}, "api": {"listen": [f"127.0.0.1:{port}"]}}
    file.write_text(msgspec.json.encode(document).decode())
    command = [sys.executable, "-m", "auditord", "run", "--config", str(file)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            _wait_until_it_answers(port, process.pid if until_idle else None)
            yield port, process.pid
        finally:
            process.terminate()


def _wait_until_it_answers(port: int, idle: int | None) -> None:
    """Wait until the daemon answers, and the process of this id is idle: all records are in its roll-ups."""
    for _ in range(PATIENCE):
        begun = _cpu(idle) if idle else 0.0
        time.sleep(1)
        try:
            if _asked(port, "/health_check")[0] == 200 and (idle is None or _cpu(idle) - begun < 0.1):
                return
        except OSError:
            continue
    raise TimeoutError("the daemon does not answer, or is not idle")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB


def _asked(port: int, target: str) -> tuple[int, float]:
    """The status of an answer, once all of it is there, and the seconds until then."""
    begun = time.perf_counter()
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", target, headers=HTML)
        answer = connection.getresponse()
        while answer.read(1 << 16):
            pass
        return answer.status, time.perf_counter() - begun


def measured(port: int, pid: int, target: str) -> Held:
    with ThreadPoolExecutor(READERS) as readers:
        begun, memory, health = time.perf_counter(), [_memory(pid)], list[float]()
        asked = [readers.submit(_asked, port, target) for _ in range(READERS)]
        while not all(each.done() for each in asked):
            health.append(_asked(port, "/health_check")[1])
            memory.append(_memory(pid))
            time.sleep(0.02)
        seconds = time.perf_counter() - begun
        return Held(max(memory), max(health, default=0.0), sorted({each.result()[0] for each in asked}), seconds)


def all_measured(folder: Path, url: str, paths: Mapping[str, Sequence[str]]) -> Mapping[str, Held]:
    found = dict[str, Held]()
    with daemon(folder, url) as (port, pid):
        for targets in paths.values():
            for target in targets:
                held = found[target] = measured(port, pid, target)
                print(  # noqa: T201 what a benchmark is for
                    f"{held.memory:6.0f} MiB, health {held.health * 1e3:5.0f} ms, {held.seconds:6.1f} s, "
                    f"{held.statuses}, {target[:120]}",
                    flush=True,
                )
    return found


def test_the_measurement_works(url: str, tmp_path: Path) -> None:
    anyio.run(fill, url, 100)
    target = COSTLIEST["/usage.csv"][0]
    held = all_measured(tmp_path, url, {"/usage.csv": [target]})[target]
    assert (held.statuses, held.memory > 0, held.seconds > 0) == ([200], True, True)


@pytest.mark.benchmark
@pytest.mark.timeout(7_200)
def test_no_reader_takes_the_daemon_from_others(url: str, tmp_path: Path) -> None:
    anyio.run(fill, url, RECORDS)
    found = all_measured(tmp_path, url, COSTLIEST)
    assert {target: held for target, held in found.items() if held.memory > MOST_MEMORY} == {}
    assert {target: held for target, held in found.items() if held.health > MOST_SECONDS} == {}
