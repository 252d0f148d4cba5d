"""Sums over ten years, nine of them released, a row for each month; roll-ups of these months stay in the store.

By hand, with the figures shown: ``pytest -m benchmark -s tests/benchmark/test_released_sums.py``.
"""

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Final

import msgspec
import pytest

from auditord.lake.duckdb_engine import DuckDb, EngineLimits
from auditord.lake.queries import LakeReader
from auditord.lake.table import LakeTable
from auditord.lake.writing import month_number
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord_hookspecs import AggregateQuery, Aggregates, CalendarPeriod, CalendarUnit, Record
from auditord_hookspecs.query import MetaContains
from tests.benchmark.measured import Cost, Location, counted
from tests.benchmark.test_aggregates import BATCH, CORES, GROUP, USER, job
from tests.integration.lake.killed import lake_in, run

pytestmark = pytest.mark.anyio

BEGIN: Final = datetime(2014, 1, 1, tzinfo=UTC)
YEARS: Final = datetime(2024, 1, 1, tzinfo=UTC) - BEGIN
BEFORE: Final = datetime(2023, 1, 1, tzinfo=UTC)
SENT: Final = Provenance(BEGIN + YEARS, "task:slurm")
MONTH: Final = CalendarPeriod(CalendarUnit.MONTH)
GOAL: Final = 0.5

QUESTIONS: Final[Mapping[str, AggregateQuery]] = {
    "a row a month": AggregateQuery(by=(MONTH,), usage=(CORES,)),
    "a row a month, one site": AggregateQuery(MetaContains("site_id", "site-1"), (MONTH,), (CORES,)),
    "month and group": AggregateQuery(by=(MONTH, GROUP), usage=(CORES,)),
    "users of all years": AggregateQuery(by=(USER,), usage=(CORES,)),
}


def jobs(number: int) -> Sequence[Record]:
    """So many, evenly over ten years."""
    found = list[Record]()
    for each in range(number):
        start = (BEGIN + YEARS * each / number).replace(microsecond=0)
        found.append(
            msgspec.structs.replace(job(each), start_time=start, stop_time=start + timedelta(seconds=each % 9))
        )
    return found


async def fill(location: Location, table: LakeTable, records: Sequence[Record]) -> int:
    """Store them, and release nine years; returns how many are released."""
    async with open_store(location.url, counted_keys=("site_id",)) as store:
        for first in range(0, len(records), BATCH):
            await store.add_all(records[first : first + BATCH], SENT, Duplicates.SAME_RUN, atomic=True)
        return await run(store, table, "site", month_number(BEFORE))


async def ask(
    location: Location, table: LakeTable, query: AggregateQuery, rounds: int
) -> tuple[Aggregates, list[Cost]]:
    """The answer, and the cost of each time, the first of which is that of a store that has just been opened."""
    async with open_store(location.url, counted_keys=("site_id",)) as store:
        reader = LakeReader(table, "site", DuckDb(EngineLimits(1 << 30, 2, location.folder / "spill")))
        store.lake = reader
        costs, answer = list[Cost](), None
        for _ in range(rounds):
            with counted(location, os.getpid()) as cost:
                answer = await store.aggregate(query)
                costs.append(cost(len(answer.groups), None))
        reader.close()
        assert answer is not None
        return answer, costs


async def measure(location: Location, number: int, rounds: int) -> str:
    records = jobs(number)
    table = lake_in(location.folder / "lake")
    released = await fill(location, table, records)
    facts = table.facts()
    gc.collect()
    gc.freeze()  # as the daemon does when it has started; the records of this process are many
    size = f"{facts.size / facts.records:.0f} bytes each in the lake"
    counts = f"{number:,} records of ten years, {released:,} of them released, {size}"
    lines = [f"\n{location.url.partition(':')[0]}, {counts}:"]
    for name, query in QUESTIONS.items():
        answer, costs = await ask(location, table, query, rounds)
        if query.by == (MONTH,):
            wanted = [each for each in records if (each.meta or {})["site_id"][0] == "site-1" or "site" not in name]
            assert sum(group.records for group in answer.groups) == len(wanted)
            assert sum(group.usage[0].sums.amount for group in answer.groups) == sum(
                each.components[0].amount for each in wanted
            )
        lines.append(
            f"{name:>24}: {len(answer.groups):6} rows, first {costs[0].wall * 1e3:.0f} ms, then "
            f"{median(cost.wall for cost in costs[1:]) * 1e3:.0f} ms; "
            f"{sum(cost.own + cost.database for cost in costs[1:]) / len(costs[1:]) * 1e3:.0f} ms of CPU "
            f"(goal of a row a month: {GOAL * 1e3:.0f} ms)"
        )
    gc.unfreeze()
    table.close()
    return "\n".join([*lines, ""])


@pytest.mark.benchmark
@pytest.mark.timeout(3_000)
async def test_sums_over_ten_years(any_location: Location, capsys: pytest.CaptureFixture[str]) -> None:
    text = await measure(any_location, number=200_000, rounds=7)
    with capsys.disabled():
        sys.stdout.write(text)


async def test_sums_over_ten_years_in_small(any_location: Location) -> None:
    text = await measure(any_location, number=600, rounds=2)
    assert "of them released" in text
