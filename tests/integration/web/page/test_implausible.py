"""CPU times that are more than the cores can have given: kept, and found by everybody who looks for them."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from auditord.cli import auditord
from auditord.client import Client
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import AggregateQuery, Component, Record
from auditord_hookspecs.query import ImplausibleCpuTime
from tests.integration.web.page.test_page import Visitor

NOW = datetime.now(UTC)


def job(name: str, *, cores: int, cpu: int | None, hours: int | None = 1, ago: timedelta = timedelta(0)) -> Record:
    start = NOW - timedelta(days=1) - ago
    parts = [Component("Cores", cores, ())] + ([] if cpu is None else [Component("TotalCPU", cpu, ())])
    stop = None if hours is None else start + timedelta(hours=hours)
    return Record(name, start, tuple(parts), stop, {"site_id": ("A",), "group_id": (name,)})


RECORDS = [
    job("sound", cores=2, cpu=7_000),
    job("at-the-limit", cores=2, cpu=10_803),  # 1.5 x 2 x 3,601 s: batch systems cut times to whole seconds
    job("odd", cores=2, cpu=147_587),
    job("no-cores", cores=0, cpu=5),
    job("unknown", cores=2, cpu=None),
    job("running", cores=2, cpu=147_587, hours=None),
    job("backwards", cores=2, cpu=7, hours=-1),
    job("largest", cores=2**63 - 1, cpu=2**63 - 1),
    job("old", cores=1, cpu=36_000, ago=timedelta(days=20)),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Visitor, Path]]:
    folder = tmp_path_factory.mktemp("implausible")
    with running_daemon(folder, {}) as daemon:
        Client(daemon.url).add_all(RECORDS)
        yield Visitor(daemon.url), folder


def listed(page: str) -> set[str]:
    return set(re.findall(r'href="/jobs/([^"?]+)"', page))


def test_the_page_lists_and_counts_them(site: tuple[Visitor, Path]) -> None:
    visitor, _ = site
    assert listed(visitor.get("/jobs?implausible=true").text) == {"odd", "no-cores", "old"}
    operations = visitor.get("/operations").text
    assert re.search(r'Implausible CPU times, last 7 days</h2><p class="figure">2</p>', operations)
    assert listed(visitor.get("/jobs?implausible=true&period=7-days").text) == {"odd", "no-cores"}
    assert 'href="/jobs?implausible=true&amp;period=7-days"' in operations


def test_an_efficiency_that_cannot_be_is_remarked_on(site: tuple[Visitor, Path]) -> None:
    visitor, _ = site
    remark = "some records have more CPU time than their cores could use"
    by_group = "/usage?measure=cpu-efficiency&by=group&bin=none&period=7-days"
    assert remark in visitor.get(by_group).text
    assert remark not in visitor.get(f"{by_group}&group=sound").text
    assert remark not in visitor.get("/usage?measure=core-hours&by=group&bin=none&period=7-days").text
    has_stopped_this_month = (NOW - timedelta(hours=23)).month == NOW.month
    assert (remark in visitor.get("/").text) is has_stopped_this_month
    for name, expected in (("odd", True), ("no-cores", True), ("sound", False)):
        assert ("The CPU time is more than the cores could use" in visitor.get(f"/jobs/{name}").text) is expected


def test_programs_find_them(site: tuple[Visitor, Path]) -> None:
    visitor, folder = site
    url = visitor.url
    answer = visitor.json("/api/v1/records?implausible=true")
    assert {each["record_id"] for each in answer["records"]} == {"odd", "no-cores", "old"}
    assert visitor.get("/api/v1/records?implausible=false", {}).status == 400
    [group] = Client(url).aggregate(AggregateQuery(ImplausibleCpuTime())).groups
    assert group.records == 3
    for where in (["--config", str(folder / "auditord.json")], ["--url", url]):
        shown = CliRunner().invoke(auditord, ["records", "--implausible", "--output", "csv", *where])
        assert shown.exit_code == 0, shown.output
        assert {line.split(",")[0] for line in shown.output.splitlines()[1:]} == {"odd", "no-cores", "old"}
