"""``POST /record`` against a bare handler of the same process, and what a million records cost ``GET /records``."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final

import psycopg
import pytest

from auditord.database.queries import load_queries
from tests.postgres_server import NoServer, migrate_database, own_server

LIST_RELATIONS: Final = load_queries("auditord.store.postgres", "administration.sql")["list_relations"]
HERE: Final = Path(__file__).parent
CONNECTIONS: Final = 64
ROUNDS: Final = 3
BATCH: Final = 10_000
ROUTES: Final = ("bare", "lean", "record")


@dataclass(frozen=True)
class Place:
    """Where the measured server keeps its files and its records; of a database server, the process that began it."""

    folder: Path
    url: str
    database_pid: int | None = None

    def cpu_seconds(self) -> float:
        """What the database server has used so far; SQLite works in the measured process itself."""
        return 0.0 if self.database_pid is None else family_cpu_seconds(self.database_pid)

    def bytes_per_record(self, records: int) -> str:
        """What records occupy, by table and index."""
        if self.database_pid is None:
            return f"file {(self.folder / 'records.db').stat().st_size / records:.0f}"
        with psycopg.connect(self.url) as connection:
            connection.execute("CHECKPOINT")
            relations = connection.execute(
                load_queries("auditord.store.postgres", "administration.sql")["list_relations"]
            )
            return ", ".join(f"{name} {size / records:.0f}" for name, size in relations if size > records)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Place, None, None]:
    """A durable store of each kind."""
    if request.param == "sqlite":
        yield Place(tmp_path, f"sqlite://{tmp_path / 'records.db'}")
        return
    try:
        with own_server(("-c", "shared_buffers=1GB", "-c", "max_wal_size=8GB")) as database:
            migrate_database(database.url)
            yield Place(tmp_path, database.url, database.pid)
    except NoServer as error:
        pytest.skip(str(error))


@contextmanager
def server(place: Place) -> Generator[tuple[Mapping[str, int], int], None, None]:
    """The ports of a running server, and its process id."""
    command = [sys.executable, str(HERE / "http_server.py"), str(place.folder), place.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()), process.pid
        process.terminate()
        assert process.wait(30) == 0


def load(port: int, seconds: float, prefix: str) -> dict[str, float]:
    command = [sys.executable, str(HERE / "http_load.py"), str(port), "/record", str(CONNECTIONS), str(seconds), prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def stream(port: int, query: str = "") -> tuple[int, float]:
    """How many records an answer holds, and how many seconds it took."""
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    begun = time.perf_counter()
    connection.request("GET", f"/records?{query}")
    response = connection.getresponse()
    assert response.status == 200
    found = 0
    tail = b""
    while piece := response.read(1 << 18):
        joined = tail + piece
        found += joined.count(b'{"record_id":')
        tail = joined[-12:]  # shorter than what is counted
    connection.close()
    return found, time.perf_counter() - begun


def post_rounds(place: Place, rounds: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    """Rounds over all routes in turn, so that a busy machine disturbs each alike; what was acknowledged is stored."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in ROUTES}
    with server(place) as (ports, pid):
        for number in range(rounds):
            for name in ROUTES:
                before = cpu_seconds(pid), place.cpu_seconds()
                result = load(ports[name], seconds, f"{name}-{number}")
                used = [now - then for now, then in zip((cpu_seconds(pid), place.cpu_seconds()), before, strict=True)]
                own, database = (each / result["requests"] * 1e6 for each in used)
                results[name].append(result | {"cpu_us": own, "database_us": database})
        stored, _ = stream(ports["record"])
    assert stored == sum(result["requests"] for result in results["record"])
    assert not any(result["failures"] for found in results.values() for result in found)
    return results


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family_cpu_seconds(pid: int) -> float:
    """The same of a process and its children, those that have ended and those that live."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_seconds(pid) + ended + sum(cpu_seconds(int(child)) for child in children)


def report(results: Mapping[str, list[dict[str, float]]]) -> str:
    lines = [f"\nPOST /record at {CONNECTIONS} connections, medians of {len(results['record'])} rounds:"]
    for name, found in results.items():
        keys = ("per_second", "cpu_us", "database_us", "p99_ms")
        rate, cpu, database, tail = (median(result[key] for result in found) for key in keys)
        processor = f"{cpu:5.1f} us of processor each and {database:4.1f} in the database's"
        lines.append(f"{name:>8} {rate:8,.0f}/s, {processor}, p99 {tail:5.1f} ms")
    for name in ("bare", "lean"):
        pairs = zip(results["record"], results[name], strict=True)
        ratios = [record["per_second"] / other["per_second"] for record, other in pairs]
        lines.append(f"  record is {median(ratios):.0%} of {name} ({', '.join(f'{ratio:.0%}' for ratio in ratios)})")
    return "\n".join(lines) + "\n"


@pytest.mark.benchmark
def test_post_record_at_full_size(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    results = post_rounds(place, ROUNDS, seconds=6)
    with capsys.disabled():
        sys.stdout.write(report(results))


def test_post_record_in_small(place: Place) -> None:
    assert "POST /record" in report(post_rounds(place, 1, seconds=0.1))


def fill(port: int, records: int) -> None:
    """Post records in batches; their stop times are in no order."""
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    for first in range(0, records, BATCH):
        batch = b",".join(_record(number) for number in range(first, min(first + BATCH, records)))
        connection.request("POST", "/records", b"[" + batch + b"]", {"content-type": "application/json"})
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"")
    connection.close()


_TEMPLATE: Final = (
    '{"record_id":"slurm-%d","meta":{"site_id":["site-%d"],"group_id":["group-%d"],"user_id":["user-%d"]},"components":'
    '[{"name":"Cores","amount":8,"scores":[{"name":"HEPscore23","value":18.5}]},{"name":"Memory","amount":16384,'
    '"scores":[]}],"start_time":"2024-02-03T04:05:06Z","stop_time":"2024-03-%02dT%02d:%02d:%02dZ"}'
)


def _record(number: int) -> bytes:
    day, second = number % 28 + 1, number * 7_919 % 86_400
    clock = (second // 3600, second // 60 % 60, second % 60)
    return (_TEMPLATE % (number, number % 7, number % 40, number % 900, day, *clock)).encode()


def memory(pid: int) -> dict[str, int]:
    """Kilobytes of a process: resident, resident without files' pages, and the most that was ever resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon", "VmHWM")}


