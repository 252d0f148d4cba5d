"""A preview is of the file that is edited: dry runs, and comparisons with the running daemon."""

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner, Result

from auditord import supervisor
from auditord.cli import auditord
from auditord.cli import installation as installation_module
from auditord.cli.installation import utc_now
from auditord.config.loading import ConfigurationFiles
from auditord.hooks import HookEntry, HookModule, find_entries, load_hooks
from auditord.spool import Spool
from auditord.testing import make_record
from auditord_hookspecs import (
    Batch,
    CollectorContext,
    CollectorKind,
    PluginConfig,
    PluginContext,
    PluginKind,
    Record,
    RecordQuery,
    RunConfig,
    hookimpl,
)
from auditord_hookspecs.config import Words

LABELS = ["vo", "queue", "account"]


class JobsConfig(RunConfig):
    """Options of a source of three jobs."""

    label: str = "right"
    labels: Words = ()
    rules: tuple[Mapping[str, Any], ...] = ()


class MailConfig(PluginConfig):
    """Options of a plugin that mails."""

    to: Words = ()


async def collect(config: JobsConfig, context: CollectorContext) -> AsyncGenerator[Batch, None]:
    assert not context.dry_run or not context.instance_dir.exists()
    first = context.checkpoint or 0
    jobs: list[Record] = [make_record(f"job-{number}", label=config.label) for number in range(first, 3)]
    yield Batch(jobs, checkpoint=3)


async def mail(config: MailConfig, context: PluginContext) -> None:
    async with context.records.stream(RecordQuery()) as records:
        count = len([record async for record in records])
    if context.dry_run:
        context.show(f"would mail {count} records to {', '.join(config.to)}")
    else:
        sent.append(config.to)
        await context.save_state({"sent": count})


sent = list[tuple[str, ...]]()


def kinds() -> ModuleType:
    found = ModuleType("previewed_kinds")

    @hookimpl
    def auditord_collectors() -> Iterable[CollectorKind[Any]]:
        yield CollectorKind(name="jobs", config=JobsConfig, collect=collect)

    @hookimpl
    def auditord_plugins() -> Iterable[PluginKind[Any]]:
        yield PluginKind(
            name="mails", config=MailConfig, run=mail, effect=lambda config: f"mails {len(config.to)} people"
        )

    vars(found).update(auditord_collectors=auditord_collectors, auditord_plugins=auditord_plugins)
    return found


@dataclass(frozen=True)
class Site:
    """A configuration file, and commands with it; maybe a daemon."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def write(self, name: str = "a.json", **sections: Any) -> Path:
        document = {"state_dir": str(self.state), "api": {"listen": ["127.0.0.1:0"]}, **sections}
        (self.folder / name).write_text(json.dumps(document))
        return self.folder / name

    def run(self, *words: str, config: str = "a.json") -> Result:
        return CliRunner().invoke(auditord, ["--config", str(self.folder / config), *words])

    def files(self) -> dict[str, bytes]:
        """All files of the state folder except those of SQLite's locks, with their content."""
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal")))
        return {str(path): path.read_bytes() for path in found}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    module = kinds()
    ours = HookEntry(HookModule("previewed_kinds", "previewed_kinds", "(test)", "0"), lambda: module)
    monkeypatch.setattr(installation_module, "load_installed_hooks", lambda: load_hooks([], [*find_entries(), ours]))
    sent.clear()
    return Site(tmp_path)


JOBS: dict[str, Any] = {"kind": "jobs", "interval": "1d", "labels": LABELS}
MONTHLY: dict[str, Any] = {"kind": "mails", "schedule": "0 2 1 1 *", "to": ["boss@a.org", "vice@a.org"]}


