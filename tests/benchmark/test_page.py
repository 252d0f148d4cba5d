"""The page at many records: the time that each of its pages takes, on both stores.

By hand: ``pytest -m benchmark -s tests/benchmark/test_page.py``; ``AUDITORD_BENCHMARK_RECORDS`` is the number of
records, two million by default.
"""

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final

import pytest
from anyio.from_thread import start_blocking_portal

from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import Component, Record, Score
from tests.page_browser import Browser

RECORDS: Final = "AUDITORD_BENCHMARK_RECORDS"
BATCH: Final = 5_000
ROUNDS: Final = 5
MOST_SECONDS: Final = 0.3
SPAN: Final = timedelta(days=2 * 365)
LABELS: Final = ("VO", "queue")
PAGES: Final = (
    "/",
    "/usage",
    "/usage?period=12-months",
    "/usage?period=12-months&by=user&measure=score-hours",
    "/usage?period=12-months&chart=days",
    "/usage?period=12-months&bin=day",
    "/usage?period=90-days&measure=cpu-efficiency&by=user",
    "/usage?period=30-days&by=size&bin=none",
    "/usage?period=30-days&by=VO",
    "/usage?period=12-months&by=VO",
    "/usage?period=12-months&by=size",
    "/usage?period=12-months&by=site&measure=energy",
    "/usage?period=30-days&timezone=Europe/Berlin",
    "/jobs",
    "/jobs?user=user7",
    "/jobs/job-7",
    "/operations",
)


def job(number: int, of: int, end: datetime) -> Record:
    """One of so many jobs that end evenly over two years; ten sites, fifty groups, 250 users."""
    stop = end - SPAN * ((of - number) / of)
    user, cores, seconds = number * 15_485_863 % 250, 1 << number % 5, number * 104_729 % 86_400
    names = {"site_id": f"site{user % 10}", "group_id": f"group{user % 50}", "user_id": f"user{user}"}
    names |= {"VO": ("atlas", "belle", "cms", "lhcb")[user % 4], "queue": ("long", "short", "test")[number % 3]}
    components = (
        Component("Cores", cores, (Score("HEPscore23", 15.5),)),
        Component("TotalCPU", cores * seconds * 8 // 10, ()),
        Component("Energy", cores * seconds * 5, ()),
    )
    meta: dict[str, tuple[str, ...]] = {key: (name,) for key, name in names.items()}
    return Record(f"job-{number}", stop - timedelta(seconds=seconds), components, stop, meta)


async def fill(url: str, records: int, end: datetime) -> None:
    async with open_store(url, counted_keys=("group_id", "site_id", "user_id"), rolled_keys=LABELS) as store:
        for first in range(0, records, BATCH):
            batch = [job(number, records, end) for number in range(first, min(first + BATCH, records))]
            await store.add_all(batch, Provenance(end), Duplicates.SAME_RUN, atomic=True)


def measured(folder: Path, url: str, rounds: int) -> Mapping[str, float]:
    """The seconds that each page takes: median of some answers."""
    found = dict[str, float]()
    with running_daemon(folder, {"store": {"url": url}, "ui": {"labels": LABELS}}) as daemon:
        browser = Browser(daemon.url)
        for path in PAGES:
            assert browser.get(path).status == 200, path
            found[path] = median(_seconds(browser, path) for _ in range(rounds))
            print(f"{found[path] * 1e3:7.1f} ms {path}")  # noqa: T201 what a benchmark is for
    return found


def _seconds(browser: Browser, path: str) -> float:
    begun = time.perf_counter()
    browser.get(path)
    return time.perf_counter() - begun


def test_the_measurement_works(url: str, tmp_path: Path) -> None:
    with start_blocking_portal() as portal:
        portal.call(fill, url, 1_000, datetime.now(UTC))
    assert set(measured(tmp_path, url, 1)) == set(PAGES)


@pytest.mark.benchmark
@pytest.mark.timeout(7_200)
def test_no_page_takes_long(url: str, tmp_path: Path) -> None:
    records = int(os.environ.get(RECORDS, "2000000"))
    print(f"\n{url.partition(':')[0]}, {records} records")  # noqa: T201 what a benchmark is for
    with start_blocking_portal() as portal:
        portal.call(fill, url, records, datetime.now(UTC))
    assert {path: taken for path, taken in measured(tmp_path, url, ROUNDS).items() if taken > MOST_SECONDS} == {}
