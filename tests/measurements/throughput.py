"""Throughput against another checkout: ``python tests/measurements/throughput.py OTHER [ROUNDS] [STORE_URL]``.

Both daemons run at the same time on stores of their own and are loaded in turns, so that a machine that becomes slower
does so for both. A ratio above 1 means that this checkout is faster. The second ratio is of the CPU time that each
daemon took for as much work: on a machine that others use as well it says more. STORE_URL is a PostgreSQL server's
without its database (``postgresql://user@host:port/``): ``one`` and ``other`` must be there, migrated or empty.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final

HERE: Final = Path(__file__).parents[2]
PACKAGES: Final = (".", "hookspecs", "builtin_plugins")
LOAD: Final = HERE / "tests/benchmark/http_load.py"
BULK: Final = 1_000
START_SECONDS: Final = 60
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon.

    Args:
        port: where it answers.
        process_id: of its process.
    """

    port: int
    process_id: int

    def cpu(self) -> float:
        """Seconds of CPU time that it has taken, in all its threads."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def measured(self, way: Callable[[int], float]) -> "Rate":
        """Load it; the CPU time is for so much as it does in a second."""
        cpu, begun = self.cpu(), time.perf_counter()
        per_second = way(self.port)
        return Rate(per_second, (self.cpu() - cpu) / (time.perf_counter() - begun) / per_second)


@dataclass(frozen=True, slots=True)
class Rate:
    """Pieces of work per second, and seconds of CPU time for each."""

    per_second: float
    cpu: float


@contextmanager
def daemon(checkout: Path, folder: Path, store_url: str | None) -> Generator[Daemon, None, None]:
    """Run the daemon of a checkout."""
    section: dict[str, object] = {"state_dir": str(folder / "state"), "api": {"listen": ["127.0.0.1:0"]}}
    if store_url:
        section["store"] = {"url": store_url}
    (folder / "auditord.yml").write_text(json.dumps(section))
    paths = os.pathsep.join(str(checkout / each) for each in PACKAGES)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "auditord", "--config", str(folder / "auditord.yml")]
    if store_url:
        subprocess.run([*command, "database", "migrate"], env=environment, check=True, cwd=folder)
    log = folder / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen([*command, "run"], env=environment, stderr=errors, cwd=folder) as one,
    ):
        try:
            yield Daemon(port_of(log), one.pid)
        finally:
            one.terminate()


def port_of(log: Path) -> int:
    """The port, once the log names it."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if found := re.search(r"is ready: http://127.0.0.1:(\d+)", log.read_text()):
            return int(found[1])
        time.sleep(0.05)
    raise TimeoutError(log.read_text())


def posted(port: int, connections: int) -> float:
    """Records per second of single posts."""
    command = [sys.executable, str(LOAD), str(port), "/record", str(connections), "4", f"c{connections}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["per_second"])


def posted_in_bulk(port: int, pieces: int = 15) -> float:
    """Records per second of one client that posts many at once."""
    bodies = [json.dumps([record(f"{time.time_ns()}-{number}") for number in range(BULK)]) for _ in range(pieces)]
    return BULK * pieces / seconds(lambda: [asked(port, "POST", "/records", body) for body in bodies])


def read(port: int) -> float:
    """Answers per second of a list of some thousand records, 5 times."""
    path = "/records?sort_by[asc]=stop_time&limit=20000"
    return 5 / seconds(lambda: [asked(port, "GET", path) for _ in range(5)])


def found(port: int) -> float:
    """Answers per second of a narrow filter."""
    path = "/records?start_time[gte]=2024-02-03T04:00:00Z&meta[site_id][c]=none"
    return 300 / seconds(lambda: [asked(port, "GET", path) for _ in range(300)])


def seconds(act: Callable[[], object]) -> float:
    """The time that something takes."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def asked(port: int, method: str, path: str, body: str | None = None) -> bytes:
    """The body of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer
    return answer


def record(name: str) -> Mapping[str, object]:
    """A record as JSON."""
    cores = {"name": "Cores", "amount": 8, "scores": [{"name": "HEPscore23", "value": 18.5}]}
    meta = {"site_id": ["site-1"], "group_id": ["group-1"], "user_id": ["user-1"]}
    times = {"start_time": "2024-02-03T04:05:06Z", "stop_time": "2024-02-03T06:05:06Z"}
    return {"record_id": name, "meta": meta, "components": [cores], **times}


WAYS: Final[Mapping[str, Callable[[int], float]]] = {
    "POST /record, 64 connections": lambda port: posted(port, 64),
    "POST /record, 1 connection": lambda port: posted(port, 1),
    "POST /records of 1,000": posted_in_bulk,
    "GET /records, 20,000": read,
    "GET /records, none found": found,
}


def measured(daemons: Sequence[Daemon], rounds: int) -> Mapping[str, Sequence[tuple[Rate, Rate]]]:
    """Rates of both daemons, round by round; who begins changes."""
    rates: dict[str, list[tuple[Rate, Rate]]] = defaultdict(list)
    for turn in range(rounds):
        for name, way in WAYS.items():
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            taken = {which: daemons[which].measured(way) for which in order}
            rates[name].append((taken[0], taken[1]))
    return rates


def line(name: str, rates: Sequence[tuple[Rate, Rate]]) -> str:
    """The rates of a way, and the medians of the ratios."""
    own, others = (median(each.per_second for each in column) for column in zip(*rates, strict=True))
    ratio = median(mine.per_second / its.per_second for mine, its in rates)
    cpu, its_cpu = (median(each.cpu for each in column) * 1e6 for column in zip(*rates, strict=True))
    cpu_ratio = median(its.cpu / mine.cpu for mine, its in rates)
    rates_text = f"{own:,.0f}/s against {others:,.0f}/s: {ratio:.2f}"
    return f"{name}: {rates_text}; CPU {cpu:,.0f} against {its_cpu:,.0f} us: {cpu_ratio:.2f}"


def main(other: Path, rounds: int, store: str | None) -> None:
    """Print a line for each way."""
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        one, two = (f"{store}{name}" if store else None for name in ("one", "other"))
        with daemon(HERE, Path(here), one) as mine, daemon(other, Path(there), two) as its:
            for name, rates in measured((mine, its), rounds).items():
                sys.stdout.write(line(name, rates) + "\n")


if __name__ == "__main__":
    _, _other, *_more = sys.argv
    main(Path(_other), int(_more[0]) if _more else 5, _more[1] if len(_more) > 1 else None)
