"""A server that is measured, as a process of its own on a durable store, and the resources that it has used.

CPU time is what a busy machine disturbs least, so it stands beside every rate.
"""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

import psycopg
from psycopg import sql

from auditord.database.sql_files import load_queries

HERE: Final = Path(__file__).parent
BATCH: Final = 10_000

_LIST_RELATIONS: Final = load_queries("auditord.store.postgres", "administration.sql")["list_relations"]
_SETTINGS: Final = ["fsync", "synchronous_commit", "full_page_writes", "shared_buffers"]


@dataclass(frozen=True)
class Location:
    """The place of the measured server's files and records; of a database server, the process that began it."""

    folder: Path
    url: str
    database_pid: int | None = None

    def cpu_seconds(self) -> float:
        """The CPU time of the database server so far; SQLite works in the measured process itself."""
        return 0.0 if self.database_pid is None else family_cpu_seconds(self.database_pid)

    def bytes_per_record(self, records: int) -> str:
        """The bytes of a record, by table and index."""
        if self.database_pid is None:
            with closing(sqlite3.connect(self.folder / "records.db")) as file:
                relations = file.execute(
                    "SELECT name, sum(pgsize) AS size FROM dbstat GROUP BY name ORDER BY size DESC"
                )
                sizes: list[tuple[str, int]] = relations.fetchall()
        else:
            with psycopg.connect(self.url) as connection:
                connection.execute("CHECKPOINT")
                sizes = connection.execute(_LIST_RELATIONS).fetchall()
        listed = ", ".join(f"{name} {size / records:.0f}" for name, size in sizes if size > records)
        return f"{sum(size for _, size in sizes) / records:.0f} ({listed})"

    def bytes_by_column(self) -> str:
        """The mean bytes of the columns of a record; beside them, 24 bytes and more in front of each row."""
        columns = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'auditord' AND table_name = "
        with psycopg.connect(self.url) as connection:
            names: list[str] = [name for (name,) in connection.execute(columns + "'records' ORDER BY ordinal_position")]
            sizes = sql.SQL(", ").join(
                sql.SQL("coalesce(sum(pg_column_size({})), 0) / count(*)::float8").format(sql.Identifier(name))
                for name in names
            )
            row = connection.execute(sql.SQL("SELECT {} FROM auditord.records").format(sizes)).fetchone()
        return ", ".join(f"{name} {size:.1f}" for name, size in zip(names, row or (), strict=True))

    def durability(self) -> str:
        """The settings that decide whether what is committed survives a power cut."""
        wanted = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name"
        with psycopg.connect(self.url) as connection:
            return ", ".join(f"{name} = {value}" for name, value in connection.execute(wanted, (_SETTINGS,)))


@dataclass(frozen=True)
class Running:
    """A server that is running: its process, and a port for each of its handlers."""

    location: Location
    pid: int
    ports: Mapping[str, int]


@contextmanager
def server(location: Location) -> Generator[Running, None, None]:
    """Start http_server.py; it must end without a fault."""
    command = [sys.executable, str(HERE / "http_server.py"), str(location.folder), location.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Running(location, process.pid, json.loads(process.stdout.readline()))
        finally:
            process.terminate()
        assert process.wait(30) == 0


def fill(port: int, records: int) -> None:
    """Post records in batches; neither their ids nor their stop times are in any order."""
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    random = Random(f"{records} {time.time_ns()}")  # noqa: S311 nobody has to guess
    for first in range(0, records, BATCH):
        batch = posted("old", random, range(first, min(first + BATCH, records)))
        connection.request("POST", "/records", batch, {"content-type": "application/json"})
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"")
    connection.close()


_TEMPLATE: Final = (
    '{"record_id":"%s-%016x","meta":{"site_id":["site-%d"],"group_id":["group-%d"],"user_id":["user-%d"]},"components":'
    '[{"name":"Cores","amount":8,"scores":[{"name":"HEPscore23","value":18.5}]},{"name":"Memory","amount":16384,'
    '"scores":[]}],"start_time":"2024-02-03T04:05:06Z","stop_time":"2024-03-%02dT%02d:%02d:%02dZ"}'
)


