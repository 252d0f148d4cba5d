"""Commands that hook modules provide: found, listed, and given what they need, beside a daemon and without one."""

import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import click
import pytest
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner, Result

from auditord.cli import auditord, hooks
from auditord.errors import StoreMismatch
from auditord.hooks import HookEntry, HookModule, find_entries, loading
from auditord.store.sqlite import SqliteRecordStore
from auditord.testing import FakeCommandContext, FakePluginContext, make_record
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import (
    AggregateQuery,
    CommandContext,
    PluginConfig,
    PluginContext,
    PluginKind,
    hookimpl,
    pass_context,
)
from tests.fake_auditor import fake_auditor

Run = Callable[..., Result]


async def count(config: PluginConfig, context: PluginContext) -> None:
    """Shows how many records there are, and how often it has done so."""
    del config
    groups = (await context.records.aggregate(AggregateQuery())).groups
    runs = (context.state or 0) + 1
    context.show(f"{groups[0].records if groups else 0} records, run {runs}")
    await context.save_state(runs)


@click.command("count")
@click.argument("instance", required=False)
@click.option("--dry-run", is_flag=True)
@pass_context
def count_command(context: CommandContext, instance: str | None, *, dry_run: bool) -> None:
    """Count the records."""
    name = context.choose("count", instance)

    async def work() -> None:
        async with context.instance(name, dry_run=dry_run) as (config, plugin_context):
            await count(config, plugin_context)

    context.run(work)


def counting() -> ModuleType:
    @hookimpl
    def auditord_commands() -> Iterable[click.Command]:
        yield count_command

    @hookimpl
    def auditord_plugins() -> Iterable[PluginKind[Any]]:
        yield PluginKind(name="count", config=PluginConfig, run=count)

    module = ModuleType("acme_counting")
    vars(module).update(auditord_commands=auditord_commands, auditord_plugins=auditord_plugins)
    return module


