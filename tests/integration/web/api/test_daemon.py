"""The API of a whole daemon: what it shows anybody, and what it does for those who come through the control socket."""

import asyncio
import os
import pwd
import stat
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest

from auditord.testing.daemon import TestDaemon, running_daemon
from auditord.web.dispatch import Route
from auditord.web.listeners import for_the_owner
from auditord_hookspecs import (
    Batch,
    CollectorContext,
    CollectorKind,
    Component,
    InvalidRecord,
    LeftOut,
    PluginConfig,
    PluginContext,
    PluginKind,
    Quarantined,
    Record,
    hookimpl,
)
from tests.api_server import Answer, encoded, record

pytestmark = pytest.mark.anyio

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
INSTANCES = {
    "collectors": {
        "jobs": {"kind": "jobs"},
        "idle": {"kind": "jobs", "enabled": False},
        "broken": {"kind": "broken"},
    },
    "plugins": {"report": {"kind": "report", "schedule": "0 0 1 1 *", "run_at_start": True}},
}


class JobsConfig(PluginConfig):
    """Nothing to say."""


async def collect(config: JobsConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    """One job that is new at every run, and one that nobody understands."""
    del config
    number = (context.checkpoint or 0) + 1
    start = EPOCH if context.window is None else context.window.start
    job = Record(f"job-{number}", start, (Component("Cores", 4, ()),), start + timedelta(hours=1))
    secret = Quarantined(f"odd-{number}", {"user": "alice", "number": number}, "has no end")
    context.report_progress(0.5)
    lacking = [LeftOut("Memory", "components.0: sub_key 'memm' is in no row")]
    yield Batch([job], [secret], {"never started": 2}, checkpoint=number, left_out=lacking)


def convert(config: JobsConfig, raw: Any) -> Record:  # Any: JSON
    del config
    if raw["number"] > 1:
        raise InvalidRecord("still has no end")
    return Record("mended", EPOCH, (), EPOCH)


async def fail(config: JobsConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    del config, context
    yield Batch()
    raise RuntimeError("the source is gone")


async def report(config: JobsConfig, context: PluginContext) -> None:
    del config
    if context.dry_run:
        context.log.info("would report %d", 7)
        return
    context.log.warning("100% reported")
    await context.save_state((context.state or 0) + 1)


def module() -> ModuleType:
    found = ModuleType("api_test_kinds")

    @hookimpl
    def auditord_collectors() -> Iterable[CollectorKind[Any]]:
        yield CollectorKind(name="jobs", config=JobsConfig, collect=collect, convert=convert)
        yield CollectorKind(name="broken", config=JobsConfig, collect=fail)

    @hookimpl
    def auditord_plugins() -> Iterable[PluginKind[Any]]:
        yield PluginKind(name="report", config=JobsConfig, run=report)

    found.auditord_collectors = auditord_collectors  # type: ignore[attr-defined] # that is how modules work
    found.auditord_plugins = auditord_plugins  # type: ignore[attr-defined] # the same
    return found


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestDaemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon"), INSTANCES, [module()]) as running:
        assert running.finish_run("jobs").records == 1
        assert running.finish_run("broken").error
        assert running.finish_run("report").error is None
        yield running


async def ask(daemon: TestDaemon, method: str, path: str, body: object = None) -> Answer:
    """Over TCP."""
    async with aiohttp.ClientSession(daemon.url) as session:
        return await answer(session, method, path, body)


async def act(daemon: TestDaemon, method: str, path: str, body: object = None) -> Answer:
    """Over the control socket."""
    async with owner(daemon) as session:
        return await answer(session, method, path, body)


@asynccontextmanager
async def owner(daemon: TestDaemon) -> AsyncGenerator[aiohttp.ClientSession, None]:
    connector = aiohttp.UnixConnector(path=str(daemon.state_dir / "control.sock"))
    async with aiohttp.ClientSession("http://auditord", connector=connector) as session:
        yield session


async def answer(session: aiohttp.ClientSession, method: str, path: str, body: object) -> Answer:
    sent = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
    headers = {"Content-Type": "application/json"}
    async with asyncio.timeout(30), session.request(method, encoded(path), data=sent, headers=headers) as got:
        return Answer(got.status, got.headers, await got.read())


async def test_every_instance_is_shown(daemon: TestDaemon) -> None:
    found = (await ask(daemon, "GET", "/api/v1/instances")).json["instances"]
    named = {each["name"]: each for each in found}
    assert {name: (each["section"], each["kind"], each["enabled"]) for name, each in named.items()} == {
        "jobs": ("collectors", "jobs", True),
        "broken": ("collectors", "broken", True),
        "idle": ("collectors", "jobs", False),
        "report": ("plugins", "report", True),
        "local": ("senders", "local", True),
    }
    jobs, broken = named["jobs"], named["broken"]
    assert jobs["remarks"] == ["no record has component Memory: components.0: sub_key 'memm' is in no row"]
    assert (jobs["running"], jobs["failures"], jobs["last_error"]) == (False, 0, None)
    assert (jobs["last_runs"][0]["records"], jobs["last_runs"][0]["quarantined"], jobs["last_runs"][0]["skipped"]) == (
        *(1, 1),
        {"never started": 2},
    )
    assert jobs["next_run"] > jobs["last_started"]
    assert (broken["failures"], broken["last_success"]) == (1, None)
    assert "the source is gone" in broken["last_error"]
    assert named["report"]["next_run"].endswith("-01-01T00:00:00Z")
    assert (named["local"]["running"], named["idle"]["next_run"]) == (True, None)


async def test_health_tells_what_is_wrong(daemon: TestDaemon) -> None:
    answer = await ask(daemon, "GET", "/api/v1/health")
    health = answer.json
    assert (answer.status, health["status"], health["failing"], health["durable"]) == (
        *(200, "degraded", ["broken"]),
        True,
    )
    assert (health["store"], health["spool"]) == ({"works": True, "error": None}, {"works": True, "error": None})
    assert (health["records"] >= 1, health["differences"]) == (True, 0)
    assert {"task": "jobs", "stage": "job", "entries": 1} in health["quarantine"]


ACTING = [
    ("POST", "/api/v1/instances/jobs/runs"),
    ("POST", "/api/v1/instances/jobs/audits"),
    ("POST", "/api/v1/quarantine/retry"),
    ("POST", "/api/v1/quarantine/discard"),
    ("GET", "/api/v1/quarantine/1"),
    ("POST", "/api/v1/corrections"),
    ("POST", "/api/v1/closings"),
    ("POST", "/api/v1/deletions"),
    ("GET", "/api/v1/records/job-1/versions"),
]


@pytest.mark.parametrize(("method", "path"), ACTING)
async def test_nothing_acts_over_tcp(daemon: TestDaemon, method: str, path: str) -> None:
    before = (await act(daemon, "GET", "/api/v1/instances")).json
    refused = await ask(daemon, method, path, {"ids": [1], "dry_run": False} if method == "POST" else None)
    assert refused.status == 403
    assert str(daemon.state_dir / "control.sock") in refused.problem["remedy"]
    assert b"alice" not in refused.body
    assert (await act(daemon, "GET", "/api/v1/quarantine/1")).status == 200
    after = (await act(daemon, "GET", "/api/v1/instances")).json
    assert [each["last_started"] for each in before["instances"]] == [
        each["last_started"] for each in after["instances"]
    ]


async def test_the_quarantine_is_listed_without_raw_input(daemon: TestDaemon) -> None:
    for _ in range(3):
        await act(daemon, "POST", "/api/v1/instances/jobs/runs")
    path, met = "/api/v1/quarantine?task=jobs&limit=2", list[dict[str, Any]]()
    while path:
        page = await ask(daemon, "GET", path)
        assert b"alice" not in page.body
        met += page.json["entries"]
        path = page.json["next"]
    numbers = [entry["number"] for entry in met]
    assert (len(numbers) >= 4, numbers) == (True, sorted(set(numbers)))
    assert met[0] | {"at": "", "number": 1} == {
        "number": 1,
        "task": "jobs",
        "stage": "job",
        "source_id": "odd-1",
        "reason": "has no end",
        "at": "",
        "occurrences": 1,
        "route": None,
    }
    assert (await ask(daemon, "GET", "/api/v1/quarantine?task=nobody")).json == {"entries": [], "next": None}


@pytest.mark.parametrize(
    ("query", "parameter"), [("limit=0", "limit"), ("after=x", "after"), ("x=1", "x"), ("task=a&task=b", "task")]
)
async def test_wrong_parameters_of_the_quarantine(daemon: TestDaemon, query: str, parameter: str) -> None:
    answer = await ask(daemon, "GET", f"/api/v1/quarantine?{query}")
    assert (answer.status, answer.problem["parameter"]) == (400, parameter)


async def test_an_entry_shows_its_raw_input_to_the_owner(daemon: TestDaemon) -> None:
    listed = (await ask(daemon, "GET", "/api/v1/quarantine?task=jobs")).json["entries"][0]
    shown = (await act(daemon, "GET", f"/api/v1/quarantine/{listed['number']}")).json
    assert shown.pop("raw")["user"] == "alice"
    assert (shown.pop("principal"), shown.pop("agent")) == (None, None)
    assert shown == listed


@pytest.mark.parametrize("number", ["999999", "x", "-1", "%31%ff", "9" * 30])
async def test_no_such_entry(daemon: TestDaemon, number: str) -> None:
    assert (await act(daemon, "GET", f"/api/v1/quarantine/{number}")).status == 404


async def test_retry_and_discard(daemon: TestDaemon) -> None:
    entries = (await ask(daemon, "GET", "/api/v1/quarantine?task=jobs")).json["entries"]
    await act(daemon, "POST", "/api/v1/instances/jobs/runs")
    first, last = entries[0]["number"], (await ask(daemon, "GET", "/api/v1/quarantine?task=jobs")).json["entries"][-1]
    before = (await ask(daemon, "GET", "/api/v1/health")).json["records"]
    retried = await act(daemon, "POST", "/api/v1/quarantine/retry", {"ids": [first, last["number"], 999_999]})
    failed = {str(last["number"]): "still has no end", "999999": "there is no such entry"}
    assert retried.json == {"queued": 1, "settled": 1, "failed": failed}
    while (await ask(daemon, "GET", "/api/v1/health")).json["records"] == before:  # noqa: ASYNC110 it is on its way
        await anyio.sleep(0.01)
    discarded = await act(daemon, "POST", "/api/v1/quarantine/discard", {"ids": [last["number"], 999_999]})
    assert discarded.json == {"discarded": 1}


@pytest.mark.parametrize("path", ["/api/v1/quarantine/retry", "/api/v1/quarantine/discard"])
@pytest.mark.parametrize("body", [b"", b"{", {"ids": ["1"]}, {"ids": [1], "more": 1}, [1], b"\xff"])
async def test_wrong_choices(daemon: TestDaemon, path: str, body: object) -> None:
    answer = await act(daemon, "POST", path, body)
    assert (answer.status, answer.problem["parameter"]) == (400, "body")


async def test_a_dry_run_of_a_collector_shows_what_it_would_keep(daemon: TestDaemon) -> None:
    count = (await ask(daemon, "GET", "/api/v1/health")).json["records"]
    wanted = {"from": "2025-01-01T00:00:00Z", "to": "2025-02-01T00:00:00Z", "dry_run": True}
    lines = (await act(daemon, "POST", "/api/v1/instances/jobs/runs", wanted)).lines
    (found,) = [line["record"] for line in lines if "record" in line]
    (odd,) = [line for line in lines if "quarantined" in line]
    assert (found["start_time"], found["runtime"]) == ("2025-01-01T00:00:00Z", 3600)
    assert odd["reason"] == "has no end"
    assert (lines[-1]["report"]["records"], lines[-1]["report"]["error"]) == (1, None)
    assert (await ask(daemon, "GET", "/api/v1/health")).json["records"] == count


async def test_a_failing_run_is_reported(daemon: TestDaemon) -> None:
    answer = await act(daemon, "POST", "/api/v1/instances/broken/runs")
    assert (answer.status, "the source is gone" in answer.lines[-1]["report"]["error"]) == (200, True)


async def report_of(daemon: TestDaemon) -> Any:  # Any: JSON
    shown = (await ask(daemon, "GET", "/api/v1/instances")).json["instances"]
    return {each["name"]: each for each in shown}["report"]


async def test_a_plugin_says_what_it_would_do_and_does_it_when_asked(daemon: TestDaemon) -> None:
    before = await report_of(daemon)
    dry = (await act(daemon, "POST", "/api/v1/instances/report/runs", {"dry_run": True})).lines
    assert [line["said"] for line in dry if "said" in line] == ["would report 7"]
    assert (await report_of(daemon))["last_runs"] == before["last_runs"]
    done = (await act(daemon, "POST", "/api/v1/instances/report/runs", {"section": "plugins"})).lines
    assert [line["said"] for line in done if "said" in line] == ["100% reported"]
    after = await report_of(daemon)
    assert (after["last_runs"][0]["error"], after["failures"]) == (None, 0)
    assert after["last_started"] > before["last_started"]


@pytest.mark.parametrize(
    ("instance", "body", "status", "words"),
    [
        ("nobody", None, 404, "no enabled collector or plugin 'nobody'; there are: jobs, broken, report"),
        ("idle", None, 404, "no enabled"),
        ("report", {"section": "collectors"}, 404, "no enabled collector 'report'; there are: jobs, broken"),
        ("jobs", {"section": "senders"}, 400, "section"),
        ("report", {"replace": True}, 422, "is a plugin"),
        ("jobs", {"from": "2025-01-01T00:00:00Z"}, 400, "or neither"),
        ("jobs", {"from": "2025-01-01T00:00:00Z", "to": "2024-01-01T00:00:00Z"}, 400, "later"),
        ("jobs", {"from": "soon", "to": "later"}, 400, "time with zone"),
        ("jobs", {"from": "0001-01-01T00:00:00Z", "to": "2024-01-01T00:00:00Z"}, 400, "is not between"),
        ("jobs", {"unknown": 1}, 400, "unknown"),
        ("jobs", b"{", 400, ""),
    ],
)
async def test_a_run_that_cannot_be(daemon: TestDaemon, instance: str, body: object, status: int, words: str) -> None:
    answer = await act(daemon, "POST", f"/api/v1/instances/{instance}/runs", body)
    assert (answer.status, words in answer.problem["detail"]) == (status, True), answer.body


YEAR = {"from": "2025-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("instance", "body", "status", "words"),
    [
        ("nobody", YEAR, 404, "no enabled collector 'nobody'; there are: jobs, broken"),
        ("report", YEAR, 404, "no enabled collector 'report'"),
        ("jobs", YEAR, 422, "cannot list its source"),
        ("jobs", {"from": "2025-01-01T00:00:00Z"}, 400, "to"),
        ("jobs", {"from": YEAR["to"], "to": YEAR["from"]}, 400, "later"),
        ("jobs", {"from": YEAR["to"], "to": "9999-12-31T00:00:00Z"}, 400, "is not between"),
        ("jobs", {**YEAR, "replace": " ", "by": "alice"}, 400, "a reason must have"),
        ("jobs", {**YEAR, "replace": "wrong before"}, 400, "must not be empty"),
    ],
)
async def test_an_audit_that_cannot_be(
    daemon: TestDaemon, instance: str, body: object, status: int, words: str
) -> None:
    answer = await act(daemon, "POST", f"/api/v1/instances/{instance}/audits", body)
    assert (answer.status, words in answer.problem["detail"]) == (status, True), answer.body


async def test_records_go_through_the_control_socket_as_well(daemon: TestDaemon) -> None:
    added = await act(daemon, "POST", "/api/v1/records", [record("by-owner")])
    assert added.json["counts"] == {"added": 1}
    for path in ("/api/v1/records/by-owner", "/record/by-owner"):
        assert (await act(daemon, "GET", path)).body == (await ask(daemon, "GET", path)).body


async def test_the_control_socket_is_for_its_owner(daemon: TestDaemon) -> None:
    assert stat.S_IMODE((daemon.state_dir / "control.sock").stat().st_mode) == 0o600


async def test_a_peer_whose_name_the_kernel_does_not_tell_is_refused() -> None:
    class Stranger:
        transport = None
        remote, method, raw_path = "", "GET", "/"

    async def handler(_request: Any) -> Any:  # Any: never called
        raise AssertionError

    answer: Any = await for_the_owner(Route("GET", "/", handler, None))(Stranger())  # type: ignore[arg-type] # all that is looked at
    assert answer.status == 403


async def test_a_client_that_leaves_ends_its_run(tmp_path: Path) -> None:
    sections = {"collectors": {"slow": {"kind": "slow", "schedule": "0 0 1 1 *"}}}
    slow = ModuleType("api_slow_kind")
    left, window = tmp_path / "left", {"from": "2025-01-01T00:00:00Z", "to": "2025-02-01T00:00:00Z"}

    async def wait(config: JobsConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
        del config
        yield Batch()
        if context.window is None:  # the clock's run
            return
        try:
            await anyio.sleep_forever()
        finally:
            left.touch()

    @hookimpl
    def auditord_collectors() -> Iterable[CollectorKind[Any]]:
        yield CollectorKind(name="slow", config=JobsConfig, collect=wait)

    slow.auditord_collectors = auditord_collectors  # type: ignore[attr-defined] # that is how modules work
    with running_daemon(tmp_path, sections, [slow]) as daemon:
        async with owner(daemon) as session, session.post("/api/v1/instances/slow/runs", json=window) as answer:
            assert b"progress" in await answer.content.readline()
            answer.close()
            with anyio.fail_after(20):
                while not left.exists():  # noqa: ASYNC110 another thread's daemon sets no event here
                    await anyio.sleep(0.02)


async def test_records_are_changed_for_a_reason_and_the_user_of_the_socket_is_named(daemon: TestDaemon) -> None:
    opened = {**record("amended"), "stop_time": None}
    assert (await ask(daemon, "POST", "/api/v1/records", [opened])).status == 200
    closing = {"record_id": "amended", "runtime": 60}
    closed = await act(daemon, "POST", "/api/v1/closings", {"closings": [closing], "reason": "lost"})
    assert closed.json == {"outcomes": [{"record_id": "amended", "outcome": "done", "detail": None}]}
    stored = (await ask(daemon, "GET", "/api/v1/records/amended")).json
    assert stored["runtime"] == 60
    correction = {"record": {**stored, "meta": None}, "seen": stored, "reason": "no such site", "by": "alice"}
    for outcome in ("done", "changed"):
        corrected = await act(daemon, "POST", "/api/v1/corrections", correction)
        assert corrected.json["outcomes"][0]["outcome"] == outcome
    deleted = await act(daemon, "POST", "/api/v1/deletions", {"ids": ["amended", "nobody"], "reason": "a test"})
    assert [each["outcome"] for each in deleted.json["outcomes"]] == ["done", "missing"]
    versions = (await act(daemon, "GET", "/api/v1/records/amended/versions")).json["versions"]
    user = f"user:{pwd.getpwuid(os.getuid()).pw_name}"
    assert [(each["action"], each["changed_by"], each["reason"]) for each in versions] == [
        ("close", user, "lost"),
        ("correct", "user:alice", "no such site"),
        ("delete", user, "a test"),
    ]
    assert versions[1]["record"] == stored


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("corrections", {"record": record("x")}, 400),
        ("corrections", {"record": {**record("x"), "record_id": " "}, "reason": "r"}, 400),
        ("corrections", {"record": record("x"), "reason": "r", "by": " "}, 422),
        ("closings", {"closings": [{"record_id": "x"}], "reason": "r"}, 422),
        ("closings", {"closings": [{"record_id": "x", "stop_time": "soon"}], "reason": "r"}, 422),
        ("closings", {"closings": [{"record_id": "x", "runtime": -1}], "reason": "r"}, 400),
        ("deletions", {"ids": ["x"], "reason": ""}, 400),
        ("deletions", {"ids": ["x"], "reason": " "}, 422),
        ("deletions", {"ids": "x", "reason": "r"}, 400),
    ],
)
async def test_a_request_that_cannot_be_understood_is_refused(
    daemon: TestDaemon, path: str, body: object, status: int
) -> None:
    refused = await act(daemon, "POST", f"/api/v1/{path}", body)
    assert (refused.status, refused.json["parameter"]) == (status, "body")
