"""``POST /records`` of 1,000 on PostgreSQL, beside ``psql`` that copies the same rows into the same table.

Every round posts new records, writes their rows into files, and copies these (with another letter in front of each id,
everything else equal) by as many ``psql`` at a time as there were connections. psql needs no JSON, no checks, no hashes
and no documents to be made: they are in its rows. It keeps up no counts and no roll-ups either: of the records of the
rounds ``posted`` every one is a cell of its own, those of ``jobs`` are of one site and one day.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

import psycopg
import pytest

from tests.benchmark.measured import Cost, Location, Running, counted, fill, jobs, posted, ratio, server, table
from tests.benchmark.posting import load_bulk

PARALLEL: Final = 4
AT_ONCE: Final = 1_000

Make: TypeAlias = Callable[[str, Random, Sequence[int]], bytes]

COLUMNS: Final = (
    "start_time, stop_time, runtime, content, received_at, cores, memory, gpu, total_cpu, origin_id, score_set, more, "
    "record_id, site, user_group, user_name, meta, document"
)
EXPORT: Final = COLUMNS.replace("record_id", "overlay(record_id PLACING 'c' FROM 1 FOR 1)").replace(
    "document", 'overlay(document PLACING \'{"record_id":"c\' FROM 1 FOR 15)'
)


def write_bodies(path: Path, prefix: str, records: int, make: Make = posted) -> None:
    """A body in each line."""
    random = Random(prefix)  # noqa: S311 nobody has to guess
    bodies = [make(prefix, random, range(first, first + AT_ONCE)) for first in range(0, records, AT_ONCE)]
    path.write_bytes(b"\n".join(bodies))


def write_rows(location: Location, number: int) -> list[Path]:
    """The rows of what was posted in a round, in a file for each ``psql``."""
    paths = [location.folder / f"rows-{part}.copy" for part in range(PARALLEL)]
    for part, path in enumerate(paths):
        rows = (
            f"SELECT {EXPORT} FROM auditord.records WHERE record_id LIKE 'p{number}-%' "  # noqa: S608 made here
            f"AND abs(hashtext(record_id) % {PARALLEL}) = {part}"
        )
        psql(location, f"\\copy ({rows}) to '{path}'").wait()
    return paths


def psql(location: Location, command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", command, location.url])


def copy_in(location: Location, paths: list[Path]) -> float:
    """Seconds of all of them together."""
    begun = time.perf_counter()
    running = [psql(location, f"\\copy auditord.records ({COLUMNS}) from '{path}'") for path in paths]
    assert [each.wait() for each in running] == [0] * len(paths)
    return time.perf_counter() - begun


def measure(running: Running, before: int, records: int, rounds: int) -> str:
    location = running.location
    costs: dict[str, list[Cost]] = {"posted": [], "jobs": [], "psql": []}
    fill(running.ports["record"], before)
    for number in range(rounds):
        costs["posted"].append(post(running, f"p{number}", records, PARALLEL))
        costs["jobs"].append(post(running, f"j{number}", records, PARALLEL, jobs))
        paths = write_rows(location, number)
        with counted(location) as cost:
            costs["psql"].append(cost(records, copy_in(location, paths)))
    with psycopg.connect(location.url) as connection:
        copies = "SELECT count(*) FILTER (WHERE record_id LIKE 'c%'), count(*) FROM auditord.records"
        row = connection.execute(copies).fetchone()
    assert row is not None
    assert row[0] == rounds * records
    return report(location, costs, before, row[1])


def post(running: Running, prefix: str, records: int, connections: int, make: Make = posted) -> Cost:
    bodies = running.location.folder / "bodies"
    write_bodies(bodies, prefix, records, make)
    with counted(running.location, running.pid) as cost:
        result = load_bulk(running.ports["record"], bodies, connections)
        assert (result["requests"] * AT_ONCE, result["failures"]) == (records, 0)
        return cost(records, result["seconds"])


def report(location: Location, costs: dict[str, list[Cost]], before: int, after: int) -> str:
    return "\n".join(
        [
            (
                f"\nPOST /records of {AT_ONCE:,} on {PARALLEL} connections, {before:,} records there; "
                f"{location.durability()}"
            ),
            *table(costs),
            ratio(f"posted / {PARALLEL} psql COPYs", costs["posted"], costs["psql"], 0.65),
            ratio(f"jobs / {PARALLEL} psql COPYs", costs["jobs"], costs["psql"]),
            f"  bytes per record by column: {location.bytes_by_column()}",
            f"  bytes per record by table and index: {location.bytes_per_record(after)}",
            "",
        ]
    )


@pytest.mark.benchmark
def test_post_records_beside_psql(durable_location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    with server(durable_location) as running:
        text = measure(running, before=500_000, records=100_000, rounds=5)
    with capsys.disabled():
        sys.stdout.write(text)


def test_post_records_beside_psql_in_small(running_small: Running) -> None:
    assert "posted / 4 psql COPYs" in measure(running_small, before=5_000, records=4_000, rounds=1)
