"""The plugin ``backup``: what it asks for, and the note of what was made."""

from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from auditord.backup.manifest import find_backup
from auditord.backup.notes import last_backups
from auditord.cli import auditord
from auditord.testing import FakePluginContext
from auditord.testing.daemon import running_daemon
from auditord_builtin.backup import BackupConfig, back_up


@pytest.mark.anyio
async def test_it_asks_for_what_is_configured() -> None:
    context = FakePluginContext()
    await back_up(BackupConfig(folder=Path("/b"), keep=3, rate=1000, dump=False), context)
    assert context.backed_up == [(Path("/b"), 3, 1000, False)]


@pytest.mark.anyio
async def test_a_dry_run_makes_none() -> None:
    context = FakePluginContext(dry_run=True)
    await back_up(BackupConfig(folder=Path("/b")), context)
    assert context.backed_up == []
    assert context.shown == ["would make a backup in /b and keep the newest 14"]


def test_a_folder_that_depends_on_the_start_is_refused() -> None:
    with pytest.raises(ValidationError, match="write an absolute path"):
        BackupConfig(folder=Path("b"))


def test_a_daemon_makes_one_and_says_how_old_it_is(tmp_path: Path) -> None:
    sections = {"plugins": {"nightly": {"kind": "backup", "folder": str(tmp_path / "b"), "run_at_start": True}}}
    with running_daemon(tmp_path, sections) as daemon:
        assert daemon.finish_run("nightly").error is None
        [last] = last_backups(daemon.state_dir).values()
        assert last.folder == str(find_backup(tmp_path / "b"))
        sample = f'auditord_backup_last_success_timestamp_seconds{{task="nightly"}} {last.made_at.timestamp()!r}'
        with urlopen(f"{daemon.url}/metrics") as answer:  # noqa: S310 our own
            names = [line.partition(" ")[0] for line in answer.read().decode().splitlines()]
        assert sample.partition(" ")[0] in names
    status = CliRunner().invoke(auditord, ["--config", str(tmp_path / "auditord.json"), "status"])
    assert "backup      nightly: as of" in status.output


def test_a_note_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "backups.json").write_text("{")
    assert last_backups(tmp_path) == {}
