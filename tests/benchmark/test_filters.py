"""Narrow questions to ``GET /records`` on both stores, beside AUDITOR's statements on AUDITOR's own table.

AUDITOR's table and its one index stand in for AUDITOR: that leaves out everything that it does beside asking the
database. Three records of ten have the same stop time, the newest of all.
"""

import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from statistics import median
from typing import Final, LiteralString, TypeAlias

import psycopg
import pytest

from tests.benchmark.measured import BATCH, Location, Running, posted, server
from tests.benchmark.test_post_record import make_tables

Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]

START: Final = re.compile(rb'(?<="start_time":")[^"]+')
TIMES: Final = re.compile(rb'"start_time":"[^"]+","stop_time":"[^"]+"')
TIED: Final = b'"start_time":"2024-03-30T11:00:00Z","stop_time":"2024-03-30T12:00:00Z"'
COLUMNS: Final = "SELECT record_id, meta, components, start_time, stop_time, runtime FROM auditor_accounting "


@dataclass(frozen=True)
class Question:
    """A question: its query string, AUDITOR's statement for it, and how many times as fast we are to be."""

    name: str
    query: str
    statement: LiteralString
    goal: float


QUESTIONS: Final[Sequence[Question]] = (
    Question("one by id, with connecting", "/record/%s", "WHERE record_id = '%s'", 1.2),
    Question(
        "an hour by stop",
        "/records?stop_time[gte]=2024-03-05T10:00:00Z&stop_time[lt]=2024-03-05T11:00:00Z",
        "WHERE stop_time >= '2024-03-05T10:00Z' AND stop_time < '2024-03-05T11:00Z' ORDER BY stop_time",
        32,
    ),
    Question(
        "an hour by start",
        "/records?start_time[gte]=2024-02-03T05:00:00Z&start_time[lt]=2024-02-03T06:00:00Z",
        "WHERE start_time >= '2024-02-03T05:00Z' AND start_time < '2024-02-03T06:00Z' ORDER BY stop_time",
        32,
    ),
    Question("newest 100", "/records?sort_by[desc]=stop_time&limit=100", "ORDER BY stop_time DESC LIMIT 100", 100),
    Question(
        "site and day",
        "/records?meta[site_id][c][]=site-4&stop_time[gte]=2024-03-05T00:00:00Z&stop_time[lt]=2024-03-06T00:00:00Z",
        "WHERE meta -> 'site_id' @> '[\"site-4\"]' AND stop_time >= '2024-03-05T00:00Z' "
        "AND stop_time < '2024-03-06T00:00Z' ORDER BY stop_time",
        15,
    ),
    Question(
        "user, all time",
        "/records?meta[user_id][c][]=user-77",
        "WHERE meta -> 'user_id' @> '[\"user-77\"]' ORDER BY stop_time",
        45,
    ),
    Question(
        "runtime above x",
        "/records?runtime[gt]=4516000",
        "WHERE runtime > 4516000 ORDER BY stop_time",
        1.5,
    ),
    Question(
        "component amount, newest 1,000",
        "/records?component[Cores][gte]=8&sort_by[desc]=stop_time&limit=1000",
        "WHERE components -> 0 ->> 'name' = 'Cores' AND (components -> 0 ->> 'amount')::integer >= 8 "
        "ORDER BY stop_time DESC LIMIT 1000",
        5,
    ),
)


def bodies(records: int) -> Iterator[bytes]:
    """Records to post that start all over a month; three of ten end at the same moment, after all others."""
    random, tied = Random(records), records * 3 // 10  # noqa: S311 nobody has to guess

    def moment(_: object) -> bytes:
        second = random.randrange(28 * 86_400)
        day, hour, minute = second // 86_400 + 1, second // 3_600 % 24, second // 60 % 60
        return b"2024-02-%02dT%02d:%02d:%02dZ" % (day, hour, minute, second % 60)

    for first in range(0, records - tied, BATCH):
        yield START.sub(moment, posted("old", random, range(first, min(first + BATCH, records - tied))))
    for first in range(0, tied, BATCH):
        yield TIMES.sub(TIED, posted("tied", random, range(first, min(first + BATCH, tied))))


def asked(running: Running, path: str, body: bytes | None = None) -> bytes:
    """The body of an answer on a connection of its own."""
    connection = HTTPConnection("127.0.0.1", running.ports["record"], timeout=600)
    connection.request("GET" if body is None else "POST", path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    assert response.status == 200, answer
    connection.close()
    return answer


def milliseconds(ask: Callable[[], object]) -> float:
    begun = time.perf_counter()
    ask()
    return (time.perf_counter() - begun) * 1e3


def measure(postgres: Running, sqlite: Running, records: int, rounds: int) -> str:
    for body in bodies(records):
        asked(postgres, "/records", body)
        asked(sqlite, "/records", body)
    make_tables(postgres.location, postgres.ports["record"], 0)
    with psycopg.connect(postgres.location.url, autocommit=True) as connection:
        lines = [_line(each, connection, postgres, sqlite, rounds) for each in QUESTIONS]
    return "\n".join([f"\nGET /records of {records:,} records; medians, ms", *lines, ""])


def _line(
    question: Question,
    connection: psycopg.Connection[tuple[object, ...]],
    postgres: Running,
    sqlite: Running,
    rounds: int,
) -> str:
    ((known,),) = connection.execute("SELECT record_id FROM auditord.records LIMIT 1").fetchall()
    statement = COLUMNS + question.statement.replace("%s", str(known))
    path = question.query.replace("%s", str(known))
    found = len(connection.execute(statement.encode()).fetchall())
    assert asked(postgres, path).count(b'"record_id"') == found
    ways: dict[str, Callable[[], object]] = {
        "AUDITOR's": lambda: connection.execute(statement.encode()).fetchall(),
        "PostgreSQL": partial(asked, postgres, path),
        "SQLite": partial(asked, sqlite, path),
    }
    taken = {name: median(times) for name, times in _in_turns(ways, rounds).items()}
    theirs = taken.pop("AUDITOR's")
    ours = ", ".join(f"{name} {each:.1f} ({theirs / each:.1f} times as fast)" for name, each in taken.items())
    return f"  {question.name}, {found:,} records: AUDITOR's statement {theirs:.1f}; {ours}; goal {question.goal:g}"


def _in_turns(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(milliseconds(way))
    return taken


@contextmanager
def both(postgres: Location, folder: Path) -> Generator[tuple[Running, Running], None, None]:
    """A server on each store."""
    with server(postgres) as one, server(Location(folder, f"sqlite://{folder / 'records.db'}")) as other:
        yield one, other


@pytest.mark.benchmark
@pytest.mark.timeout(3_600)
def test_narrow_questions(
    durable_location: Location, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with both(durable_location, tmp_path_factory.mktemp("sqlite")) as (postgres, sqlite):
        text = measure(postgres, sqlite, records=1_000_000, rounds=9)
    with capsys.disabled():
        sys.stdout.write(text)


def test_narrow_questions_in_small(durable_location: Location, tmp_path_factory: pytest.TempPathFactory) -> None:
    with both(durable_location, tmp_path_factory.mktemp("sqlite")) as (postgres, sqlite):
        assert "newest 100" in measure(postgres, sqlite, records=10_000, rounds=1)
