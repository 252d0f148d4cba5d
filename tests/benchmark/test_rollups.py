"""Sums over long periods, which the roll-ups answer, beside the same sums made of the records.

By hand: ``pytest -m benchmark -s tests/benchmark/test_rollups.py``; ``AUDITORD_BENCHMARK_RECORDS`` is the number of
records, a million by default. Every record has a runtime, but roll-ups cannot know: with that condition a sum is made
of the records.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Final

import pytest
from msgspec.structs import replace

from auditord.store import Duplicates, Provenance
from auditord.store.store import RecordStore
from auditord_hookspecs import (
    AggregateQuery,
    CalendarPeriod,
    CalendarUnit,
    Component,
    ComponentUsage,
    MetaValue,
    Record,
    Score,
    Window,
)
from auditord_hookspecs.query import AllOf, Comparison, MetaContains, RuntimeCompares, match_stopped
from tests.summed_records import aggregate_records

RECORDS: Final = int(os.environ.get("AUDITORD_BENCHMARK_RECORDS", "1000000"))
BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)
END: Final = datetime(2026, 1, 1, tzinfo=UTC)
BATCH: Final = 5_000
ROUNDS: Final = 5
MOST_SECONDS: Final[Mapping[str, float]] = {"a year by month, site and group": 0.05, "a user's month": 0.03}
QUERIES: Final[Mapping[str, AggregateQuery]] = {
    "a year by month, site and group": AggregateQuery(
        match_stopped(Window(BEGIN, END)),
        (CalendarPeriod(CalendarUnit.MONTH), MetaValue("site_id", "site"), MetaValue("group_id", "group")),
        (ComponentUsage("Cores", ("hepscore23",)),),
    ),
    "a user's month": AggregateQuery(
        AllOf(
            (
                *match_stopped(Window(datetime(2025, 6, 1, tzinfo=UTC), datetime(2025, 7, 1, tzinfo=UTC))).conditions,
                MetaContains("user_id", "user7"),
            )
        ),
        (MetaValue("site_id", "site"), MetaValue("group_id", "group")),
        (ComponentUsage("Cores", ("hepscore23",)),),
    ),
}


def job(number: int, of: int) -> Record:
    """One of so many jobs that end evenly over a year; ten sites, fifty groups, 250 users."""
    stop = BEGIN + (END - BEGIN) * (number / of)
    user = number * 15_485_863 % 250
    names = {"site_id": f"site{user % 10}", "group_id": f"group{user % 50}", "user_id": f"user{user}"}
    cores = Component("Cores", 1 << number % 5, (Score("hepscore23", 15.5),))
    start = stop - timedelta(seconds=number * 104_729 % 86_400)
    return Record(f"job-{number}", start, (cores,), stop, {key: (name,) for key, name in names.items()})


async def fill(store: RecordStore, records: int) -> None:
    for first in range(0, records, BATCH):
        batch = [job(number, records) for number in range(first, min(first + BATCH, records))]
        await store.add_all(batch, Provenance(BEGIN), Duplicates.SAME_RUN, atomic=True)


@dataclass(frozen=True)
class Sums:
    """Seconds that the sums of a question take (medians): of roll-ups, and of records."""

    rolled_up: float
    of_records: float


async def seconds(store: RecordStore, query: AggregateQuery, rounds: int) -> float:
    took = list[float]()
    for _ in range(rounds):
        begun = time.perf_counter()
        await store.aggregate(query)
        took.append(time.perf_counter() - begun)
    return median(took)


async def measure(store: RecordStore, rounds: int) -> Mapping[str, Sums]:
    measured = dict[str, Sums]()
    for name, query in QUERIES.items():
        with_runtime = AllOf((query.where, RuntimeCompares(Comparison.GTE, 0)))
        of_records = replace(query, where=with_runtime)
        assert await store.aggregate(query) == await store.aggregate(of_records)
        sums = Sums(await seconds(store, query, rounds), await seconds(store, of_records, rounds))
        measured[name] = sums
        print(  # noqa: T201 what a benchmark is for
            f"{name}: {sums.rolled_up * 1e3:.1f} ms of roll-ups, {sums.of_records * 1e3:.1f} ms of records, "
            f"{sums.of_records / sums.rolled_up:.1f} times as long"
        )
    return measured


async def measure_upkeep(store: RecordStore, records: int) -> None:
    begun = time.process_time()
    await fill(store, records)
    added = time.process_time()
    await store.rollups.fold()
    micros = [seconds / records * 1e6 for seconds in (added - begun, time.process_time() - added)]
    print(f"us of CPU per record: {micros[0]:.1f} to add, {micros[1]:.1f} to fold what was left")  # noqa: T201 the same


@pytest.mark.anyio
async def test_the_measurement_works(store: RecordStore) -> None:
    records = 5_000
    await measure_upkeep(store, records)
    assert set(await measure(store, 1)) == set(MOST_SECONDS)
    jobs: Sequence[Record] = [job(number, records) for number in range(records)]
    for query in QUERIES.values():
        answer = await store.aggregate(query)
        assert answer.groups
        assert answer == aggregate_records(jobs, query)


@pytest.mark.benchmark
@pytest.mark.timeout(7_200)
@pytest.mark.anyio
async def test_long_periods_are_summed_fast(store: RecordStore, url: str) -> None:
    print(f"\n{url.partition(':')[0]}, {RECORDS} records")  # noqa: T201 what a benchmark is for
    await measure_upkeep(store, RECORDS)
    measured = await measure(store, ROUNDS)
    assert {name: sums.rolled_up for name, sums in measured.items() if sums.rolled_up > MOST_SECONDS[name]} == {}
