"""Dates at the edge of the calendar: each route answers them, or says what is wrong with them."""

import json
import logging
from collections.abc import Iterator
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from auditord.testing.daemon import TestDaemon, running_daemon
from tests.api_server import record
from tests.page_browser import HTML

DAYS = ("0001-01-01", "0001-12-31", "1899-12-31", "1900-01-01", "2999-12-31", "3000-01-01", "9999-01-01", "9999-12-31")
ZONES = ("UTC", "Pacific/Kiritimati", "America/Los_Angeles")
PAGES = ("/usage", "/usage.csv", "/usage.svg", "/jobs")
SUMS = ("stop:week:Pacific/Kiritimati", "start:year:America/Los_Angeles", "stop:day")


EDGES = {
    "first": ("0001-01-01T00:00:00Z", "0001-01-01T00:00:01Z"),
    "last": ("9999-12-31T23:59:58Z", "9999-12-31T23:59:59.999999Z"),
    "long": ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"),
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDaemon]:
    with running_daemon(tmp_path_factory.mktemp("edge"), {}) as running:
        add_edges(running)
        yield running


def add_edges(daemon: TestDaemon) -> None:
    for name, (start, stop) in EDGES.items():
        body = json.dumps(record(name, start_time=start, stop_time=stop))
        assert ask(daemon, "/record", body)[0] == 200


def ask(daemon: TestDaemon, target: str, body: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection(urlsplit(daemon.url).netloc, timeout=60)
    headers = dict(HTML) if body is None else {"Content-Type": "application/json"}
    connection.request("GET" if body is None else "POST", target, body, headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode("utf-8", "replace")
    connection.close()
    return found


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The errors of the server; a watchdog's are of the machine that the test runs on."""
    errors = (each for each in caplog.records if each.levelno >= logging.ERROR)
    return [each.getMessage() for each in errors if each.name.startswith("auditord.web")]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("bin_", ["auto", "day", "week", "year", "none"])
def test_a_page_of_a_period_at_the_edge(
    daemon: TestDaemon, page: str, bin_: str, caplog: pytest.LogCaptureFixture
) -> None:
    periods = [f"from={day}" for day in DAYS] + [f"to={day}" for day in DAYS]
    periods += [f"from={begin}&to={end}" for begin, end in product(DAYS, DAYS) if begin <= end]
    for at, period in enumerate(periods):
        target = f"{page}?by=none&bin={bin_}&{period}&timezone={quote(ZONES[at % 3])}"
        assert ask(daemon, target)[0] in {200, 400}, target
    assert not faults(caplog)
    assert ask(daemon, f"{page}?from=0001-01-01")[0] == ask(daemon, f"{page}?to=9999-12-31")[0] == 400


@pytest.mark.parametrize("day", DAYS)
def test_sums_and_lists_of_a_period_at_the_edge(daemon: TestDaemon, day: str, caplog: pytest.LogCaptureFixture) -> None:
    for time in ("00:00:00Z", "23:59:59.999999Z", "23:00:00-12:00", "01:00:00%2B14:00"):
        moment = f"{day}T{time}"
        for by, field in product(SUMS, ("from", "to", "as_of")):
            target = f"/api/v1/aggregates?{field}={moment}&by={quote(by)}&usage=Cores"
            assert ask(daemon, target)[0] in {200, 400}, target
        for path in ("/records", "/api/v1/records", "/jobs", *(f"/jobs?timezone={quote(zone)}" for zone in ZONES)):
            target = f"{path}{'&' if '?' in path else '?'}stop_time[gte]={moment}&start_time[lt]={moment}"
            assert ask(daemon, target)[0] in {200, 400}, target
    assert not faults(caplog)


@pytest.mark.parametrize("zone", ZONES)
def test_jobs_at_the_edge_are_shown_in_any_zone(daemon: TestDaemon, zone: str) -> None:
    for target in ("/jobs", "/jobs/first", "/jobs/last", "/jobs/long"):
        assert ask(daemon, f"{target}?timezone={quote(zone)}")[0] == 200, target
    form = f"timezone={quote(zone)}&stop_time[gte]="
    for day in DAYS:
        for time in ("00:00", "23:59"):
            assert ask(daemon, f"/jobs?{form}{day}T{time}")[0] in {200, 400}, (day, time)


@pytest.mark.parametrize("zone", ZONES[1:])
def test_jobs_at_the_edge_are_shown_in_the_zone_of_the_page(tmp_path: Path, zone: str) -> None:
    with running_daemon(tmp_path, {"ui": {"timezone": zone}}) as daemon:
        add_edges(daemon)
        pages = {
            target: ask(daemon, target) for target in ("/jobs?column=start&column=stop", *map("/jobs/{}".format, EDGES))
        }
        assert {target: status for target, (status, _) in pages.items()} == dict.fromkeys(pages, 200)
        shown = {"Pacific/Kiritimati": "9999-12-31 23:59:59 UTC", "America/Los_Angeles": "1-01-01 00:00:00 UTC"}[zone]
        assert shown in pages["/jobs/long"][1]
