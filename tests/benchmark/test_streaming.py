"""A million records are filled in and streamed out: rates, bytes per record, growth of memory.

By hand, with the figures shown: ``pytest -m benchmark -s tests/benchmark/test_streaming.py``.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.wire import encode_record

CHILD = Path(__file__).parent / "streaming_child.py"
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
PROVENANCE = Provenance(BEGIN, "task:benchmark")
COUNTED_KEYS = ("site_id", "group_id", "user_id")
BATCH = 5_000

MOST_GROWTH = 8 * 1024 * 1024
PAGE_CACHE = 1024 * 1024  # of the one connection that streams


@dataclass(frozen=True)
class Measurements:
    records: int
    added_per_second: float
    wire_bytes: int
    file_bytes: int
    streamed_per_second: float
    growth: int

    def __str__(self) -> str:
        return (
            f"{self.records} records: {self.added_per_second:.0f} added/s in batches of {BATCH}, "
            f"{self.file_bytes / self.records:.0f} bytes of file each, {self.wire_bytes / self.records:.0f} of text; "
            f"{self.streamed_per_second:.0f} streamed/s, memory grew by {self.growth / 2**20:.1f} MiB"
        )


def job(number: int) -> Record:
    """A finished job as the Slurm collector makes it; users and groups are unevenly busy."""
    start = BEGIN + timedelta(seconds=number * 1.3 // 1)
    cores = Component("Cores", 1 << number % 7, (Score("HEPSPEC06", 9.2), Score("hepscore23", 15.5)))
    memory = Component("Memory", 2_000_000_000 + number * 7_919 % 1_000_003, ())
    cpu = Component("TotalCPU", number * 104_729 % 86_400, ())
    stop = start + timedelta(seconds=number * 15_485_863 % 200_000)
    user = number * number % 1_999
    names = {"site_id": "site-1", "group_id": f"group{user % 60}", "user_id": f"user{user:04}"}
    meta: dict[str, tuple[str, ...]] = {key: (name,) for key, name in names.items()}
    return Record(f"slurm-cluster1-{4_000_000 + number}", start, (cores, memory, cpu), stop, meta)


def batches(records: int) -> Iterator[list[Record]]:
    for first in range(0, records, BATCH):
        yield [job(number) for number in range(first, min(first + BATCH, records))]


async def fill(store: RecordStore, records: int) -> float:
    """Add records; the seconds that the store took."""
    seconds = 0.0
    for batch in batches(records):
        began = time.perf_counter()
        verdicts = await store.add_all(batch, PROVENANCE, Duplicates.SAME_RUN, atomic=True)
        seconds += time.perf_counter() - began
        assert set(verdicts) == {Verdict.ADDED}
    return seconds


async def measure(path: Path, records: int) -> Measurements:
    async with open_store(f"sqlite://{path}", counted_keys=COUNTED_KEYS) as store:
        adding = await fill(store, records)
        assert (await store.counts()).total == records
    child = await asyncio.create_subprocess_exec(sys.executable, CHILD, path, stdout=subprocess.PIPE)
    output, _ = await child.communicate()
    assert child.returncode == 0
    streamed = json.loads(output)
    assert streamed["records"] == records
    assert streamed["bytes"] == sum(len(encode_record(record)) for batch in batches(records) for record in batch)
    size = path.stat().st_size  # noqa: ASYNC240 nobody else is waiting
    rate = records / streamed["seconds"]
    return Measurements(records, records / adding, streamed["bytes"], size, rate, streamed["growth"])


@pytest.mark.anyio
async def test_ten_thousand_records_stream_in_little_memory(tmp_path: Path) -> None:
    figures = await measure(tmp_path / "records.db", 10_000)
    assert figures.growth < MOST_GROWTH + PAGE_CACHE, figures


@pytest.mark.benchmark
@pytest.mark.anyio
async def test_a_million_records_stream_in_little_memory(tmp_path: Path) -> None:
    figures = await measure(tmp_path / "records.db", 1_000_000)
    print(f"\n{figures}")  # noqa: T201 the figures are what it is for
    assert figures.growth < MOST_GROWTH + PAGE_CACHE, figures
