"""A process that reads the feed is killed at any moment while records change: none is missing, none counts twice.

FEED_KILLS says how many kills there are.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import cast

import anyio.to_thread
import pytest

from auditord.store.aggregates import NotRolledUp
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    ComponentUsage,
    MetaValue,
    Record,
    RecordQuery,
)
from auditord_hookspecs.wire import decode_record
from tests.contract.store.feeds import settled
from tests.integration import feed_writer
from tests.integration.feed_writer import AT_ONCE, KEYS
from tests.summed_records import aggregate_records

pytestmark = pytest.mark.anyio

KILLS = int(os.environ.get("FEED_KILLS", "3"))
QUERIES = [
    AggregateQuery(by=(MetaValue("site_id"), CalendarPeriod(CalendarUnit.MONTH)), usage=(ComponentUsage("Cores"),)),
    AggregateQuery(by=(MetaValue("user_id"), CalendarPeriod(CalendarUnit.DAY)), usage=(ComponentUsage("Cores"),)),
]


def kill(url: str, seed: int, changes: int) -> int:
    """Kill who has made so many changes; returns how many more records there are by what it has said."""
    with subprocess.Popen(
        [sys.executable, feed_writer.__file__, url, str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        more = sum(int(process.stdout.readline()) for _ in range(changes))
        process.kill()
        return more + sum(map(int, process.stdout.read().split()))


async def check(store: RecordStore, said: int, kills: int) -> None:
    """Check answers while some is unread, and once all is read."""
    async with store.stream(RecordQuery()) as pages:
        now = [decode_record(document) async for page in pages for document in page]
    # Each of the killed may have added or deleted more before it could say so.
    assert said - kills <= len(now) <= said + kills * AT_ONCE
    for is_read in (False, True):
        if is_read:
            await settled(store)
            await store.rollups.fold()
        for query in QUERIES:
            assert await store.aggregate(query) == aggregate_records(now, query)
        await check_counts(store, now)
    for query in QUERIES:
        with suppress(NotRolledUp):  # the first or last job of a cell was deleted
            assert (await store.sums(query, from_cells=True)).answer == aggregate_records(now, query)


async def check_counts(store: RecordStore, now: Sequence[Record]) -> None:
    counts = await store.counts()
    assert counts.total == len(now)
    for key in KEYS:
        assert counts.per_value[key] == Counter(value for each in now for value in set((each.meta or {}).get(key, ())))


@pytest.fixture(params=["sqlite", "postgres"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        return cast("str", request.getfixturevalue("postgres_url"))
    return f"sqlite://{tmp_path}/records.db"


@pytest.mark.timeout(60 * KILLS)
async def test_readers_that_are_killed_count_everything_once(url: str) -> None:
    random, said = Random(4711), 0  # noqa: S311 no secret
    for seed in range(KILLS):
        said += await anyio.to_thread.run_sync(kill, url, seed, random.randrange(1, 25))
        async with open_store(url, counted_keys=KEYS) as store:
            await check(store, said, seed + 1)
