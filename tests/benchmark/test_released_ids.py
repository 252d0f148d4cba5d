"""The look for released ids when records are added, beside the same without it, in turns.

By hand, with the figures shown: ``pytest -m benchmark -s tests/benchmark/test_released_ids.py``. HTTP, of which a POST
consists by half and more, is left out: the share of a POST is smaller than what is shown here.
"""

import asyncio
import os
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import median
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import psycopg
import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.postgres import driver as postgres
from auditord.store.sqlite import driver as sqlite
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, Record, Score
from tests.benchmark.measured import Cost, Location, counted

pytestmark = pytest.mark.anyio

START: Final = datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)
SENT: Final = Provenance(START, None, "auditor-client/0.11.2")
KEYS: Final = ("site_id", "group_id", "user_id")
AT_ONCE: Final = 64
BULK: Final = 1_000
CORES: Final = (Component("Cores", 8, (Score("HEPscore23", 18.5),)), Component("Memory", 16_384, ()))

FILL: Final = """
INSERT INTO auditord.released (record_id, start_time, stop_time, content, release, position)
SELECT 'old-' || md5(number::text), now(), now(), number, 1, number
FROM generate_series(1, %s) AS number
"""
FILL_SQLITE: Final = """
WITH RECURSIVE numbers(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < ?)
INSERT INTO released (record_id, start_time, stop_time, content, release, position)
SELECT 'old-' || lower(hex(randomblob(16))), 0, 0, number, 1, number
FROM numbers
"""


def unchecked(url: str) -> tuple[MutableMapping[str, Any], Mapping[str, str]]:
    """The statements of a database, and those that take the place of what looks for released ids."""
    if url.startswith("sqlite:"):
        found: Any = sqlite.QUERIES
        return found, {"has_released": "SELECT 0 WHERE :ids IS NOT NULL"}
    found = postgres.QUERIES
    added, condition, _ = found["add_records"].rpartition("WHERE (")
    assert condition
    return found, {"add_records": added, "find_released": "SELECT 1 WHERE %(ids)s::jsonb IS NULL"}


def records(random: Random, number: int) -> Sequence[Record]:
    return [
        Record(
            f"slurm-{random.getrandbits(64):016x}",
            START + timedelta(seconds=each),
            CORES,
            START + timedelta(seconds=each + random.randrange(86_400)),
            {"site_id": ("KIT",), "group_id": (f"g{each % 40}",), "user_id": (f"u{each % 900}",)},
        )
        for each in range(number)
    ]


async def singly(store: RecordStore, random: Random, number: int) -> None:
    """Add records, so many at once as there are busy connections."""
    waiting = iter(records(random, number))

    async def client() -> None:
        for record in waiting:
            await store.add(record, SENT, Duplicates.SAME_RUN)

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))


async def in_bulk(store: RecordStore, random: Random, number: int) -> None:
    """Add records a thousand at a time."""
    for _ in range(max(1, number // BULK)):
        await store.add_all(records(random, min(number, BULK)), SENT, Duplicates.SAME_RUN, atomic=True)


def fill(url: str, released: int) -> None:
    """Put ids into the index of released ones."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite://"))) as connection, connection:
            connection.execute(FILL_SQLITE, (released,))
        return
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(FILL, (released,))
        server.execute("VACUUM ANALYZE auditord.released")


Way: TypeAlias = Callable[[RecordStore, Random, int], Awaitable[None]]


async def measure(location: Location, released: int, stored: int, rounds: int, number: int) -> str:
    """Ratios of times with and without the look, as lines."""
    random, lines = Random(4711), list[str]()  # noqa: S311 no secret
    queries, without = unchecked(location.url)
    async with open_store(location.url, counted_keys=KEYS) as store:
        await in_bulk(store, random, stored)
        fill(location.url, released)
        for way in (singly, in_bulk):
            costs: dict[bool, list[Cost]] = {True: [], False: []}
            for turn in range(2 * rounds + 2):  # the first of each does not count
                with patch.dict(queries, without if turn % 2 else {}), counted(location, os.getpid()) as cost:
                    await way(store, random, number)
                    costs[turn % 2 == 0].append(cost(number, None))
            lines.append(f"{way.__name__:>8}: {_ratio(costs[True][1:], costs[False][1:])}")
    return "\n".join([f"\n{location.url.partition(':')[0]}, {released:,} released ids:", *lines, ""])


def _ratio(looking: Sequence[Cost], plain: Sequence[Cost]) -> str:
    used, used_plain = _micros(looking), _micros(plain)
    times = [one.wall / other.wall for one, other in zip(looking, plain, strict=True)]
    return (
        f"{used:.1f} us of CPU per record with the look, {used_plain:.1f} without, "
        f"ratio {used / used_plain if used_plain else 0:.3f}; of time {median(times):.3f} "
        f"(pairs {min(times):.2f} to {max(times):.2f})"
    )


def _micros(costs: Sequence[Cost]) -> float:
    """CPU of this process and of the database, by record; a clock of CPU ticks too slowly for single rounds."""
    return sum(cost.micros(cost.own + cost.database) for cost in costs) / len(costs)


@pytest.mark.benchmark
@pytest.mark.timeout(1_800)
async def test_the_look_for_released_ids(any_location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    text = await measure(any_location, released=1_000_000, stored=50_000, rounds=12, number=2_000)
    with capsys.disabled():
        sys.stdout.write(text)


async def test_the_look_for_released_ids_in_small(any_location: Location) -> None:
    text = await measure(any_location, released=1_000, stored=300, rounds=1, number=300)
    assert text.count("with the look") == 2
