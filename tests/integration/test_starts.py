"""Runs at the start of a daemon: one that is restarted again and again repeats no successful run."""

import json
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from anyio.from_thread import start_blocking_portal

from auditord.backup.manifest import read_backups
from auditord.backup.notes import note_restore
from auditord.client import Client
from auditord.database.instants import to_micros
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import (
    AuditordError,
    Batch,
    CollectorContext,
    CollectorKind,
    Component,
    PluginConfig,
    PluginContext,
    PluginKind,
    Record,
    RunConfig,
    hookimpl,
)
from auditord_hookspecs.wire import format_time
from tests.integration.lake.killed import lake_in
from tests.mail_server import Mailbox, mail_server

STARTS: Final = 10
RARELY: Final = [{"interval": "20h"}, {"schedule": "0 0 1 1 *"}]

_numbers = count(1)
_ran = list[str]()
last_started: Final = dict[str, str | None]()


async def plug(config: PluginConfig, context: PluginContext) -> None:
    del config
    _ran.append(context.instance)
    if context.instance == "failing":
        raise AuditordError("the other side refuses")


async def collect(config: RunConfig, context: CollectorContext) -> AsyncIterator[Batch]:
    del config
    _ran.append(context.instance)
    yield Batch(checkpoint=next(_numbers))


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[Any]]:
    yield PluginKind(name="plug", config=PluginConfig, run=plug)


@hookimpl
def auditord_collectors() -> Iterable[CollectorKind[Any]]:
    yield CollectorKind(name="gather", config=RunConfig, collect=collect)


MODULE = ModuleType("kinds_of_starts")
vars(MODULE).update(auditord_plugins=auditord_plugins, auditord_collectors=auditord_collectors)


@pytest.fixture(autouse=True)
def forget_runs() -> Iterator[None]:
    _ran.clear()
    yield
    _ran.clear()


def start(folder: Path, plugins: dict[str, Any], collectors: dict[str, Any] | None = None) -> TestDaemon:
    """Start a daemon, and stop it once everything that is due at its start has begun.

    A plugin that always fails is due at every start, and is the last to be asked.
    """
    failing = {"kind": "plug", "interval": "20h", "run_at_start": True}
    sections = {"plugins": {**plugins, "failing": failing}, "collectors": collectors or {}}
    with running_daemon(folder, sections, [MODULE]) as daemon:
        assert daemon.finish_run("failing").error == "the other side refuses"
        instances = json.loads(daemon.get("/api/v1/instances"))["instances"]
    last_started.update({each["name"]: each.get("last_started") for each in instances})
    return daemon


def set_last_success(state: Path, task: str, moment: datetime) -> None:
    with closing(sqlite3.connect(state / "spool.db")) as connection, connection:
        connection.execute("UPDATE instance SET last_success_at = ? WHERE task = ?", (to_micros(moment), task))


@pytest.mark.parametrize("when", RARELY)
def test_ten_starts_run_a_plugin_once_and_a_failing_one_ten_times(tmp_path: Path, when: dict[str, str]) -> None:
    for _ in range(STARTS):
        start(tmp_path, {"mine": {"kind": "plug", "run_at_start": True, **when}})
    assert (_ran.count("mine"), _ran.count("failing")) == (1, STARTS)


def set_enabled_at(state: Path, task: str, moment: datetime) -> None:
    with closing(sqlite3.connect(state / "spool.db")) as connection, connection:
        connection.execute("UPDATE instance SET enabled_at = ? WHERE task = ?", (to_micros(moment), task))


@pytest.mark.parametrize("when", RARELY)
def test_a_new_plugin_waits_for_its_first_tick_through_all_starts(tmp_path: Path, when: dict[str, str]) -> None:
    mine = {"kind": "plug", **when}
    for _ in range(2):
        start(tmp_path, {"mine": mine})
    daemon = start(tmp_path, {"mine": mine})
    assert "mine" not in _ran
    set_enabled_at(daemon.state_dir, "mine", datetime.now(UTC) - timedelta(days=400))  # it missed a tick since
    for _ in range(3):
        start(tmp_path, {"mine": mine})
    assert _ran.count("mine") == 1


@pytest.mark.parametrize("when", RARELY)
def test_a_plugin_that_is_enabled_again_does_not_make_up_for_the_time_without_it(
    tmp_path: Path, when: dict[str, str]
) -> None:
    mine = {"kind": "plug", **when}
    daemon = start(tmp_path, {"mine": {**mine, "run_at_start": True}})
    set_last_success(daemon.state_dir, "mine", datetime.now(UTC) - timedelta(days=400))
    start(tmp_path, {"mine": {**mine, "enabled": False}})
    start(tmp_path, {"mine": mine})
    assert _ran.count("mine") == 1


