"""``GET /records`` on PostgreSQL, beside ``psql`` that copies the same text out of the same table in the same order."""

import subprocess
import sys
from typing import Final

import psycopg
import pytest

from tests.benchmark.measured import Cost, Location, Running, counted, fill, memory, ratio, server, table

DOCUMENTS: Final = "COPY (SELECT document FROM auditord.records ORDER BY stop_time, record_id) TO STDOUT"
LONG: Final = "COPY (SELECT document FROM auditord.records WHERE runtime > %d ORDER BY stop_time, record_id) TO STDOUT"
MOST_GROWTH: Final = 8 * 1024
"""Kilobytes."""

FETCH: Final = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
target = b"/records" + sys.argv[2].encode()
connection.sendall(b"GET %b HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n" % target)
size, last = 0, b""
while piece := connection.recv(1 << 18):
    size, last = size + len(piece), (last + piece)[-5:]
assert last == b"0\\r\\n\\r\\n", last
print(size)
"""
"""A client that costs as little as psql: it reads, and sees that the answer is whole."""


def fetch(port: int, query: str = "") -> int:
    """Bytes of an answer, with what HTTP puts around them."""
    command = [sys.executable, "-IS", "-c", FETCH, str(port), query]
    return int(subprocess.run(command, capture_output=True, check=True, timeout=600).stdout)


def written(location: Location) -> tuple[int, int]:
    """Records, and the bytes of their documents."""
    with psycopg.connect(location.url) as connection:
        row = connection.execute(
            "SELECT count(*), sum(octet_length(document))::bigint FROM auditord.records"
        ).fetchone()
    assert row is not None
    return row


def drop(location: Location, copy: str = DOCUMENTS) -> None:
    """Let psql copy the documents, and keep nothing."""
    subprocess.run(["psql", "-X", "-q", "-c", copy, location.url], stdout=subprocess.DEVNULL, check=True)


def fill_and_vacuum(running: Running, records: int) -> None:
    fill(running.ports["record"], records)
    subprocess.run(["psql", "-X", "-q", "-c", "VACUUM ANALYZE auditord.records", running.location.url], check=True)


def measure(running: Running, rounds: int) -> str:
    location = running.location
    records, size = written(location)
    costs: dict[str, list[Cost]] = {"daemon": [], "psql": []}
    before = memory(running.pid)["VmRSS"]
    for _ in range(rounds):
        with counted(location, running.pid) as cost:
            assert size < fetch(running.ports["record"]) < size * 1.001 + 1_000
            costs["daemon"].append(cost(records, None))
        with counted(location) as cost:
            drop(location)
            costs["psql"].append(cost(records, None))
    growth = memory(running.pid)["VmHWM"] - before
    return report(location, costs, size, growth)


def report(location: Location, costs: dict[str, list[Cost]], size: int, growth: int) -> str:
    records = costs["daemon"][0].records
    return "\n".join(
        [
            f"\nGET /records of {records:,} records, {size / 1e6:,.0f} MB; {location.durability()}",
            *table(costs),
            ratio("daemon / psql COPY", costs["daemon"], costs["psql"], 0.70),
            f"  memory grew by {growth / 1024:.1f} MB at most (goal {MOST_GROWTH / 1024:.0f})",
            "",
        ]
    )


def measure_long(running: Running, rounds: int) -> str:
    """Records whose runtime is among the longest, for which there is no index."""
    location, copies = running.location, LONG.replace("COPY", "SELECT count(*) FROM").replace(" TO STDOUT", " AS found")
    with psycopg.connect(location.url) as connection:
        (seconds,) = connection.execute(
            "SELECT percentile_disc(0.99) WITHIN GROUP (ORDER BY runtime) FROM auditord.records"
        ).fetchone() or (0,)
        (records,) = connection.execute((copies % seconds).encode()).fetchone() or (0,)
    costs: dict[str, list[Cost]] = {"daemon": [], "psql": []}
    for _ in range(rounds):
        with counted(location, running.pid) as cost:
            fetch(running.ports["record"], f"?runtime[gt]={seconds}")
            costs["daemon"].append(cost(records, None))
        with counted(location) as cost:
            drop(location, LONG % seconds)
            costs["psql"].append(cost(records, None))
    title = f"\nGET /records?runtime[gt]={seconds}: {records:,} records"
    return "\n".join([title, *table(costs), ratio("daemon / psql COPY", costs["daemon"], costs["psql"], 0.70), ""])


@pytest.mark.benchmark
def test_get_records_beside_psql(durable_location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    with server(durable_location) as running:
        fill_and_vacuum(running, 1_000_000)
    with server(durable_location) as running:  # a fresh process, so that filling has left nothing behind
        text = measure(running, rounds=5) + measure_long(running, rounds=5)
    with capsys.disabled():
        sys.stdout.write(text)


def test_get_records_beside_psql_in_small(running_small: Running) -> None:
    fill_and_vacuum(running_small, 7_000)
    assert "memory grew by" in measure(running_small, rounds=1)
    assert "runtime" in measure_long(running_small, rounds=1)