def entry(module: ModuleType) -> HookEntry:
    return HookEntry(HookModule("counting", module.__name__, "acme", "1.2"), lambda: module)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line with the module installed, on a configuration with one instance."""
    entries = [*find_entries(), entry(counting())]
    monkeypatch.setattr(loading, "find_entries", lambda: entries)
    file = tmp_path / "a.json"
    plugins = {"mine": {"kind": "count", "enabled": False}}
    file.write_text(json.dumps({"state_dir": str(tmp_path / "state"), "plugins": plugins}))
    return lambda *words: CliRunner(env={"HOME": str(tmp_path)}).invoke(
        auditord, ["--config", str(file), *words], prog_name="auditord"
    )


@contextmanager
def a_daemon(folder: Path) -> Generator[None]:
    """A daemon that has run the plugin once, at its start, and will not again by itself."""
    sections = {"plugins": {"mine": {"kind": "count", "schedule": "0 0 1 1 *"}}}
    with running_daemon(folder, sections, [counting()]) as daemon:
        assert daemon.finish_run("mine").error is None
        yield


def test_it_is_listed_and_has_help(run: Run) -> None:
    listed = run("--help")
    assert listed.exit_code == 0
    assert "count" in listed.output
    assert "Count the records." in listed.output
    assert "--config FILE" in run("count", "--help").output


def test_it_works_beside_a_daemon_and_without_one(run: Run, tmp_path: Path) -> None:
    with a_daemon(tmp_path):
        assert run("count").output == "0 records, run 2\n"
        assert run("count", "mine").output == "0 records, run 3\n"
    assert run("count", "--dry-run").output == "0 records, run 4\n"
    assert run("count").output == "0 records, run 4\n"


def test_a_daemon_and_a_command_share_the_state(run: Run, tmp_path: Path) -> None:
    with a_daemon(tmp_path):
        for _ in range(2):
            assert "run" in run("trigger", "mine").output
            run("count")
        assert run("count").output == "0 records, run 6\n"


@asynccontextmanager
async def turn_taken(records: Path) -> AsyncGenerator[None]:
    """As a command holds it beside the daemon."""
    store = await SqliteRecordStore.open_beside(records)
    try:
        async with store.memory("mine", lambda: None):
            yield
    finally:
        await store.close()


def test_a_run_of_the_daemon_waits_for_a_command(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outputs: list[str] = []
    trigger = Thread(target=lambda: outputs.append(run("trigger", "mine").stdout))
    with a_daemon(tmp_path), start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(turn_taken(tmp_path / "state/records.db")):
            trigger.start()
            deadline = time.monotonic() + 20
            while "waits: it is running on another daemon" not in caplog.text and time.monotonic() < deadline:
                time.sleep(0.01)
            assert "waits: it is running on another daemon" in caplog.text
            assert outputs == []
        trigger.join(20)
        assert outputs == ["0 records, run 2\n"]


def test_trigger_shows_what_a_plugin_would_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        json.dumps({"state_dir": str(tmp_path / "state"), "plugins": {"mine": {"kind": "count"}}})
    )
    without = run("trigger", "mine", "--dry-run")
    assert (without.stdout, without.exit_code) == ("0 records, run 1\n", 0)
    with a_daemon(tmp_path):
        assert run("trigger", "mine", "--dry-run").stdout == "0 records, run 2\n"
        assert run("trigger", "mine").stdout == "0 records, run 2\n"
        failed = run("trigger", "other")
    assert failed.exit_code == 1
    assert "no enabled collector or plugin 'other'" in str(failed.exception)


@pytest.mark.parametrize(
    ("plugins", "words", "message"),
    [
        ({}, ["count"], r"which plugin of kind count\?; none is configured"),
        ({"a": {"kind": "count"}, "b": {"kind": "count"}}, ["count"], "there are: a, b"),
        ({"a": {"kind": "count"}, "o": {"kind": "open_records"}}, ["count", "o"], "kind count is called 'o'.* are: a"),
    ],
)
def test_the_choice_of_an_instance_is_clear(
    run: Run, tmp_path: Path, plugins: dict[str, Any], words: list[str], message: str
) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"state_dir": str(tmp_path / "state"), "plugins": plugins}))
    result = run(*words)
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.output.split()))


def test_what_is_wrong_with_a_module_costs_nobody_else_s_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @hookimpl
    def auditord_commands() -> Iterable[Any]:
        yield click.Command("run")
        yield click.Command(None)
        yield "count"
        yield click.Command("fine")
        raise RuntimeError("out of paper")

    def broken() -> object:
        raise ImportError("no module named printer")

    bad = ModuleType("acme_bad")
    vars(bad).update(auditord_commands=auditord_commands)
    gone = HookEntry(HookModule("gone", "acme_gone", "acme", "1.2"), broken)
    monkeypatch.setattr(loading, "find_entries", lambda: [entry(counting()), entry(bad), gone])
    with click.Context(auditord):
        assert set(hooks.find_commands({"run"})) == {"count"}
    stderr = capsys.readouterr().err
    assert "out of paper" in stderr
    assert "no module named printer" in stderr


def test_commands_that_cannot_be_used_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @hookimpl
    def auditord_commands() -> Iterable[Any]:
        return [click.Command("run"), click.Command(None), "count", click.Command("fine"), click.Command("fine")]

    bad = ModuleType("acme_bad")
    vars(bad).update(auditord_commands=auditord_commands)
    monkeypatch.setattr(loading, "find_entries", lambda: [entry(bad)])
    with click.Context(auditord):
        assert set(hooks.find_commands({"run"})) == {"fine"}
    stderr = capsys.readouterr().err
    for text in ("'run', which already exists", "without a name", "yield click commands", "'fine', which already"):
        assert text in stderr


def test_records_elsewhere_need_no_store_here(run: Run, tmp_path: Path) -> None:
    with fake_auditor() as auditor:
        auditor.add([make_record("a"), make_record("b")])
        mine = {"kind": "count", "source": {"url": auditor.url}}
        (tmp_path / "a.json").write_text(json.dumps({"state_dir": str(tmp_path / "state"), "plugins": {"mine": mine}}))
        for words, shown in ((["count", "--dry-run"], 1), (["count"], 1), (["count", "--dry-run"], 2), (["count"], 2)):
            assert run(*words).output == f"2 records, run {shown}\n"
    assert not (tmp_path / "state/records.db").exists()


def test_a_command_makes_no_spool_in_the_place_of_a_lost_one(run: Run, tmp_path: Path) -> None:
    sections = {"plugins": {"mine": {"kind": "count", "source": {"url": "http://127.0.0.1:9/"}}}}
    with running_daemon(tmp_path, {}):
        pass
    (tmp_path / "a.json").write_text(json.dumps({"state_dir": str(tmp_path / "state"), **sections}))
    for path in (tmp_path / "state").glob("spool.db*"):
        path.unlink()
    for words in (["count"], ["count", "--dry-run"]):
        result = run(*words)
        assert isinstance(result.exception, StoreMismatch)
        assert "auditord database adopt" in str(result.exception)
    assert not (tmp_path / "state/spool.db").exists()


def test_a_database_that_is_not_there_is_not_made(run: Run, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    result = run("count")
    assert result.exit_code == 1
    assert "records.db" in str(result.exception)
    assert list((tmp_path / "state").iterdir()) == []


def test_the_stand_in_runs_commands_over_records(command_context: FakeCommandContext) -> None:
    command_context.plugins["mine"] = ("count", PluginConfig())
    command_context.plugin_context = FakePluginContext(stored=[make_record("a"), make_record("b")])
    result = CliRunner().invoke(count_command, [], obj=command_context)
    assert result.output == "2 records, run 1\n"
    assert command_context.opened == ["mine"]
    assert command_context.plugin_context.state == 1
    assert CliRunner().invoke(count_command, ["other"], obj=command_context).exit_code == 2
