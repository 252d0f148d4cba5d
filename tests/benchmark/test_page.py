"""The page at many records: the time that each of its pages takes, on both stores, in UTC and in another zone.

By hand: ``pytest -m benchmark -s tests/benchmark/test_page.py``; ``AUDITORD_BENCHMARK_RECORDS`` is the number of
records, two million by default.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from statistics import median
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import pytest
from anyio.from_thread import start_blocking_portal

from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.zones import UTC_NAME
from tests.benchmark.measured import Location
from tests.page_browser import HTML, Browser

RECORDS: Final = int(os.environ.get("AUDITORD_BENCHMARK_RECORDS", "2000000"))
BATCH: Final = 5_000
ROUNDS: Final = 5
MOST_SECONDS: Final = 0.3
SPAN: Final = timedelta(days=2 * 365)
LABELS: Final = ("VO", "queue")
ZONE: Final = "Europe/Berlin"
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
    "/jobs?user=nobody",
    "/jobs/job-7",
    "/operations",
)
LATE: Final = (
    "/usage?period=12-months&by=VO&meta[queue][c][]=long",
    "/usage?period=12-months&by=user&meta[VO][c][]=atlas",
    "/usage?period=12-months&by=size&meta[VO][c][]=atlas",
    "/usage?period=12-months&by=other",
    "/jobs?sort_by[desc]=runtime",
    "/jobs?meta[VO][c][]=none",
)
"""Pages made of the records, whose rest may come later than their frame."""
OF_ZONE: Final = (
    "/usage?period=12-months",
    "/usage?period=30-days&by=user",
    "/usage?period=90-days&by=user",
    "/usage?period=12-months&by=user",
    "/usage?period=12-months&by=user&bin=week",
    "/usage?period=12-months&by=user&bin=day",
    "/usage?period=12-months&by=VO",
    "/usage?period=12-months&by=VO&bin=week",
    "/usage?period=12-months&by=VO&bin=day",
    "/usage?period=12-months&by=size&bin=week",
)
"""Pages of a daemon whose ``ui.timezone`` is :data:`ZONE`; the same."""


class Taken(NamedTuple):
    """Seconds up to the first and the last byte of an answer, and those of CPU: of the daemon, and of PostgreSQL."""

    first: float
    last: float
    cpu: float
    database: float


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


async def fill(url: str, records: int, end: datetime, zone: str = UTC_NAME) -> None:
    keys = ("group_id", "site_id", "user_id")
    async with open_store(url, counted_keys=keys, rolled_keys=LABELS, zone=zone) as store:
        for first in range(0, records, BATCH):
            batch = [job(number, records, end) for number in range(first, min(first + BATCH, records))]
            await store.add_all(batch, Provenance(end), Duplicates.SAME_RUN, atomic=True)


def measured(location: Location, paths: Sequence[str], rounds: int, zone: str = UTC_NAME) -> Mapping[str, Taken]:
    """The time that each page takes: medians of some answers."""
    found = dict[str, Taken]()
    ui = {"labels": LABELS, "timezone": zone}
    with running_daemon(location.folder, {"store": {"url": location.url}, "ui": ui}) as daemon:
        for path in paths:
            assert Browser(daemon.url).get(path).status == 200, path
            every = zip(*[_seconds(daemon.url, path, location) for _ in range(rounds)], strict=True)
            found[path] = Taken(*map(median, every))
            print(*(f"{each * 1e3:7.1f}" for each in found[path]), "ms", path)  # noqa: T201 what a benchmark is for
    return found


def _seconds(url: str, path: str, location: Location) -> Taken:
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
        database, begun, worked = location.cpu_seconds(), time.perf_counter(), time.process_time()
        connection.request("GET", path, headers=HTML)
        answer = connection.getresponse()
        answer.read(1)
        first = time.perf_counter() - begun
        answer.read()
        last, cpu = time.perf_counter() - begun, time.process_time() - worked
        return Taken(first, last, cpu, location.cpu_seconds() - database)


@pytest.mark.parametrize("zone", [UTC_NAME, ZONE])
def test_the_measurement_works(any_location: Location, zone: str) -> None:
    paths = OF_ZONE if zone == ZONE else (*PAGES, *LATE)
    with start_blocking_portal() as portal:
        portal.call(fill, any_location.url, 1_000, datetime.now(UTC), zone)
    assert set(measured(any_location, paths, 1, zone)) == set(paths)


@pytest.mark.benchmark
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("zone", [UTC_NAME, ZONE])
def test_no_page_takes_long(any_location: Location, zone: str) -> None:
    store = any_location.url.partition(":")[0]
    print(f"\n{store}, {RECORDS} records, {zone}; first and last byte, CPU of daemon and database")  # noqa: T201 what a benchmark is for
    with start_blocking_portal() as portal:
        portal.call(fill, any_location.url, RECORDS, datetime.now(UTC), zone)
    found = measured(any_location, OF_ZONE if zone == ZONE else (*PAGES, *LATE), ROUNDS, zone)
    assert {path: taken for path, taken in found.items() if taken.first > MOST_SECONDS} == {}
    assert {path: taken for path, taken in found.items() if path in PAGES and taken.last > MOST_SECONDS} == {}
