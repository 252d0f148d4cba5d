"""The dashboards in etc/grafana: every query is put to a real Prometheus, or to the API of a real daemon."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import quote, urlencode
from urllib.request import urlopen

import pytest

from auditord.manual import text_of
from auditord.testing import make_record
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import Batch, CollectorContext, CollectorKind, RunConfig, hookimpl
from tests.ports import free_port

FOLDER: Final = Path(__file__).parents[2] / "etc/grafana"
NOW: Final = datetime.now(UTC).replace(microsecond=0)
_METRIC: Final = re.compile(r"\bauditord_[a-z_]+\b")

ABSENT: Final = {
    "Until certificates end",  # the daemon of the test has none,
    "Missing records, as of the last nightly audit",  # it has lived through no night,
    "Quarantine",  # and nothing has gone wrong
    "In quarantine",
    "Silence of sites, in usual intervals",  # (sites are looked at every half an hour, first before there are records)
}
"""Panels without data here; that their queries are valid, and of metrics that there are, is tested all the same."""


def dashboard(name: str) -> Any:  # Any: JSON
    return json.loads((FOLDER / name).read_text())


def targets(name: str) -> list[tuple[str, Any]]:  # Any: JSON
    return [(panel["title"], target) for panel in dashboard(name)["panels"] for target in panel["targets"]]


def jobs() -> ModuleType:
    async def collect(_: RunConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
        begin = NOW - timedelta(days=5)
        yield Batch(
            []
            if context.checkpoint
            else [
                make_record(
                    f"job-{n}", start=begin + n * timedelta(hours=9), cores=4, site_id="AB"[n % 2], group_id="g"
                )
                for n in range(10)
            ],
            checkpoint=1,
        )

    @hookimpl
    def auditord_collectors() -> list[CollectorKind[Any]]:
        return [CollectorKind(name="jobs", config=RunConfig, collect=collect)]

    module = ModuleType("dashboard_jobs")
    setattr(module, "auditord_collectors", auditord_collectors)  # noqa: B010 modules have no such attribute
    return module


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[TestDaemon, None, None]:
    sections = {
        "collectors": {"jobs": {"kind": "jobs", "interval": "1s"}},
        "metrics": {"database": {"interval": "100ms"}},
    }
    with running_daemon(tmp_path_factory.mktemp("daemon"), sections, [jobs()]) as running:
        running.finish_run("jobs")
        yield running


@contextmanager
def prometheus(folder: Path, target: str) -> Generator[str, None, None]:
    """A server that asks the daemon every second."""
    port = free_port()
    scrape = {"job_name": "auditord", "static_configs": [{"targets": [target]}]}
    (folder / "prometheus.yml").write_text(
        json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]})
    )
    command = (
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def asked(url: str) -> Any:  # Any: JSON
    with urlopen(url, timeout=30) as answer:  # noqa: S310 our own servers
        return json.loads(answer.read())


def value_of(url: str, expression: str, patience: float) -> list[Any]:  # Any: JSON
    """The result of a query as soon as it has one."""
    deadline = time.monotonic() + patience
    while True:
        try:
            answer = asked(f"{url}/api/v1/query?{urlencode({'query': expression})}")
            assert answer["status"] == "success"
            found: list[Any] = answer["data"]["result"]
            if found or time.monotonic() > deadline:
                return found
        except URLError as error:
            if getattr(error, "code", 503) != 503 or time.monotonic() > deadline:  # 503: Prometheus is still starting
                raise
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs tests/services/prometheus-install")
def test_every_query_about_operations_has_an_answer(daemon: TestDaemon, tmp_path: Path) -> None:
    variables = {"$instance": ".*", "$__rate_interval": "1m"}
    with prometheus(tmp_path, daemon.url.removeprefix("http://")) as url:
        empty = [
            title
            for title, target in targets("operations.json")
            if not value_of(url, filled(target["expr"], variables), 0 if title in ABSENT else 60)
        ]
        assert set(empty) <= ABSENT
        (variable,) = [
            each for each in dashboard("operations.json")["templating"]["list"] if each["name"] == "instance"
        ]
        match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        assert match is not None
        assert asked(f"{url}/api/v1/label/{match[2]}/values?match[]={quote(match[1])}")["data"]


def test_operations_speak_of_metrics_that_there_are() -> None:
    names = set(re.findall(r"`(auditord_[a-z_]+)`", text_of("metrics")))
    known = names | {f"{name}{suffix}" for name in names for suffix in ("_total", "_bucket")}
    for title, target in targets("operations.json"):
        assert set(_METRIC.findall(target["expr"])) <= known, title


@pytest.mark.parametrize("title", [title for title, _ in targets("usage.json")])
def test_every_query_about_usage_has_an_answer_with_its_columns(daemon: TestDaemon, title: str) -> None:
    [target] = [each for name, each in targets("usage.json") if name == title]
    window = {"${__from:date:iso}": (NOW - timedelta(days=30)).isoformat(), "${__to:date:iso}": NOW.isoformat()}
    path, _, query = target["url"].partition("?")
    pairs = (filled(each, window).partition("=") for each in query.split("&"))
    answer = json.loads(daemon.get(f"{path}?{urlencode([(name, value) for name, _, value in pairs])}"))
    rows = answer[target["root_selector"]]
    assert rows
    for row in rows:
        values = {column["text"]: selected(row, column["selector"]) for column in target["columns"]}
        assert None not in values.values()
        for column in target["computed_columns"]:
            name, _, divisor = column["selector"].partition(" / ")
            assert values[name] / float(divisor) > 0
    assert sum(row["records"] for row in rows) == 10
    assert sum(row["usage"]["Cores"]["amount_runtime"] for row in rows) == 10 * 4 * 3600


def filled(text: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        text = text.replace(name, value)
    return text


def selected(row: Any, selector: str) -> Any:  # Any: JSON
    """The columns of the data source: members by names between dots."""
    for name in selector.split("."):
        row = row[name]
    return row