def posted(prefix: str, random: Random, numbers: Sequence[int]) -> bytes:
    """The body of a bulk post with random ids behind the prefix."""
    return b"[" + b",".join(_record(prefix, random.getrandbits(64), number) for number in numbers) + b"]"


def jobs(prefix: str, random: Random, numbers: Sequence[int]) -> bytes:
    """The same of the jobs of one site that ended on one day; a few of its 900 users have most of them."""
    day = numbers[0] // 5_000 % 28 + 1
    return b"[" + b",".join(_job(prefix, random, number, day) for number in numbers) + b"]"


def _record(prefix: str, name: int, number: int) -> bytes:
    labels = (number % 7, number % 40, number % 900)
    return (_TEMPLATE % (prefix, name, *labels, number % 28 + 1, *_clock(number))).encode()


def _job(prefix: str, random: Random, number: int, day: int) -> bytes:
    user = int(900 * random.random() ** 3)
    return (_TEMPLATE % (prefix, random.getrandbits(64), 1, user % 40, user, day, *_clock(number))).encode()


def _clock(number: int) -> tuple[int, int, int]:
    second = number * 7_919 % 86_400
    return second // 3600, second // 60 % 60, second % 60


@dataclass(frozen=True)
class Cost:
    """The cost of so many records: seconds on the clock, of the own process, of the database, of the client."""

    records: int
    wall: float
    own: float
    database: float
    client: float = 0.0

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.wall

    def micros(self, seconds: float) -> float:
        """Microseconds for each record."""
        return seconds / self.records * 1e6


@contextmanager
def counted(location: Location, pid: int | None = None) -> Generator[Callable[[int, float | None], Cost], None, None]:
    """Inside, what is used is counted; call what is yielded with the records, and with the seconds if they are known.

    Args:
        location: whose database server it is.
        pid: the measured process, if there is one.
    """
    before = time.perf_counter(), _own(pid), location.cpu_seconds(), _children()

    def cost(records: int, wall: float | None) -> Cost:
        now = time.perf_counter(), _own(pid), location.cpu_seconds(), _children()
        elapsed, *used = (late - early for late, early in zip(now, before, strict=True))
        return Cost(records, elapsed if wall is None else wall, *used)

    yield cost


def table(costs: Mapping[str, Sequence[Cost]]) -> list[str]:
    """A line for each sort of round: medians of rates and of microseconds."""
    return [_line(name, found) for name, found in costs.items()]


def _line(name: str, found: Sequence[Cost]) -> str:
    rate = median(cost.rate for cost in found)
    lowest, highest = min(cost.rate for cost in found), max(cost.rate for cost in found)
    own = median(cost.micros(cost.own) for cost in found)
    database = median(cost.micros(cost.database) for cost in found)
    client = median(cost.micros(cost.client) for cost in found)
    return (
        f"{name:>8} {rate:9,.0f}/s ({lowest:,.0f} to {highest:,.0f}), us of CPU per record: "
        f"daemon {own:5.2f}, database {database:6.2f}, client {client:5.2f}"
    )


def ratio(text: str, ours: Sequence[Cost], theirs: Sequence[Cost], goal: float | None = None) -> str:
    """The ratio of our rate to another, pair by pair, and the goal where there is one."""
    ratios = [our.rate / their.rate for our, their in zip(ours, theirs, strict=True)]
    spread = ", ".join(f"{each:.2f}" for each in ratios)
    wanted = "" if goal is None else f"goal {goal:.2f}; "
    return f"  {text}: {median(ratios):.2f} ({wanted}pairs {spread})"


def memory(pid: int) -> dict[str, int]:
    """Kilobytes of a process: resident, resident without files' pages, and the most that was ever resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon", "VmHWM")}


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family_cpu_seconds(pid: int) -> float:
    """The same of a process and its children, those that have ended and those that live."""
    while True:
        with suppress(FileNotFoundError, ProcessLookupError):  # a child has just ended: then it is in the parent's sum
            return _family_cpu_seconds(pid)


def _family_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_seconds(pid) + ended + sum(cpu_seconds(int(child)) for child in children)


def _own(pid: int | None) -> float:
    return 0.0 if pid is None else cpu_seconds(pid)


def _children() -> float:
    """Of this process' children that have ended: load generators, psql, pgbench."""
    times = os.times()
    return times.children_user + times.children_system
