"""``POST /record`` against a bare handler of the same process, and what a million records cost ``GET /records``."""

import sys
import time
from collections.abc import Generator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from tests.benchmark.measured import BATCH, Location, cpu_seconds, fill, memory, server
from tests.benchmark.posting import CONNECTIONS, load
from tests.postgres_server import NoServer, migrate_database, own_server

ROUNDS: Final = 3
ROUTES: Final = ("bare", "lean", "record")


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Location, None, None]:
    """A durable store of each kind."""
    if request.param == "sqlite":
        yield Location(tmp_path, f"sqlite://{tmp_path / 'records.db'}")
        return
    try:
        with own_server(("-c", "shared_buffers=1GB", "-c", "max_wal_size=8GB")) as database:
            migrate_database(database.url)
            yield Location(tmp_path, database.url, database.pid)
    except NoServer as error:
        pytest.skip(str(error))


def stream(port: int, query: str = "") -> tuple[int, float]:
    """The number of records in an answer, and the seconds that it took."""
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


def post_rounds(location: Location, rounds: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    """Rounds over all routes in turn, so that a busy machine disturbs each alike; what was acknowledged is stored."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in ROUTES}
    with server(location) as running:
        ports, pid = running.ports, running.pid
        for number in range(rounds):
            for name in ROUTES:
                before = cpu_seconds(pid), location.cpu_seconds()
                result = load(ports[name], seconds, f"{name}-{number}")
                used = [
                    now - then for now, then in zip((cpu_seconds(pid), location.cpu_seconds()), before, strict=True)
                ]
                own, database = (each / result["requests"] * 1e6 for each in used)
                results[name].append(result | {"cpu_us": own, "database_us": database})
        stored, _ = stream(ports["record"])
    assert stored == sum(result["requests"] for result in results["record"])
    assert not any(result["failures"] for found in results.values() for result in found)
    return results


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
def test_post_record_at_full_size(location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    results = post_rounds(location, ROUNDS, seconds=6)
    with capsys.disabled():
        sys.stdout.write(report(results))


def test_post_record_in_small(location: Location) -> None:
    assert "POST /record" in report(post_rounds(location, 1, seconds=0.1))


def stream_all(location: Location, records: int) -> str:
    with server(location) as running:
        port = running.ports["record"]
        began = time.perf_counter()
        fill(port, records)
        filled = records / (time.perf_counter() - began)
    with server(location) as running:  # a fresh process, so that filling has left nothing behind
        port, pid = running.ports["record"], running.pid
        assert stream(port, "limit=1000")[0] == min(records, 1000)
        before = memory(pid)
        found, seconds = stream(port)
        after = memory(pid)
    assert found == records
    return (
        f"\nPOST /records of {BATCH}: {filled:,.0f}/s; bytes per record: {location.bytes_per_record(records)}"
        f"\nGET /records: {records:,} records at {records / seconds:,.0f}/s; resident memory grew by "
        f"{(after['VmRSS'] - before['VmRSS']) / 1024:.1f} MB, at most by "
        f"{(after['VmHWM'] - before['VmRSS']) / 1024:.1f} MB (from {before['VmRSS'] / 1024:.1f} MB)\n"
    )


@pytest.mark.benchmark
@pytest.mark.timeout(3_600)
def test_a_million_records_are_streamed(location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    text = stream_all(location, 1_000_000)
    with capsys.disabled():
        sys.stdout.write(text)


def test_ten_thousand_records_are_streamed(location: Location) -> None:
    assert "10,000 records" in stream_all(location, 10_000)
