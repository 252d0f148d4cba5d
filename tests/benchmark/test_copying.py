"""Copying a store from SQLite to PostgreSQL and back: how fast, and in how much memory."""

import resource
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from auditord.config.model import StoreSection
from auditord.store import Duplicates, Provenance
from auditord.store.copying import copy_store
from auditord.store.opening import open_store
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.records import Meta

START = datetime(2024, 1, 1, tzinfo=UTC)
CORES = (Component("Cores", 8, (Score("HEPscore23", 11.5),)), Component("Memory", 16_000, ()))
AT_ONCE = 10_000


class SilentProgress:
    """Watches a copy."""

    def note_progress(self, phase: str, done: int, total: int) -> None:
        pass


def job(number: int) -> Record:
    begun = START + timedelta(seconds=number)
    meta: Meta = {"site_id": (f"site{number % 7}",), "user_id": (f"user{number % 500}",)}
    return Record(f"slurm-{number}", begun, CORES, begun + timedelta(hours=1), meta)


async def fill(url: str, jobs: int) -> None:
    async with open_store(url, counted_keys=()) as store:
        for first in range(0, jobs, AT_ONCE):
            records = [job(number) for number in range(first, min(first + AT_ONCE, jobs))]
            await store.add_all(records, Provenance(START), Duplicates.SAME_RUN, atomic=True)


async def timed_copy(source: str, target: str) -> float:
    begun = time.perf_counter()
    ends = StoreSection(url=source), StoreSection(url=target)
    await copy_store(*ends, resume=False, now=lambda: START, progress=SilentProgress())
    return time.perf_counter() - begun


def peak() -> int:
    """The most memory of this process so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("jobs", [10_000, pytest.param(1_000_000, marks=pytest.mark.benchmark)])
def test_copying_in_bounded_memory(tmp_path: Path, empty_postgres_url: str, jobs: int) -> None:
    source, back = (f"sqlite://{tmp_path / name}" for name in ("source.db", "back.db"))
    anyio.run(fill, source, jobs)
    before = peak()
    there = anyio.run(timed_copy, source, empty_postgres_url)
    again = anyio.run(timed_copy, empty_postgres_url, back)
    grown = (peak() - before) / 1024
    sys.stdout.write(
        f"\n{jobs} records: to PostgreSQL {jobs / there:.0f}/s, back to SQLite {jobs / again:.0f}/s (each copied and "
        f"compared), memory +{grown:.1f} MB\n"
    )
    assert grown < 32
