"""The whole daemon in one process: hooks, spool, store and server together."""

import json
import logging
import os
import re
import socket
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import anyio
import pytest

from auditord import supervisor
from auditord.actions import RunRequest
from auditord.config.loading import load
from auditord.config.model import Configuration
from auditord.errors import ConfigurationError, HookError, StateInUse, StoreUnavailable, UnsuitableRequest
from auditord.hooks import HookEntry, HookModule, Hooks, load_hooks
from auditord.spool import Spool, own
from auditord.testing import make_record
from auditord_builtin import local, run_metrics
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    CollectorKind,
    Daemon,
    JobChoice,
    PluginContext,
    PluginKind,
    Quarantined,
    RunConfig,
    RunReport,
    hookimpl,
)

pytestmark = pytest.mark.anyio


class ThirdParty:
    """A hook module that a test writes: what it collects, and what it heard."""

    def __init__(self) -> None:
        self.collect: Callable[[RunConfig, CollectorContext], AsyncIterator[Batch]] = nothing
        self.run: Callable[[RunConfig, PluginContext], Any] = do_nothing
        self.reports: list[RunReport] = []
        self.heard = anyio.Event()

    def module(self) -> ModuleType:
        @hookimpl
        def auditord_collectors() -> list[CollectorKind[Any]]:
            return [CollectorKind(name="jobs", config=RunConfig, collect=self.collect)]

        @hookimpl
        def auditord_plugins() -> list[PluginKind[Any]]:
            return [PluginKind(name="effect", config=RunConfig, run=self.run)]

        @hookimpl
        async def auditord_run_finished(daemon: Daemon, report: RunReport) -> None:
            assert daemon.version
            self.reports.append(report)
            self.heard.set()

        module = ModuleType("third_party")
        for hook in (auditord_collectors, auditord_plugins, auditord_run_finished):
            setattr(module, hook.__name__, hook)
        return module

    async def next_report(self) -> RunReport:
        with anyio.fail_after(30):
            await self.heard.wait()
        self.heard = anyio.Event()
        return self.reports[-1]


async def nothing(*_: Any) -> AsyncGenerator[Batch, None]:
    yield Batch()


async def do_nothing(*_: Any) -> None:
    pass


def hooks_of(*modules: ModuleType) -> Hooks:
    return load_hooks([], [entry(module) for module in modules])


def entry(module: ModuleType) -> HookEntry:
    return HookEntry(HookModule(module.__name__, module.__name__, "tests", "1"), lambda: module)


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def third_party() -> ThirdParty:
    return ThirdParty()


def configure(hooks: Hooks, folder: Path, **sections: Any) -> Configuration:
    """A configuration that listens on any free port."""
    file = folder / "auditord.yml"
    document = {"state_dir": str(folder / "state"), "api": {"listen": ["127.0.0.1:0"]}, **sections}
    file.write_text(json.dumps(document))  # JSON is YAML
    return load([file], hooks.kinds, {}, lambda _: None)


JOBS: Mapping[str, Any] = {"jobs": {"kind": "jobs", "interval": "1h"}}


@asynccontextmanager
async def daemon(configuration: Configuration, hooks: Hooks) -> AsyncGenerator[str, None]:
    """The running daemon's URL; leaving stops it in order."""
    urls, stop, begun = list[str](), anyio.Event(), anyio.Event()

    def ready(given: Sequence[str]) -> None:
        urls.extend(given)
        begun.set()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: supervisor.run(configuration, hooks, ready=ready, now=now, stop=stop))
        with anyio.fail_after(30):
            await begun.wait()
        yield urls[0] if urls else ""
        stop.set()