@pytest.mark.parametrize("when", RARELY)
@pytest.mark.parametrize("off", [timedelta(days=-400), timedelta(days=400)], ids=["missed", "clock was ahead"])
def test_what_was_missed_is_made_up_for_once(tmp_path: Path, when: dict[str, str], off: timedelta) -> None:
    daemon = start(tmp_path, {"mine": {"kind": "plug", "run_at_start": True, **when}})
    set_last_success(daemon.state_dir, "mine", datetime.now(UTC) + off)
    for _ in range(2):
        start(tmp_path, {"mine": {"kind": "plug", "run_at_start": True, **when}})
    assert _ran.count("mine") == 2


@pytest.mark.parametrize("when", RARELY)
def test_a_restore_makes_everything_due(tmp_path: Path, when: dict[str, str]) -> None:
    collectors = {"nightly": {"kind": "gather", **RARELY[1]}}
    daemon = start(tmp_path, {"mine": {"kind": "plug", "run_at_start": True, **when}}, collectors)
    note_restore(daemon.state_dir, datetime.now(UTC))
    sections = {"plugins": {"mine": {"kind": "plug", "run_at_start": True, **when}}, "collectors": collectors}
    with running_daemon(tmp_path, sections, [MODULE]) as again:
        assert again.finish_run("nightly").error is None
        again.finish_run("mine")  # or is skipped until the collector has run
    assert _ran.count("nightly") == 2


def test_an_interval_goes_on_from_the_last_success(tmp_path: Path) -> None:
    sections = {"plugins": {"mine": {"kind": "plug", "interval": "20h", "run_at_start": True}}}
    with running_daemon(tmp_path, sections, [MODULE]) as daemon:
        daemon.finish_run("mine")
    last = datetime.now(UTC) - timedelta(hours=19)
    set_last_success(daemon.state_dir, "mine", last)
    with running_daemon(tmp_path, sections, [MODULE]) as daemon:
        [mine] = [each for each in json.loads(daemon.get("/api/v1/instances"))["instances"] if each["name"] == "mine"]
    assert abs(datetime.fromisoformat(mine["next_run"]) - last - timedelta(hours=20)) < timedelta(seconds=1)


def test_a_collector_goes_on_at_every_start_but_keeps_its_schedule(tmp_path: Path) -> None:
    collectors = {"often": {"kind": "gather", **RARELY[0]}, "nightly": {"kind": "gather", **RARELY[1]}}
    for _ in range(3):
        start(tmp_path, {}, collectors)
    assert (_ran.count("often"), _ran.count("nightly")) == (3, 1)


@pytest.mark.parametrize("when", [{}, {"schedule": "0 0 1 1 *"}])
def test_ten_starts_make_one_backup(tmp_path: Path, when: dict[str, str]) -> None:
    nightly = {"kind": "backup", "folder": str(tmp_path / "b"), "keep": 3, "run_at_start": True, **when}
    with running_daemon(tmp_path, {"plugins": {"nightly": nightly}}, [MODULE]) as daemon:
        report = daemon.finish_run("nightly")
    assert report.error is None
    for _ in range(STARTS - 1):
        start(tmp_path, {"nightly": nightly})
        assert last_started["nightly"] == format_time(report.started)
    assert len(read_backups(tmp_path / "b")[0]) == 1


def last_month() -> Iterable[Record]:
    now = datetime.now(UTC)
    before = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) - timedelta(days=4)
    for stop in (before, now):  # the later one shows that the last month is complete
        meta: dict[str, tuple[str, ...]] = {"site_id": ("kit",), "group_id": ("atlas",)}
        yield Record(f"until-{stop:%m}", stop - timedelta(hours=1), (Component("Cores", 8, ()),), stop, meta)


def test_ten_runs_at_ten_starts_mail_a_report_once_and_leave_the_lake_alone(tmp_path: Path) -> None:
    """As after ten missed ticks, or of a daemon that dies before it notes a success."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(mail_server(Mailbox())) as mailbox:
        server = {"host": "127.0.0.1", "port": mailbox.port, "security": "none"}
        mail = {"sender": "a@example.org", "recipients": ["boss@example.org"], "server": server}
        monthly = {"kind": "utilisation", "settle": "0s", "wait_for_sites": "0s", "mail": mail, "run_at_start": True}
        plugins = {"monthly": {**monthly, **RARELY[1]}}
        lake = {"enabled": True, "name": "kit", "warehouse": str(tmp_path / "lake"), **RARELY[1]}
        sections = {"plugins": plugins, "lake": lake}
        with running_daemon(tmp_path, sections) as daemon:
            Client(daemon.url).add_all(list(last_month()))
            for task in ("lake", "monthly"):
                daemon.finish_run(task)
        snapshots = list[int]()
        for _ in range(STARTS):
            with closing(sqlite3.connect(daemon.state_dir / "spool.db")) as connection, connection:
                connection.execute("UPDATE instance SET last_success_at = NULL")
            with running_daemon(tmp_path, sections) as daemon:
                assert [daemon.finish_run(task).error for task in ("lake", "monthly")] == [None, None]
            with closing(lake_in(tmp_path / "lake")) as table, table.load() as loaded:
                snapshots.append(len(loaded.metadata.snapshots))
        assert len(mailbox.mails) == 1
        assert len(set(snapshots)) == 1
