"""A site that forwards its records to a hub, and reports what there should be."""

import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import Component, Record
from auditord_hookspecs.wire import encode_record

YESTERDAY = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)


def job(name: str, hours: int = 1, start: datetime = YESTERDAY) -> Record:
    components = (Component("Cores", 4, ()),)
    return Record(name, start, components, start + timedelta(hours=hours), {"site_id": ("A",)})


def call(daemon: TestDaemon, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    connection = HTTPConnection(daemon.url.removeprefix("http://"))
    text = body if isinstance(body, bytes) else json.dumps(body)
    connection.request(method, path, text, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content) if content else None


def post(daemon: TestDaemon, *records: Record) -> None:
    for record in records:
        assert call(daemon, "POST", "/record", encode_record(record)) == (200, None)


@contextmanager
def hub_and_site(folder: Path, hub: Mapping[str, Any]) -> Generator[tuple[TestDaemon, TestDaemon], None, None]:
    (folder / "hub").mkdir()
    (folder / "site").mkdir()
    with running_daemon(folder / "hub", hub) as there:
        sections = {
            "senders": {"central": {"kind": "remote", "url": there.url, "from": "api"}},
            "plugins": {"report": {"kind": "site_report", "url": there.url, "reporter": "ce1.a", "interval": "1s"}},
        }
        with running_daemon(folder / "site", sections) as site:
            yield there, site


@pytest.fixture
def reported(tmp_path: Path) -> Generator[tuple[TestDaemon, TestDaemon, Callable[[], Mapping[str, Any]]], None, None]:
    """A hub, a site, and a function that lets the site report and gives what the hub says of it."""
    with hub_and_site(tmp_path, {}) as (hub, site):

        def comparison() -> Mapping[str, Any]:
            site.finish_sending()
            sent = datetime.now(UTC)
            while (run := site.finish_run("report")).started < sent:
                continue  # it may have begun before the last record was there
            assert run.error is None
            status, answer = call(hub, "GET", "/api/v1/site_reports")
            assert status == 200
            [reporter] = answer["reporters"]
            assert (reporter["reporter"], reporter["principal"]) == ("ce1.a", None)
            assert abs(reporter["clock_offset"]) < 60
            found: Mapping[str, Any] = reporter["comparison"]
            return found

        yield hub, site, comparison


def test_what_is_not_at_the_hub_is_counted(
    reported: tuple[TestDaemon, TestDaemon, Callable[[], Mapping[str, Any]]],
) -> None:
    hub, site, comparison = reported
    post(hub, job("taken", start=YESTERDAY - timedelta(days=1)))
    post(site, job("a"), job("b", 2))
    equal_but_for_the_hubs_own = comparison()
    assert [equal_but_for_the_hubs_own[key] for key in ("records", "missing", "extra")] == [2, 0, 1]
    post(site, job("taken"))  # the id belongs to another run there: it goes to quarantine here
    differs = comparison()
    assert [differs[key] for key in ("records", "missing", "extra")] == [3, 1, 1]
    [before, day] = differs["differing"]
    assert (before["reported"]["records"], before["stored"]["records"]) == (0, 1)
    assert day["reported"] == {
        "site": "A", "day": f"{YESTERDAY:%Y-%m-%d}", "records": 3, "runtime": 14_400, "core_seconds": 57_600,
    }  # fmt: skip
    assert day["stored"]["core_seconds"] == 43_200
    metrics = site.get("/metrics").decode()
    assert 'auditord_hub_missing_records{task="report"} 1.0' in metrics
    assert 'auditord_site_report_missing_records{principal="",reporter="ce1.a"} 1.0' in hub.get("/metrics").decode()
    row = re.search(r"Site daemons that report here.*?<tbody>(.*?)</tbody>", hub.get("/operations").decode(), re.DOTALL)
    assert row is not None
    cells = [cell for cell in re.sub(r"<[^>]*>", "\n", row[1]).splitlines() if cell.strip()]
    assert [cells[0], cells[1], *cells[-4:-1]] == ["ce1.a", "A", "3", "1", "1"]
    assert cells[-1] == f"A {YESTERDAY - timedelta(days=1):%Y-%m-%d}, A {YESTERDAY:%Y-%m-%d}"


def test_only_sites_that_one_may_write_are_reported(tmp_path: Path) -> None:
    hub = {
        "access": {"roles": {"of_a": {"permissions": ["write"], "sites": ["A"]}}},
        "authenticators": {
            "networks": {"kind": "networks", "rules": [{"network": "127.0.0.0/8", "roles": ["of_a", "monitor"]}]}
        },
    }
    (tmp_path / "hub").mkdir()
    with running_daemon(tmp_path / "hub", hub) as daemon:
        for site, status, named in (("A", 200, ""), ("B", 403, "sites: B"), ("", 403, "(records without a site)")):
            day = {"site": site, "day": "2026-11-20", "records": 1}
            report = {"sent_at": "2026-11-23T00:00:00Z", "first_day": "2026-11-01", "days": [day]}
            got, answer = call(daemon, "PUT", "/api/v1/site_reports/ce1", report)
            assert (got, answer.get("detail", "").endswith(named)) == (status, True)
        _, answer = call(daemon, "GET", "/api/v1/site_reports")
        assert [each["sites"] for each in answer["reporters"]] == [["A"]]


@pytest.mark.parametrize(("roles", "status"), [(["writer"], 403), (["prefixed"], 403), (["writer", "reader"], 200)])
def test_who_may_not_read_learns_no_sums_of_sites_that_are_not_theirs(
    tmp_path: Path, roles: list[str], status: int
) -> None:
    hub = {
        "access": {"roles": {"prefixed": {"permissions": ["write"], "prefixes": ["a-"]}}},
        "authenticators": {"networks": {"kind": "networks", "rules": [{"network": "127.0.0.0/8", "roles": roles}]}},
    }
    report = {
        "sent_at": "2026-11-23T00:00:00Z",
        "first_day": "2026-11-01",
        "days": [{"site": "B", "day": "2026-11-20"}],
    }
    with running_daemon(tmp_path, hub) as daemon:
        assert call(daemon, "PUT", "/api/v1/site_reports/ce1", report)[0] == status


DAY = {"site": "A", "day": "2026-11-20"}


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("ce1", {}),
        ("ce1", {"sent_at": "2026-11-23T00:00:00", "first_day": "2026-11-01", "days": []}),
        *[("ce1", {"sent_at": each, "first_day": "2026-11-01", "days": []}) for each in (0, "0", 1.5, 1e9)],
        ("ce1", {"sent_at": "2026-11-23T00:00:00Z", "first_day": "2026-11-01", "days": [DAY | {"records": "5"}]}),
        ("ce1", {"sent_at": "2026-11-23T00:00:00Z", "first_day": "2026-11-01", "days": [{"site": "A"}]}),
        ("ce1", {"sent_at": "2026-11-23T00:00:00Z", "first_day": "0", "days": []}),
        ("%20", {"sent_at": "2026-11-23T00:00:00Z", "first_day": "2026-11-01", "days": []}),
    ],
)
def test_what_is_no_report_is_refused(one_hub: TestDaemon, name: str, report: object) -> None:
    assert call(one_hub, "PUT", f"/api/v1/site_reports/{name}", report)[0] == 400
    assert call(one_hub, "GET", "/api/v1/site_reports") == (200, {"reporters": []})


@pytest.fixture(scope="module")
def one_hub(tmp_path_factory: pytest.TempPathFactory) -> Generator[TestDaemon, None, None]:
    with running_daemon(tmp_path_factory.mktemp("hub"), {}) as daemon:
        yield daemon