async def get(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        return await answer.text()


async def wait_for(url: str, pattern: str) -> None:
    with anyio.fail_after(30):
        while not re.search(pattern, await get(url)):  # noqa: ASYNC110 what the server knows has no event here
            await anyio.sleep(0.02)


async def test_what_is_collected_is_served(third_party: ThirdParty, tmp_path: Path) -> None:
    async def collect(_: RunConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
        assert context.checkpoint is None
        yield Batch([make_record("job-1", site_id="A")], [Quarantined("2", 2, "no start")], {"pending": 4}, "there")

    third_party.collect = collect
    hooks = hooks_of(local, run_metrics, third_party.module())
    async with daemon(configure(hooks, tmp_path, collectors=JOBS), hooks) as url:
        await wait_for(f"{url}/records", '"record_id":"job-1"')
        report = await third_party.next_report()
        assert (report.task, report.records, report.quarantined, report.skipped) == ("jobs", 1, 1, {"pending": 4})
        assert 'auditord_collected_records_total{kind="jobs",task="jobs"} 1.0' in await get(f"{url}/metrics")
        await wait_for(f"{url}/metrics", r'auditord_sent_entries_total\{kind="local",task="local"\} 1.0')
    async with Spool.opened(tmp_path / "state", now) as spool:
        assert await spool.checkpoint("jobs") == "there"
        assert [last.error for [last] in (await spool.last_runs()).values()] == [None]


async def test_the_gauges_of_auditor_follow_the_store(third_party: ThirdParty, tmp_path: Path) -> None:
    async def collect(*_: Any) -> AsyncGenerator[Batch, None]:
        yield Batch([make_record(f"job-{n}", site_id="A" if n else "B") for n in range(3)])

    third_party.collect = collect
    hooks = hooks_of(local, third_party.module())
    metrics = {"database": {"interval": "20ms"}}
    async with daemon(configure(hooks, tmp_path, collectors=JOBS, metrics=metrics), hooks) as url:
        await wait_for(f"{url}/metrics", "num_records_database 3\n")
        await wait_for(f"{url}/metrics", 'num_records_database_per_site{site="A"} 2')


async def test_a_record_that_comes_again_with_other_content_is_reported(
    third_party: ThirdParty, tmp_path: Path
) -> None:
    async def collect(*_: Any) -> AsyncGenerator[Batch, None]:
        yield Batch([make_record("job-1", cores=1), make_record("job-1", cores=2)])

    third_party.collect = collect
    hooks = hooks_of(local, third_party.module())
    metrics = {"database": {"interval": "20ms"}}
    configuration = configure(hooks, tmp_path, collectors=JOBS, metrics=metrics)
    async with daemon(configuration, hooks) as url:
        await wait_for(f"{url}/metrics", "auditord_differences_records 1.0")
    with closing(sqlite3.connect(configuration.state_dir / "records.db")) as connection:
        principals = connection.execute("SELECT DISTINCT principal FROM origins").fetchall()
    assert principals == [("task:jobs",)]


async def test_one_instance_s_failure_touches_no_other(third_party: ThirdParty, tmp_path: Path) -> None:
    async def collect(_: RunConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
        if context.instance == "bad":
            raise SystemExit("sacct printed garbage")
        yield Batch([make_record("job-1")])

    third_party.collect = collect
    hooks = hooks_of(local, run_metrics, third_party.module())
    two = {name: {"kind": "jobs", "interval": "20ms"} for name in ("bad", "good")}
    async with daemon(configure(hooks, tmp_path, collectors=two), hooks) as url:
        await wait_for(f"{url}/records", '"record_id":"job-1"')
        await wait_for(f"{url}/metrics", r'auditord_run_failures_total{kind="jobs",task="bad"} [1-9]')
        assert 'auditord_run_failures_total{kind="jobs",task="good"} 0.0' in await get(f"{url}/metrics")


async def test_texts_of_a_run_that_are_not_unicode_end_no_daemon(third_party: ThirdParty, tmp_path: Path) -> None:
    """Anyone may name a file in a shared folder, and errors name such files."""
    name = os.fsdecode(b"bad\xff.csv")

    async def collect(*_: Any) -> AsyncGenerator[Batch, None]:
        skipped: Any = {f"in {name}": 2, None: 1}
        yield Batch(skipped=skipped)
        raise AuditordError(f"{name} stays in place")

    third_party.collect = collect
    hooks = hooks_of(local, run_metrics, third_party.module())
    async with daemon(configure(hooks, tmp_path, collectors=JOBS), hooks) as url:
        report = await third_party.next_report()
        await wait_for(f"{url}/metrics", r'auditord_skipped_jobs_total\{.*reason="in bad\\\\udcff.csv"')
    assert (report.error, report.skipped) == (r"bad\udcff.csv stays in place", {r"in bad\udcff.csv": 2, "None": 1})
    async with Spool.opened_read_only(tmp_path / "state", now) as spool:
        assert [last.error for [last] in (await spool.last_runs()).values()] == [report.error]


async def test_the_time_of_the_last_good_run_is_shown_again_after_a_restart(
    third_party: ThirdParty, tmp_path: Path
) -> None:
    """So that alarms about silent collectors are right at once, whether or not the next run ends well."""
    hooks = hooks_of(local, third_party.module())
    configuration = configure(hooks, tmp_path, collectors={"jobs": {"kind": "jobs", "interval": "1h"}})
    sample = r'auditord_last_success_timestamp_seconds{kind="jobs",task="jobs"} \S+'

    async def success(url: str) -> str:
        await wait_for(f"{url}/metrics", sample)
        [found] = re.findall(sample, await get(f"{url}/metrics"))
        return str(found)

    async def fail(_: RunConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
        if context.instance == "jobs":
            raise AuditordError("sacct is away")
        yield Batch()

    async with daemon(configuration, hooks) as url:
        shown = await success(url)
    third_party.collect = fail
    async with daemon(configuration, hooks_of(local, third_party.module())) as url:
        assert await success(url) == shown


class SilentObserver:
    """Does not look at what is collected."""

    def show_progress(self, fraction: float) -> None:
        """Nothing."""

    def show_line(self, line: str) -> None:
        """A collector says nothing."""

    def show_output(self, text: str) -> None:
        """It shows nothing, either."""

    async def show_batch(self, batch: Batch) -> None:
        """Nothing."""


async def test_a_collector_hears_that_it_is_a_dry_run(third_party: ThirdParty, tmp_path: Path) -> None:
    heard = list[bool]()

    async def collect(_: RunConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
        heard.append(context.dry_run)
        yield Batch()

    third_party.collect = collect
    hooks = hooks_of(local, third_party.module())
    async with supervisor.acting(configure(hooks, tmp_path, collectors=JOBS), hooks, now) as owner:
        for dry_run in (True, False):
            await owner.run(RunRequest("jobs", None, replace=False, dry_run=dry_run), SilentObserver())
    assert heard == [True, False]


async def test_one_job_is_asked_only_of_a_kind_that_knows_single_jobs(third_party: ThirdParty, tmp_path: Path) -> None:
    hooks = hooks_of(local, third_party.module())
    async with supervisor.acting(configure(hooks, tmp_path, collectors=JOBS), hooks, now) as owner:
        with pytest.raises(UnsuitableRequest, match="periods, not single jobs"):
            await owner.run(RunRequest("jobs", job=JobChoice("42.0")), SilentObserver())


async def test_a_plugin_keeps_its_state(third_party: ThirdParty, tmp_path: Path) -> None:
    states = list[Any]()

    async def run(_: RunConfig, context: PluginContext) -> None:
        states.append(context.state)
        assert not context.dry_run
        await context.save_state({"runs": len(states)})

    third_party.run = run
    hooks = hooks_of(local, third_party.module())
    configuration = configure(hooks, tmp_path, plugins={"report": {"kind": "effect", "interval": "20ms"}})
    async with daemon(configuration, hooks):
        while len(states) < 3:
            await third_party.next_report()
    assert states[:3] == [None, {"runs": 1}, {"runs": 2}]


async def test_stopping_cancels_runs_and_drains_the_queue(third_party: ThirdParty, tmp_path: Path) -> None:
    cancelled, waiting = list[bool](), anyio.Event()

    async def collect(*_: Any) -> AsyncGenerator[Batch, None]:
        yield Batch([make_record(f"job-{n}") for n in range(5_000)])
        waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(True)

    third_party.collect = collect
    hooks = hooks_of(local, third_party.module())
    async with daemon(configure(hooks, tmp_path, collectors=JOBS), hooks):
        with anyio.fail_after(30):
            await waiting.wait()
    assert cancelled == [True]
    async with Spool.opened(tmp_path / "state", now) as spool:
        assert (await spool.statistics()).queues == {}
    async with daemon(configure(hooks, tmp_path), hooks) as url:
        assert (await get(f"{url}/records")).count('"record_id"') == 5_000


async def test_what_happened_before_a_restart_is_known(third_party: ThirdParty, tmp_path: Path) -> None:
    async def collect(*_: Any) -> AsyncGenerator[Batch, None]:
        yield Batch(skipped={"pending": 1})
        raise StoreUnavailable("the source is away")

    third_party.collect = collect
    hooks = hooks_of(local, third_party.module())
    configuration = configure(hooks, tmp_path, collectors=JOBS)
    for _ in range(2):
        async with daemon(configuration, hooks):
            await third_party.next_report()
    async with Spool.opened(tmp_path / "state", now) as spool:
        [[last, _]] = (await spool.last_runs()).values()
    assert (last.error, last.failures, last.last_success) == ("the source is away", 2, None)


async def start(configuration: Configuration, hooks: Hooks) -> None:
    async with daemon(configuration, hooks):
        pass


async def plain(configuration: Configuration, hooks: Hooks) -> None:
    """The daemon without the test's own task group around it."""
    await supervisor.run(configuration, hooks, ready=lambda _: None, now=now, stop=anyio.Event())


async def test_one_daemon_per_state_folder(third_party: ThirdParty, tmp_path: Path) -> None:
    hooks = hooks_of(local, third_party.module())
    configuration = configure(hooks, tmp_path)
    with own(configuration.state_dir), pytest.raises(StateInUse, match="in use by process"):
        await plain(configuration, hooks)


async def test_an_address_in_use_is_one_plain_error(third_party: ThirdParty, tmp_path: Path) -> None:
    hooks = hooks_of(local, third_party.module())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=address):
            await plain(configure(hooks, tmp_path, api={"listen": [address]}), hooks)


async def test_collectors_without_a_sender_are_refused(third_party: ThirdParty, tmp_path: Path) -> None:
    hooks = hooks_of(local, third_party.module())
    off = {"local": {"kind": "local", "enabled": False}}
    with pytest.raises(ConfigurationError, match="no sender forwards their records"):
        await plain(configure(hooks, tmp_path, collectors=JOBS, senders=off), hooks)


async def test_the_first_scrape_knows_what_is_queued(third_party: ThirdParty, tmp_path: Path) -> None:
    hooks = hooks_of(local, run_metrics, third_party.module())
    state_dir = tmp_path / "state"
    with own(state_dir):
        async with Spool.opened(state_dir, lambda: datetime.now(UTC)) as spool:
            await spool.enqueue("jobs", Batch([make_record("r1")]), ["gone"])
    async with daemon(configure(hooks, tmp_path), hooks) as url:
        assert 'auditord_queue_entries{kind="",task="gone"} 1.0' in await get(f"{url}/metrics")


async def test_metrics_of_two_modules_must_differ(third_party: ThirdParty, tmp_path: Path) -> None:
    copy = ModuleType("copy_of_run_metrics")
    vars(copy)["auditord_metrics"] = run_metrics.auditord_metrics
    hooks = hooks_of(local, run_metrics, copy, third_party.module())
    with pytest.raises(HookError, match=r"copy_of_run_metrics.*different names"):
        await plain(configure(hooks, tmp_path), hooks)


async def test_a_background_task_that_fails_ends_the_daemon(
    third_party: ThirdParty, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> None:
        raise LookupError("a fault of our own")

    monkeypatch.setattr(supervisor, "look_at_spool", broken)
    hooks = hooks_of(local, third_party.module())
    with anyio.fail_after(30), pytest.raises(LookupError, match="a fault of our own"):
        await plain(configure(hooks, tmp_path), hooks)


async def test_without_http_it_runs_as_well(third_party: ThirdParty, tmp_path: Path) -> None:
    hooks = hooks_of(local, third_party.module())
    async with daemon(configure(hooks, tmp_path, collectors=JOBS, api={"enabled": False}), hooks) as url:
        await third_party.next_report()
    assert url == ""


async def test_entries_of_a_sender_that_is_gone_are_named(
    third_party: ThirdParty, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = hooks_of(local, third_party.module())
    configuration = configure(hooks, tmp_path)
    configuration.state_dir.mkdir()
    async with Spool.opened(configuration.state_dir, now) as spool:
        await spool.enqueue("jobs", Batch([make_record("job-1")]), ["old"])
    with caplog.at_level(logging.WARNING):
        await start(configuration, hooks)
    assert "1 entry for old stays queued" in caplog.text
