"""A preview is of the file that is edited: dry runs, and comparisons with the running daemon."""

import json
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from auditord.cli import auditord
from auditord.cli import installation as installation_module
from auditord.hooks import HookEntry, HookModule, find_entries, load_hooks
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


def previewed(result: Result) -> list[str]:
    assert result.exit_code == 0, (result.output, result.exception)
    return [json.loads(line)["meta"]["label"][0] for line in result.stdout.splitlines()]


PERIOD = ("--from", "2026-01-01", "--dry-run")


def test_a_dry_run_without_a_daemon_leaves_nothing_behind(site: Site) -> None:
    site.write(collectors={"jobs": {**JOBS, "label": "wrong"}}, plugins={"monthly": MONTHLY})
    before = site.files()
    assert previewed(site.run("collect", "jobs", "--dry-run")) == ["wrong"] * 3
    assert "There is no" in str(site.run("trigger", "monthly", "--dry-run").exception)
    assert "no enabled collector or plugin 'nobody'; there are: jobs, monthly" in str(
        site.run("trigger", "nobody", "--dry-run").exception
    )
    assert (site.files(), site.state.exists()) == (before, False)


def test_a_remote_plugin_is_previewed_without_a_state_folder(site: Site) -> None:
    site.write(plugins={"there": {**MONTHLY, "source": {"url": "http://127.0.0.1:9/"}}})
    done = site.run("trigger", "there", "--dry-run")
    assert (done.exit_code, "cannot connect" in done.stderr, site.state.exists()) == (1, True, False)
