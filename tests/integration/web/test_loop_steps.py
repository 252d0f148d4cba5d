"""No question of a reader is computed on the event loop, where posts and health checks would wait for it."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from zoneinfo import available_timezones

import pytest

from auditord.client import Client
from auditord.reporting import MEASURES
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord.web.limits import MOST_COMPONENTS, MOST_DIMENSIONS, MOST_KEYS
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.aggregates import CalendarUnit
from tests.loop_steps import noting_steps
from tests.page_browser import HTML

PAGES: Final = ("/", "/usage", "/jobs", "/operations", "/panels", "/metrics")
QUESTIONS: Final = 120
MOST_SECONDS: Final = 0.05
RECORDS: Final = 6_000
ZONES: Final = sorted(available_timezones())
UNITS: Final = [unit.value for unit in CalendarUnit]
BEGIN: Final = datetime(2024, 10, 1, tzinfo=UTC)


def job(number: int) -> Record:
    """Return one of many jobs; the first ones stopped in 1970."""
    stop = datetime(1970, 1, 2, number, tzinfo=UTC) if number < 2 else BEGIN + timedelta(minutes=190 * number)
    parts = [
        Component("Cores", 1 + number % 8, (Score("HEPscore23", 10.0 + number % 3),)),
        Component("TotalCPU", number, ()),
    ]
    if number % 50 == 0:
        parts.append(Component("Cores", 1, (Score("s1", 2.0),)))
    meta: dict[str, tuple[str, ...]] = {"site_id": (f"s{number % 3}",), "group_id": (f"g{number % 40}",)}
    meta |= {"user_id": (f"u{number % 900}",), "job_name": (f"name {number % 2_000}",)}
    return Record(f"job-{number}", stop - timedelta(hours=1), tuple(parts), stop, meta)


class Asker:
    """Makes up questions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 repeatable

    def target(self) -> str:
        """Return the target of a request."""
        made = self._random.choice([self._sums, self._sums, self._zones, self._list, self._page, self._file])
        return made()

    def _up_to(self, most: int) -> range:
        return range(self._random.choice([0, 1, 2, self._random.randrange(most + 1), most]))

    def _period(self) -> str:
        start, unit = self._random.choice(["start", "stop"]), self._random.choice(UNITS)
        return f"by={start}:{unit}:{self._random.choice(ZONES)}"

    def _dimension(self) -> str:
        keys = ["site_id", "group_id", "user_id", "job_name", *(f"k{at}" for at in range(MOST_KEYS))]
        listed = "|".join(self._random.sample(keys, self._random.randrange(1, MOST_KEYS)))
        others = ["amount:Cores", "has:TotalCPU", "score:Cores:HEPscore23", "exceeds:TotalCPU:1.5:Cores"]
        return self._random.choice([self._period(), f"by=meta:{listed}", f"by={self._random.choice(others)}"])

    def _usage(self) -> list[str]:
        names = self._random.sample(
            ["Cores", "TotalCPU", *(f"c{at}" for at in range(30))], len(self._up_to(MOST_COMPONENTS))
        )
        return [f"usage={name}" + self._random.choice(["", ":HEPscore23" if name == "Cores" else ""]) for name in names]

    def _filters(self, most: int) -> list[str]:
        return [f"meta[k{at}][dnc][]=v" for at in self._up_to(most)]

    def _moments(self) -> list[str]:
        window = ["from=2024-11-01T00:00:00Z", "to=2026-02-01T00:00:00Z", "as_of=2026-02-01T00:00:00Z"]
        return self._random.sample(window, self._random.choice([0, 0, 1, 2, 3]))

    def _sums(self) -> str:
        by = {self._dimension() for _ in self._up_to(MOST_DIMENSIONS)}
        return self._of([*sorted(by), *self._usage(), *self._filters(40), *self._moments()])

    def _zones(self) -> str:
        unit = self._random.choice(["month", "week", "quarter", "year"])
        by = [f"by=stop:{unit}:{zone}" for zone in self._random.sample(ZONES, MOST_DIMENSIONS)]
        return self._of([*by, *self._usage(), *self._filters(20)])

    @staticmethod
    def _of(parts: list[str]) -> str:
        return f"/api/v1/aggregates?{'&'.join(parts)}"

    def _list(self) -> str:
        order = self._random.choice(["start_time", "stop_time", "runtime", "record_id"])
        path = self._random.choice(["/records?", "/api/v1/records?", "/api/v1/records?format=ndjson&"])
        return "&".join([f"{path}sort_by[desc]={order}", *self._filters(250)])

    def _view(self) -> str:
        by = self._random.choice(["user", "group", "site", "size", "job_name", "none"])
        span = self._random.choice(["from=2024-10-01&to=2026-11-27", "from=1970-01-01&to=2026-11-27", "period=90-days"])
        names = [name for name in MEASURES if "co2" not in name]
        zone, unit = self._random.choice(ZONES), self._random.choice([*UNITS, "none"])
        return f"by={by}&bin={unit}&{span}&measure={self._random.choice(names)}&timezone={zone}"

    def _page(self) -> str:
        others = [*PAGES, "/jobs?limit=1000", f"/jobs?{'&'.join(self._filters(100))}"]
        return self._random.choice(
            [f"/usage?{self._view()}&top=1000", f"/usage?{self._view()}", self._random.choice(others)]
        )

    def _file(self) -> str:
        return f"/usage.{self._random.choice(['csv', 'xlsx', 'json', 'svg', 'parquet'])}?{self._view()}"


@pytest.fixture(params=["sqlite", "postgres"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestDaemon]:
    sections = {}
    if request.param == "postgres":
        new_url: Callable[[], str] = request.getfixturevalue("new_postgres_url")
        sections = {"store": {"url": new_url()}}
    with running_daemon(tmp_path, sections) as daemon:
        Client(daemon.url).add_all([job(number) for number in range(RECORDS)])
        yield daemon


def ask(daemon: TestDaemon, target: str) -> int:
    connection = HTTPConnection(urlsplit(daemon.url).netloc, timeout=120)
    connection.request("GET", target.replace(" ", "%20"), headers=HTML)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


@pytest.mark.timeout(600)
def test_no_question_blocks_the_loop(daemon: TestDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(1_000_000)  # noqa: S311 shown if it fails
    asker = Asker(seed)
    targets = [asker.target() for _ in range(QUESTIONS)]
    for page in PAGES:  # the first time, their templates are compiled
        assert ask(daemon, page) == 200
    with noting_steps(monkeypatch) as steps, ThreadPoolExecutor(6) as readers:
        statuses = list(readers.map(partial(ask, daemon), targets))
    print(f"\nseed {seed}: {steps}")  # noqa: T201 -s shows the longest steps
    wrong = [(status, target) for status, target in zip(statuses, targets, strict=True) if status not in {200, 400}]
    assert wrong == [], seed
    assert statuses.count(200) > QUESTIONS / 2
    assert max(steps.longest)[0] < MOST_SECONDS, f"seed {seed}: {steps}"