def stream_all(place: Place, records: int) -> str:
    with server(place) as (ports, pid):
        port = ports["record"]
        began = time.perf_counter()
        fill(port, records)
        filled = records / (time.perf_counter() - began)
    with server(place) as (ports, pid):  # a fresh process, so that filling has left nothing behind
        port = ports["record"]
        assert stream(port, "limit=1000")[0] == min(records, 1000)
        before = memory(pid)
        found, seconds = stream(port)
        after = memory(pid)
    assert found == records
    return (
        f"\nPOST /records of {BATCH}: {filled:,.0f}/s; bytes per record: {place.bytes_per_record(records)}"
        f"\nGET /records: {records:,} records at {records / seconds:,.0f}/s; resident memory grew by "
        f"{(after['VmRSS'] - before['VmRSS']) / 1024:.1f} MB, at most by "
        f"{(after['VmHWM'] - before['VmRSS']) / 1024:.1f} MB (from {before['VmRSS'] / 1024:.1f} MB)\n"
    )


@pytest.mark.benchmark
def test_a_million_records_are_streamed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    text = stream_all(place, 1_000_000)
    with capsys.disabled():
        sys.stdout.write(text)


def test_ten_thousand_records_are_streamed(place: Place) -> None:
    assert "10,000 records" in stream_all(place, 10_000)
