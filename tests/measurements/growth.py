"""Cost of each path as a store grows: ``python -m tests.measurements.growth [--postgresql] [--sizes 100000,…]``.

A real daemon with a store of jobs that end one after another, 10,000 a day, so that an hour has as many at each size.
Their ids rise, as a batch system's do, unless they are to be random. Printed are, per size, the CPU time of daemon and
database server for one request (or record), medians of rounds, and how it stands to the first size. What a post leaves
to be done (sums, the server's own upkeep) is in it; what both take when nobody asks anything is not. CPU time is what
other programs on the machine disturb least. The daemon's memory is the most that it had up to then.
"""

import argparse
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmark.measured import BATCH, cpu_seconds, family_cpu_seconds, memory
from tests.measurements.throughput import HERE, Daemon, daemon
from tests.postgres_server import own_server

BEGIN: Final = datetime(2022, 1, 1, tzinfo=UTC)
BETWEEN: Final = timedelta(days=1) / 10_000
"""The time from one job's end to the next one's."""

SECONDS: Final = 3
"""The time for which daemon and server are watched."""

SETTINGS: Final = ("-c", "shared_buffers=1GB", "-c", "max_wal_size=8GB")
JOB: Final = (
    '{"record_id":"%s","meta":{"site_id":["site-%d"],"group_id":["group-%d"],"user_id":["user-%d"]},"components":'
    '[{"name":"Cores","amount":8,"scores":[{"name":"HEPscore23","value":18.5}]},{"name":"Memory","amount":16384,'
    '"scores":[]}],"start_time":"%s","stop_time":"%s"}'
)


@dataclass(slots=True)
class Site:
    """A running daemon, its database server's process if it has one, and the number of jobs that have ended."""

    process: Daemon
    database_pid: int | None
    jobs: int = 0
    random_ids: bool = False
    known: str = ""
    """The id of one of the last jobs."""

    def cpu(self) -> float:
        """Seconds of CPU time that both have taken."""
        server = 0.0 if self.database_pid is None else family_cpu_seconds(self.database_pid)
        return cpu_seconds(self.process.process_id) + server

    def now(self) -> datetime:
        """The end of the last job."""
        return BEGIN + self.jobs * BETWEEN

    def bodies(self, count: int) -> Iterator[str]:
        """The next jobs."""
        random = Random(self.jobs)  # noqa: S311 nobody has to guess
        for _ in range(count):
            self.jobs += 1
            stop = self.now()
            user = int(900 * random.random() ** 3)
            start = stop - timedelta(minutes=random.randrange(1, 600))
            times = (f"{each:%Y-%m-%dT%H:%M:%S}Z" for each in (start, stop))
            self.known = f"{random.getrandbits(64):016x}" if self.random_ids else f"slurm-cluster-{self.jobs}"
            yield JOB % (self.known, self.jobs % 7, user % 40, user, *times)

    def grow_to(self, size: int) -> None:
        """Let jobs end until there are so many, and the daemon has nothing left to do."""
        while self.jobs < size:
            self.post_bulk(min(BATCH, size - self.jobs))
        self.settle()

    def settle(self) -> float:
        """Wait until daemon and server take less than a fiftieth of a core; returns the share that they take."""
        while True:
            before = self.cpu()
            time.sleep(SECONDS)
            if (share := (self.cpu() - before) / SECONDS) < 0.02:
                return share

    def post_bulk(self, count: int) -> None:
        """Post the next jobs together."""
        self.ask("/records", f"[{','.join(self.bodies(count))}]")

    def post_each(self, count: int) -> None:
        """Post the next jobs one by one, on one connection."""
        self.ask("/record", *self.bodies(count))

    def ask(self, path: str, *bodies: str) -> bytes:
        """The last answer: to a GET, or to a POST of each body."""
        connection = HTTPConnection("127.0.0.1", self.process.port, timeout=600)
        answer = b""
        for body in bodies or (None,):
            connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, answer
        connection.close()
        return answer


