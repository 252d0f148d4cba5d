"""Throughput against another checkout: ``python -m tests.measurements.throughput OTHER [--rounds 5] [--records 0]``.

Both daemons run at the same time on stores of their own, which hold so many records before, and are loaded in turns, so
that a machine that becomes slower does so for both. A ratio above 1 means that this checkout is faster. The second
ratio is of the CPU time that each daemon took for as much work: on a machine that others use as well it says more.
``--store`` is the URL of a PostgreSQL server without a database (``postgresql://user@host:port/``): ``one`` and
``other`` must be there, migrated or empty.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

import psycopg

from tests.benchmark.http_load import READ, RECORD
from tests.benchmark.measured import jobs
from tests.benchmark.test_filters import QUESTIONS, bodies

HERE: Final = Path(__file__).parents[2]
KNOWN: Final = "one-that-is-known"
PACKAGES: Final = (".", "hookspecs", "builtin_plugins")
LOAD: Final = HERE / "tests/benchmark/http_load.py"
BULK: Final = 1_000
START_SECONDS: Final = 60
TICKS: Final = os.sysconf("SC_CLK_TCK")
REST: Final = 6
"""Seconds after which it is looked again whether both daemons are idle."""
IDLE: Final = 0.2
"""Seconds of CPU time that two idle daemons take meanwhile, at most."""
AT_LEAST: Final = 0.5
"""Seconds for which something short is repeated."""


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
    own = checkout / ".venv/bin/python"  # whose distributions name the checkout's hook modules
    command = [str(own) if own.exists() else sys.executable, "-m", "auditord", "--config", str(folder / "auditord.yml")]
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


def loaded(path: str, connections: int, port: int) -> float:
    """Single posts or reads per second."""
    command = [sys.executable, str(LOAD), str(port), path, str(connections), "4", f"c{connections}"]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert not done["failures"]
    return float(done["per_second"])


def posted_in_bulk(port: int, clients: int, pieces: int = 20) -> float:
    """Records per second of clients that post many at once: jobs of one site and day."""
    random = Random(time.time_ns())  # noqa: S311 nobody has to guess
    texts = [jobs("bulk", random, range(BULK)).decode() for _ in range(pieces)]
    with ThreadPoolExecutor(clients) as threads:
        return BULK * pieces / seconds(lambda: list(threads.map(partial(asked, port, "POST", "/records"), texts)))


def answered(path: str, port: int) -> float:
    """Answers per second, each on a connection of its own."""
    once = seconds(lambda: asked(port, "GET", path))
    times = max(1, int(AT_LEAST / once))
    return times / seconds(lambda: [asked(port, "GET", path) for _ in range(times)])


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


WAYS: Final[Mapping[str, Callable[[int], float]]] = {
    **{f"POST /record, {each} connections": partial(loaded, "/record", each) for each in (64, 1)},
    **{f"GET /record/{{id}}, {each} connections": partial(loaded, f"/record/{KNOWN}-%d", each) for each in (64, 16, 1)},
    "POST /records of 1,000, 1 client": lambda port: posted_in_bulk(port, 1),
    "POST /records of 1,000, 4 clients": lambda port: posted_in_bulk(port, 4),
    "GET /records": partial(answered, "/records"),
    "GET /records, 20,000": partial(answered, "/records?sort_by[asc]=stop_time&limit=20000"),
    "GET /records, none found": partial(answered, "/records?start_time[gte]=2024-02-03T04:00:00Z&meta[site_id][c]=0"),
    **{f"GET {each.name}": partial(answered, each.query.replace("%s", KNOWN)) for each in QUESTIONS},
    "GET /metrics": partial(answered, "/metrics"),
}


def filled(daemons: Sequence[Daemon], records: int) -> None:
    """Give each so many records, three of ten with the same stop time, and some that are known."""
    known = [KNOWN, *(f"{KNOWN}-{number}" for number in range(READ))]
    for each in daemons:
        asked(each.port, "POST", "/records", "[{}]".format(",".join(RECORD % (name, 1, 1, 1) for name in known)))
        for body in bodies(records):
            asked(each.port, "POST", "/records", body.decode())


def rest(daemons: Sequence[Daemon], stores: Sequence[str]) -> None:
    """Wait until nothing is left to be done behind what came, and let the server know its tables."""
    for url in stores:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    begun, before = time.monotonic(), -1.0
    while (now := sum(each.cpu() for each in daemons)) > before + IDLE and time.monotonic() < begun + START_SECONDS:
        before = now
        time.sleep(REST)


def measured(daemons: Sequence[Daemon], rounds: int, only: str) -> Mapping[str, Sequence[tuple[Rate, Rate]]]:
    """Rates of both daemons, round by round; who begins changes."""
    rates: dict[str, list[tuple[Rate, Rate]]] = defaultdict(list)
    for turn in range(rounds):
        for name in [each for each in WAYS if only in each]:
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            taken = {which: daemons[which].measured(WAYS[name]) for which in order}
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


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=0)
    parser.add_argument("--store")
    parser.add_argument("--only", default="", help="measure the ways whose names have this text")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        one, two = (f"{given.store}{name}" if given.store else None for name in ("one", "other"))
        with daemon(HERE, Path(here), one) as mine, daemon(given.other.resolve(), Path(there), two) as its:
            filled((mine, its), given.records)
            rest((mine, its), [url for url in (one, two) if url is not None])
            for name, rates in measured((mine, its), given.rounds, given.only).items():
                sys.stdout.write(line(name, rates) + "\n")


if __name__ == "__main__":
    main()
