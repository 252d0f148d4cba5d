"""Two daemons that share a database: a plugin runs once per interval or tick, on whichever comes first."""

import json
import os
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner

from auditord.cli import auditord
from auditord.cli import installation as installation_module
from auditord.hooks import HookEntry, HookModule, find_entries, load_hooks
from auditord.store.opening import open_store
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_hookspecs import AuditordError, PluginConfig, PluginContext, PluginKind, hookimpl

NewUrl = Callable[[], str]

EACH = [{"interval": "1h"}, {"schedule": "0 0 1 1 *"}]


class CountConfig(PluginConfig):
    """Tell if a run fails in the end."""

    fails: bool = False


async def count(config: CountConfig, context: PluginContext) -> None:
    """Count the runs of all daemons."""
    runs = (context.state or 0) + 1
    context.show(f"run {runs}")
    await context.save_state(runs)
    if config.fails:
        raise AuditordError("the report was refused")


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[Any]]:
    yield PluginKind(name="count", config=CountConfig, run=count)


MODULE = ModuleType("counting_kinds")
vars(MODULE).update(auditord_plugins=auditord_plugins)


@pytest.fixture(autouse=True)
def known_to_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = HookEntry(HookModule("counting_kinds", "counting_kinds", "(test)", "0"), lambda: MODULE)
    monkeypatch.setattr(installation_module, "load_installed_hooks", lambda: load_hooks([], [*find_entries(), ours]))


@contextmanager
def daemon(folder: Path, url: str, **plugin: object) -> Generator[TestDaemon]:
    folder.mkdir(exist_ok=True)
    sections = {"store": {"url": url}, "plugins": {"mine": {"kind": "count", "run_at_start": True, **plugin}}}
    with running_daemon(folder, sections, [MODULE]) as running:
        yield running


def command(folder: Path, *words: str) -> str:
    return CliRunner().invoke(auditord, ["--config", str(folder / "auditord.json"), *words]).stdout


@pytest.mark.parametrize("when", EACH)
def test_a_plugin_runs_once_for_all_daemons(new_postgres_url: NewUrl, tmp_path: Path, when: dict[str, str]) -> None:
    url, one, two = new_postgres_url(), tmp_path / "one", tmp_path / "two"
    with daemon(one, url, **when) as first, daemon(two, url, **when) as second:
        reports = [each.finish_run("mine") for each in (first, second)]
        assert [report.error for report in reports] == [None, None]
        skipped = sorted((dict(report.skipped) for report in reports), key=len)
        assert skipped == [{}, {"another daemon has run it": 1}]
        metrics = first.get("/metrics") + second.get("/metrics")
        assert metrics.count(b'auditord_skipped_ticks_total{kind="count",task="mine"} 1.0\n') == 1
        assert command(two, "trigger", "mine", "--dry-run") == "run 2\n"
        assert [command(each, "trigger", "mine") for each in (two, one)] == ["run 2\n", "run 3\n"]


@pytest.mark.parametrize("when", EACH)
def test_a_run_that_failed_is_none(new_postgres_url: NewUrl, tmp_path: Path, when: dict[str, str]) -> None:
    url, one, two = new_postgres_url(), tmp_path / "one", tmp_path / "two"
    with daemon(one, url, fails=True, **when) as first:
        assert first.finish_run("mine").error == "the report was refused"
    with daemon(two, url, **when) as second:
        assert second.finish_run("mine").skipped == {}
        assert command(two, "trigger", "mine", "--dry-run") == "run 3\n"


@asynccontextmanager
async def turn_taken(url: str) -> AsyncGenerator[None]:
    async with open_store(url, counted_keys=()) as store, store.memory("mine", lambda: None):
        yield


def test_status_tells_who_has_a_turn(new_postgres_url: NewUrl, tmp_path: Path) -> None:
    url = new_postgres_url()
    with daemon(tmp_path, url, interval="1h") as running:
        running.finish_run("mine")
        assert json.loads(command(tmp_path, "status", "--output", "json"))["turns"] == []
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(turn_taken(url)):
            turns = json.loads(command(tmp_path, "status", "--output", "json"))["turns"]
            instances = json.loads(running.get("/api/v1/instances"))["instances"]
    (turn,) = turns
    assert (turn["task"], turn["host"], turn["process"], turn["expired"]) == (
        "mine",
        socket.gethostname(),
        os.getpid(),
        False,
    )
    (plugin,) = [instance for instance in instances if instance["name"] == "mine"]
    assert plugin["turn"] == {key: turn[key] for key in ("host", "process", "since", "expired")}
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(turn_taken(url)):
        held = command(tmp_path, "status")
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE auditord.turns SET expires_at = clock_timestamp()")
        silent = command(tmp_path, "status")
    assert f"turn        mine: process {os.getpid()} on {socket.gethostname()} since 20" in held
    assert "takes over" not in held
    assert "it was not renewed, so another daemon can take it over" in silent