def _hour(site: Site) -> bytes:
    end = site.now() - timedelta(days=3)
    since = end - timedelta(hours=1)
    bounds = f"stop_time[gte]={since:%Y-%m-%dT%H:%M:%SZ}&stop_time[lt]={end:%Y-%m-%dT%H:%M:%SZ}"
    return site.ask(f"/records?{bounds}")


@dataclass(frozen=True, slots=True)
class Way:
    """A request, so often in a round, for so many records."""

    act: Callable[[Site], object]
    times: int
    records: int = 1


WAYS: Final[Mapping[str, Way]] = {
    "POST /record, one connection": Way(lambda site: site.post_each(2_000), 1, 2_000),
    "POST /records of 1,000": Way(lambda site: site.post_bulk(1_000), 50, 50_000),
    "an hour by stop time, 417 records": Way(_hour, 200, 200),
    "newest 100": Way(lambda site: site.ask("/records?sort_by[desc]=stop_time&limit=100"), 200, 200),
    "one by id": Way(lambda site: site.ask(f"/records?record_id={site.known}"), 200, 200),
    "/metrics": Way(lambda site: site.ask("/metrics"), 200, 200),
}


def measured(site: Site, way: Way, rounds: int) -> float:
    """Seconds of CPU time for one, the median of the rounds."""
    return median(_round(site, way) for _ in range(rounds))


def _round(site: Site, way: Way) -> float:
    idle, before, begun = site.settle(), site.cpu(), time.monotonic()
    for _ in range(way.times):
        way.act(site)
    site.settle()
    return (site.cpu() - before - idle * (time.monotonic() - begun)) / way.records


@contextmanager
def running(
    folder: Path, url: str | None, database_pid: int | None, jobs: int, *, random_ids: bool
) -> Generator[Site, None, None]:
    """The daemon of this checkout on a store with so many jobs."""
    with daemon(HERE, folder, url) as process:
        yield Site(process, database_pid, jobs, random_ids)


def main(folder: Path, sizes: Sequence[int], rounds: int, *, postgresql: bool, random_ids: bool) -> None:
    """Print a line for each way, once per size."""
    costs: dict[str, list[float]] = {name: [] for name in (*WAYS, "start to ready")}
    with ExitStack() as stack:
        server = stack.enter_context(own_server(SETTINGS)) if postgresql else None
        url, pid = (server.url, server.pid) if server else (None, None)
        jobs = 0
        for size in sizes:
            with running(folder, url, pid, jobs, random_ids=random_ids) as site:
                site.grow_to(size)
                for name, way in WAYS.items():
                    costs[name].append(measured(site, way, rounds))
                site.settle()
                jobs, most = site.jobs, memory(site.process.process_id)["VmHWM"] / 1024
            with running(folder, url, pid, jobs, random_ids=random_ids) as site:
                costs["start to ready"].append(cpu_seconds(site.process.process_id))
            sys.stdout.write(f"{size:>12,}  {'resident at most':35} {most:12,.0f} MB\n")
            for name, found in costs.items():
                sys.stdout.write(f"{size:>12,}  {name:35} {found[-1] * 1e6:12,.0f} us  {found[-1] / found[0]:5.2f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgresql", action="store_true", help="in a server of its own, durable; otherwise SQLite")
    parser.add_argument("--sizes", default="100000,1000000,10000000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--random-ids", action="store_true", help="the worst case for the index on ids")
    parser.add_argument(
        "--folder", type=Path, help="for the store, 7 GB for ten million records; otherwise a temporary"
    )
    chosen = parser.parse_args()
    with ExitStack() as temporary:
        place = chosen.folder or Path(temporary.enter_context(TemporaryDirectory()))
        sizes = [int(size) for size in chosen.sizes.split(",")]
        main(place, sizes, chosen.rounds, postgresql=chosen.postgresql, random_ids=chosen.random_ids)