@pytest.fixture
def running(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose daemon has collected the three jobs. Its thread is not the main one, so it has no signals."""

    async def ignore_signals(_: object) -> None:
        pass

    monkeypatch.setattr(supervisor, "reload_on_hangup", ignore_signals)
    file = site.write(collectors={"jobs": JOBS})
    hooks = installation_module.load_installed_hooks()
    files = ConfigurationFiles([file], hooks.kinds, {}, hooks.resolve_secret)

    async def start(*, task_status: anyio.abc.TaskStatus[anyio.Event]) -> None:
        stop = anyio.Event()

        def ready(_: Sequence[str]) -> None:
            task_status.started(stop)

        await supervisor.run(files.read(), hooks, ready=ready, now=utc_now, stop=stop, files=files)

    with start_blocking_portal() as portal:
        done, stop = portal.start_task(start)
        assert site.run("collect", "jobs").exit_code == 0
        yield site
        portal.call(stop.set)
        done.result(60)


def previewed(result: Result) -> list[str]:
    assert result.exit_code == 0, (result.output, result.exception)
    return [json.loads(line)["meta"]["label"][0] for line in result.stdout.splitlines()]


PERIOD = ("--from", "2026-01-01", "--dry-run")


def test_a_dry_run_of_a_collector_uses_the_edited_file_and_says_so(running: Site) -> None:
    running.write(collectors={"jobs": {**JOBS, "label": "wrong"}})
    done = running.run("collect", "jobs", "--dry-run")
    assert f"dry run by the configuration in {running.folder / 'a.json'}\n" in done.stderr
    assert previewed(done) == [], "it begins at the checkpoint"
    other = running.write("draft.json", collectors={"jobs": {**JOBS, "label": "draft", "enabled": False}})
    drafted = running.run("trigger", "jobs", "--dry-run", config="draft.json")
    assert f"dry run by the configuration in {other}, which disables jobs\n" in drafted.stderr
    remote = running.run("collect", "jobs", "--dry-run", "--url", f"unix:{running.state / 'control.sock'}")
    assert "dry run by the running configuration of unix:" in remote.stderr


def test_a_dry_run_without_a_daemon_leaves_nothing_behind(site: Site) -> None:
    site.write(collectors={"jobs": {**JOBS, "label": "wrong"}}, plugins={"monthly": MONTHLY})
    before = site.files()
    assert previewed(site.run("collect", "jobs", "--dry-run")) == ["wrong"] * 3
    assert "There is no" in str(site.run("trigger", "monthly", "--dry-run").exception)
    assert "no enabled collector or plugin 'nobody'; there are: jobs, monthly" in str(
        site.run("trigger", "nobody", "--dry-run").exception
    )
    assert (site.files(), site.state.exists()) == (before, False)


async def _checkpoint(state: Path) -> Any:
    async with Spool.opened_read_only(state, lambda: datetime.now(UTC)) as spool:
        return await spool.checkpoint("jobs")


def test_dry_runs_beside_a_daemon_and_after_it_change_no_file(running: Site) -> None:
    running.write(collectors={"jobs": JOBS}, plugins={"monthly": {**MONTHLY, "enabled": False}})
    done = running.run("trigger", "monthly", "--dry-run")
    assert done.stdout == "would mail 3 records to boss@a.org, vice@a.org\n"
    assert "which disables monthly" in done.stderr
    assert anyio.run(_checkpoint, running.state) == 3
    assert sent == []


def test_a_remote_plugin_is_previewed_without_a_state_folder(site: Site) -> None:
    site.write(plugins={"there": {**MONTHLY, "source": {"url": "http://127.0.0.1:9/"}}})
    done = site.run("trigger", "there", "--dry-run")
    assert (done.exit_code, "cannot connect" in done.stderr, site.state.exists()) == (1, True, False)


def test_diff_compares_the_files_it_is_given_and_reload_refuses_others(running: Site) -> None:
    other = running.write("draft.json", collectors={"jobs": {**JOBS, "label": "draft"}})
    compared = running.run("config", "diff", config="draft.json")
    assert compared.stdout == 'collectors.jobs.label: "right" -> "draft"\ncollectors.jobs: next run at once\n'
    assert f"the running configuration -> {other}" in compared.stderr
    assert f"config reload would not read them, but {running.folder / 'a.json'}" in compared.stderr
    assert compared.exit_code == 1
    refused = running.run("config", "reload", config="draft.json")
    assert f"the daemon reads {running.folder / 'a.json'}" in str(refused.exception)
    same = running.run("config", "diff")
    assert (same.exit_code, same.stdout, "would not read" in same.stderr) == (0, "", False)


def test_a_reload_announces_a_new_plugin_which_waits_for_its_time(running: Site) -> None:
    running.write(collectors={"jobs": {**JOBS, "labels": [*LABELS, "voms"]}}, plugins={"monthly": MONTHLY})
    year = (datetime.now(UTC) - timedelta(hours=2)).year + 1
    said = [
        'collectors.jobs.labels: + "voms"',
        "collectors.jobs: next run at once",
        f"plugins.monthly: first run {year}-01-01 02:00 UTC; it mails 2 people",
    ]
    for verb in ("diff", "reload"):
        lines = running.run("config", verb).stdout.splitlines()
        assert [line for line in lines if line in said] == said
    assert sent == []
    status = json.loads(running.run("status", "--output", "json").stdout)
    (monthly,) = [each for each in status["instances"] if each["task"] == "monthly"]
    assert (monthly["next_run"], monthly["last_run"]) == (f"{year}-01-01T02:00:00Z", None)
    running.write(collectors={"jobs": JOBS}, plugins={"monthly": {**MONTHLY, "to": ["boss@a.org"]}})
    changed = running.run("config", "reload").stdout
    assert 'plugins.monthly.to: - "vice@a.org"\n' in changed
    assert f"plugins.monthly: next run {year}-01-01 02:00 UTC; it mails 1 people\n" in changed
    told = {**MONTHLY, "run_at_start": True}
    running.write(collectors={"jobs": JOBS}, plugins={"monthly": MONTHLY, "now": told})
    assert "plugins.now: first run at once; it mails 2 people\n" in running.run("config", "diff").stdout


def test_diff_names_the_sections_that_need_a_restart_as_reload_does(running: Site) -> None:
    running.write(collectors={"jobs": {**JOBS, "label": "new"}}, ui={"title": "A site"}, audit={"days": 5})
    compared = running.run("config", "diff")
    assert 'ui.title: "auditord" -> "A site"\n' in compared.stdout
    assert "config reload cannot change ui, audit: restart the daemon instead\n" in compared.stderr
    assert "restart the daemon to change ui, audit" in str(running.run("config", "reload").exception)
    running.write(collectors={"jobs": {**JOBS, "label": "new"}})
    assert "restart" not in running.run("config", "diff").stderr


def test_diff_prints_a_new_section_without_what_it_leaves_unset(running: Site) -> None:
    running.write(collectors={"jobs": JOBS}, access={"roles": {"cms": {"permissions": ["read"]}}})
    assert 'access.roles.cms: + {"permissions": ["read"]}\n' in running.run("config", "diff").stdout


def test_diff_prints_only_the_items_and_members_of_a_list_that_differ(running: Site) -> None:
    last = [{"name": "a"}, {"name": "b"}]
    rules = [{"name": "queue", "key": "QOS"}, {"name": "vo", "key": "Comment", "other": None}, {"name": "gone"}, *last]
    running.write(collectors={"jobs": {**JOBS, "rules": rules}})
    assert running.run("config", "reload").exit_code == 0
    rules = [{"name": "vo", "key": "Json", "other": None}, rules[0], {"name": "new", "x": None}, *reversed(last)]
    running.write(collectors={"jobs": {**JOBS, "rules": rules}})
    assert set(running.run("config", "diff").stdout.splitlines()[:-1]) in (
        {
            'collectors.jobs.rules: vo.key: "Comment" -> "Json"',
            'collectors.jobs.rules: + {"name": "new"}',
            'collectors.jobs.rules: - {"name": "gone"}',
            f"collectors.jobs.rules: {moved} moved",
        }
        for moved in ("a", "b")
    )
