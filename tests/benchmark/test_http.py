"""``POST /record`` against a bare handler of the same process, and what a million records cost ``GET /records``."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
CONNECTIONS: Final = 64
ROUNDS: Final = 3
BATCH: Final = 10_000
ROUTES: Final = ("bare", "lean", "record")


@contextmanager
def server(folder: Path) -> Generator[tuple[Mapping[str, int], int], None, None]:
    """The ports of a running server, and its process id."""
    command = [sys.executable, str(HERE / "http_server.py"), str(folder)]
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


def post_rounds(folder: Path, rounds: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    """Rounds over all routes in turn, so that a busy machine disturbs each alike; what was acknowledged is stored."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in ROUTES}
    with server(folder) as (ports, pid):
        for number in range(rounds):
            for name in ROUTES:
                before = cpu_seconds(pid)
                result = load(ports[name], seconds, f"{name}-{number}")
                results[name].append(result | {"cpu_us": (cpu_seconds(pid) - before) / result["requests"] * 1e6})
        stored, _ = stream(ports["record"])
    assert stored == sum(result["requests"] for result in results["record"])
    assert not any(result["failures"] for found in results.values() for result in found)
    return results


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(results: Mapping[str, list[dict[str, float]]]) -> str:
    lines = [f"\nPOST /record at {CONNECTIONS} connections, medians of {len(results['record'])} rounds:"]
    for name, found in results.items():
        rate, cpu, tail = (median(result[key] for result in found) for key in ("per_second", "cpu_us", "p99_ms"))
        lines.append(f"{name:>8} {rate:8,.0f}/s, {cpu:5.1f} us of processor each, p99 {tail:5.1f} ms")
    for name in ("bare", "lean"):
        pairs = zip(results["record"], results[name], strict=True)
        ratios = [record["per_second"] / other["per_second"] for record, other in pairs]
        lines.append(f"  record is {median(ratios):.0%} of {name} ({', '.join(f'{ratio:.0%}' for ratio in ratios)})")
    return "\n".join(lines) + "\n"


@pytest.mark.benchmark
def test_post_record_at_full_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = post_rounds(tmp_path, ROUNDS, seconds=6)
    with capsys.disabled():
        sys.stdout.write(report(results))


def test_post_record_in_small(tmp_path: Path) -> None:
    assert "POST /record" in report(post_rounds(tmp_path, 1, seconds=0.1))


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


def stream_all(folder: Path, records: int) -> str:
    with server(folder) as (ports, pid):
        port = ports["record"]
        fill(port, records)
    with server(folder) as (ports, pid):  # a fresh process, so that filling has left nothing behind
        port = ports["record"]
        assert stream(port, "limit=1000")[0] == min(records, 1000)
        before = memory(pid)
        found, seconds = stream(port)
        after = memory(pid)
    assert found == records
    return (
        f"\nGET /records: {records:,} records at {records / seconds:,.0f}/s; resident memory grew by "
        f"{(after['VmRSS'] - before['VmRSS']) / 1024:.1f} MB, at most by "
        f"{(after['VmHWM'] - before['VmRSS']) / 1024:.1f} MB (from {before['VmRSS'] / 1024:.1f} MB)\n"
    )


@pytest.mark.benchmark
def test_a_million_records_are_streamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = stream_all(tmp_path, 1_000_000)
    with capsys.disabled():
        sys.stdout.write(text)


def test_ten_thousand_records_are_streamed(tmp_path: Path) -> None:
    assert "10,000 records" in stream_all(tmp_path, 10_000)
