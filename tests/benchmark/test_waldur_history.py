"""A year of 200 accounts and 2,000 users, out of two million records, loaded into Waldur: time and number of requests.

By hand, with the figures shown: ``pytest -m benchmark -s tests/benchmark/test_waldur_history.py``. The Waldur is the
tests' own in a thread of the same process, so its time is part of what is measured.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final

import pytest

from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.store.reading import StoredRecords
from auditord.store.store import RecordStore
from auditord.testing import FakePluginContext
from auditord_builtin.waldur.history import History, load_history
from auditord_hookspecs import AggregateQuery, Aggregates, Component, Record, Records
from tests.waldur_server import STAFF_TOKEN, FakeWaldur, fake_waldur
from tests.waldur_settings import waldur_config

BEGIN: Final = datetime(2025, 1, 1, tzinfo=UTC)
YEAR: Final = timedelta(days=365)
NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
MONTHS: Final = 12
BATCH: Final = 5_000


@dataclass(frozen=True)
class Size:
    """The amount of data."""

    records: int
    accounts: int
    users: int

    def job(self, number: int) -> Record:
        """A job of up to two days; each user has one account."""
        start = BEGIN + YEAR * number / self.records
        stop = min(start + timedelta(seconds=60 + number * 15_485_863 % 172_800), BEGIN + YEAR)
        user = number * 7_919 % self.users
        cores, memory = 1 << number % 7, 2_000 + number * 104_729 % 100_000
        meta: dict[str, tuple[str, ...]] = {
            "site_id": ("here",),
            "account": (f"acct{user % self.accounts}",),
            "user_id": (f"user{user}",),
        }
        return Record(
            f"job-{number}", start, (Component("Cores", cores, ()), Component("Memory", memory, ())), stop, meta
        )

    @property
    def requests_per_month(self) -> int:
        """One for the totals of each resource, one for each component's users; lists in pages of 300."""
        pages = -(-self.accounts * 2 // 300)
        reading = 1 + 1 + pages  # the totals and users before, the totals afterwards
        # With a look at whether the month is believed, and one at what the present month has, in its location.
        return reading + 2 + self.accounts + self.accounts * 2


class TimedRecords(StoredRecords):
    """The records of a store, and how long they were summed up."""

    seconds = 0.0

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        began = time.perf_counter()
        answer = await super().aggregate(query)
        self.seconds += time.perf_counter() - began
        return answer


class StoreContext(FakePluginContext):
    """A context whose records are in a store."""

    timed: TimedRecords

    @property
    def records(self) -> Records:  # type: ignore[override] # the fake plays them itself
        """The store's."""
        return self.timed


@dataclass
class Loaded:
    """The result."""

    seconds: float
    processor: float
    summing: float
    lines: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s ({self.processor:.1f} s of processor, {self.summing:.1f} s for sums)"


@asynccontextmanager
async def filled(folder: Path, size: Size) -> AsyncGenerator[RecordStore]:
    async with open_store(f"sqlite://{folder / 'records.db'}", counted_keys=()) as store:
        for first in range(0, size.records, BATCH):
            batch = [size.job(number) for number in range(first, min(first + BATCH, size.records))]
            await store.add_all(batch, Provenance(BEGIN, "task:benchmark"), Duplicates.SAME_RUN, atomic=True)
        yield store


async def load(store: RecordStore, waldur: FakeWaldur) -> Loaded:
    context = StoreContext(moment=NOW)
    context.timed = TimedRecords(store)
    config = waldur_config(waldur_api_url=waldur.url, waldur_api_token=STAFF_TOKEN, account_meta="account")
    lines: list[str] = []
    began, processor = time.perf_counter(), time.process_time()
    await load_history(config, context, History(date(2025, 1, 1), date(2025, 12, 31)), lines.append)
    return Loaded(time.perf_counter() - began, time.process_time() - processor, context.timed.seconds, lines)


async def measure(folder: Path, size: Size) -> None:
    resources = {f"r{number}": (f"acct{number}", "OK") for number in range(size.accounts)}
    users = [f"user{number}" for number in range(size.users)]
    async with filled(folder, size) as store:
        with fake_waldur(now=NOW, resources=resources, users=users) as waldur:
            first = await load(store, waldur)
            made, writing = len(waldur.requests), len(waldur.asked("POST"))
            waldur.requests.clear()
            again = await load(store, waldur)
            print(  # noqa: T201 the figures are what it is for
                f"\n{size.records:,} records, {size.accounts} accounts, {size.users:,} users, {MONTHS} months: {first},"
                f" {made:,} requests ({writing:,} that write); again: {again}, {len(waldur.requests):,} requests"
            )
            assert waldur.asked("POST") == []
        pages = -(-size.accounts // 300) + -(-size.users // 300)
        assert made == 2 + pages + MONTHS * size.requests_per_month
        assert first.lines[-2] == "🎉 Historical usage loading completed successfully!"
        check_sums(size, waldur)


def check_sums(size: Size, waldur: FakeWaldur) -> None:
    """All months of all accounts, against a sum over the records themselves; each amount was rounded once."""
    micros = sum(
        job.components[0].amount * ((job.stop_time - job.start_time) // timedelta(microseconds=1))
        for job in map(size.job, range(size.records))
        if job.stop_time is not None
    )
    totals = [row for row in waldur.rows if row.type == "cpu"]
    assert len(totals) == MONTHS * size.accounts
    reported = sum((row.usage for row in totals), Decimal())
    assert abs(reported - Decimal(micros) / 60_000_000 / 60_000) < Decimal("0.0051") * len(totals)


@pytest.mark.anyio
async def test_a_hundredth_of_the_year(tmp_path: Path) -> None:
    await measure(tmp_path, Size(20_000, 20, 200))


@pytest.mark.benchmark
@pytest.mark.anyio
async def test_a_year_of_two_million_records(tmp_path: Path) -> None:
    await measure(tmp_path, Size(2_000_000, 200, 2_000))
