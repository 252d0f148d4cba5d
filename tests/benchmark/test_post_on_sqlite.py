"""``POST /record`` and ``POST /records`` on SQLite, beside Python's ``sqlite3`` that adds the same rows.

The rows go into a copy of the file, which has the same tables, indexes and records, with the same settings: a
transaction for each row, or for each 1,000 of them. That leaves out HTTP, JSON, checks, hashes, counts and roll-ups.
All ids are random, so that no index grows at its end only.
"""

import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from auditord.database.connections import open_for_reading, open_for_writing, set_up_writer
from auditord.store.columns import SQLITE_VALUES
from auditord.store.sqlite.driver import insertion_of
from tests.benchmark.measured import Cost, Location, Running, counted, fill, jobs, ratio, server, table
from tests.benchmark.posting import CONNECTIONS, load
from tests.benchmark.test_post_records import AT_ONCE, PARALLEL, post

COLUMNS: Final = ", ".join(SQLITE_VALUES).replace("record_id", "'c' || substr(record_id, 2)")
Row = tuple[Any, ...]  # Any: columns of all types


class StoreCopy:
    """A copy of a store's file that rows are added to."""

    def __init__(self, original: Path, folder: Path) -> None:
        self._original = original
        self._connection = open_for_writing(folder / "beside.db")
        with closing(open_for_reading(original)) as stored:
            stored.backup(self._connection)
        set_up_writer(self._connection)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def add(self, prefix: str, at_once: int, most: int) -> Cost:
        """Add what was posted with a prefix, with other ids; so many rows in each transaction."""
        with closing(open_for_reading(self._original)) as stored:
            query = f"SELECT {COLUMNS} FROM records WHERE record_id LIKE ? ORDER BY position LIMIT ?"  # noqa: S608 made here
            rows: list[Row] = stored.execute(query, (f"{prefix}-%", most)).fetchall()
        begun, used = time.perf_counter(), time.process_time()
        for first in range(0, len(rows), at_once):
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(insertion_of(1), rows[first : first + at_once])
            self._connection.execute("COMMIT")
        return Cost(len(rows), time.perf_counter() - begun, time.process_time() - used, 0)

    def rows(self) -> int:
        """The number of rows."""
        return count_rows(self._connection)


def count_rows(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("SELECT count(*) FROM records").fetchone()[0]
    return found


def in_turns(running: Running, before: int, rounds: int, turn: Callable[[StoreCopy, int], int]) -> None:
    """Rounds with a file of so many records and its copy; a turn tells how many rows it has added to the copy."""
    file = running.location.folder / "records.db"
    fill(running.ports["record"], before)
    post(running, "warm", AT_ONCE, 1)  # the copy knows who posts, and all scores
    with closing(StoreCopy(file, running.location.folder)) as beside:
        expected = beside.rows() + sum(turn(beside, number) for number in range(rounds))
        assert beside.rows() == expected


def measure_single(running: Running, before: int, rounds: int, seconds: float) -> str:
    costs: dict[str, list[Cost]] = {"lean": [], "record": [], "one": [], "rows": []}

    def turn(beside: StoreCopy, number: int) -> int:
        for name, port, connections in (
            ("lean", "lean", CONNECTIONS),
            ("record", "record", CONNECTIONS),
            ("one", "record", 1),
        ):
            with counted(running.location, running.pid) as cost:
                result = load(running.ports[port], seconds, f"{name}{number}", connections)
                assert not result["failures"]
                costs[name].append(cost(int(result["requests"]), result["requests"] / result["per_second"]))
        costs["rows"].append(beside.add(f"record{number}", 1, costs["one"][-1].records))
        return costs["rows"][-1].records

    in_turns(running, before, rounds, turn)
    return report(
        f"POST /record at {CONNECTIONS} connections and at one",
        costs,
        ratio(f"record / lean at {CONNECTIONS} connections", costs["record"], costs["lean"]),
        ratio(f"record at {CONNECTIONS} connections / rows", costs["record"], costs["rows"]),
        ratio("record at one connection / rows", costs["one"], costs["rows"]),
    )


def measure_bulk(running: Running, before: int, rounds: int, records: int) -> str:
    costs: dict[str, list[Cost]] = {"posted": [], "jobs": [], "jobs at once": [], "rows": []}

    def turn(beside: StoreCopy, number: int) -> int:
        costs["posted"].append(post(running, f"p{number}", records, 1))
        costs["jobs"].append(post(running, f"j{number}", records, 1, jobs))
        costs["jobs at once"].append(post(running, f"k{number}", records, PARALLEL, jobs))
        costs["rows"].append(beside.add(f"j{number}", AT_ONCE, records))
        return records

    in_turns(running, before, rounds, turn)
    return report(
        f"POST /records of {AT_ONCE:,} at one connection, jobs at {PARALLEL} as well",
        costs,
        ratio("posted (every record a cell of its own) / rows", costs["posted"], costs["rows"]),
        ratio("jobs / rows", costs["jobs"], costs["rows"]),
        ratio(f"jobs at {PARALLEL} connections / rows", costs["jobs at once"], costs["rows"]),
    )


def report(title: str, costs: dict[str, list[Cost]], *ratios: str) -> str:
    return "\n".join([f"\n{title}, SQLite {sqlite3.sqlite_version}", *table(costs), *ratios, ""])


@pytest.fixture
def sqlite_location(tmp_path: Path) -> Location:
    """The files of a server that keeps its records in a file."""
    return Location(tmp_path, f"sqlite://{tmp_path / 'records.db'}")


@pytest.mark.benchmark
def test_posts_beside_rows(sqlite_location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    with server(sqlite_location) as running:
        text = measure_bulk(running, before=500_000, rounds=5, records=100_000)
    with capsys.disabled():
        sys.stdout.write(text)


@pytest.mark.benchmark
def test_single_posts_beside_rows(sqlite_location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    with server(sqlite_location) as running:
        text = measure_single(running, before=500_000, rounds=5, seconds=5)
    with capsys.disabled():
        sys.stdout.write(text)


def test_posts_beside_rows_in_small(sqlite_location: Location) -> None:
    with server(sqlite_location) as running:
        assert "record at one connection / rows" in measure_single(running, before=1_000, rounds=1, seconds=0.05)


def test_bulk_posts_beside_rows_in_small(sqlite_location: Location) -> None:
    with server(sqlite_location) as running:
        assert "jobs / rows" in measure_bulk(running, before=1_000, rounds=1, records=4_000)
