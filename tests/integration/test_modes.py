"""Files that name people are not for everybody, whatever the umask of the process that makes them."""

import os
import stat
from collections.abc import Generator
from pathlib import Path

import pytest
from click.testing import CliRunner

from auditord.cli import auditord
from auditord.client import Client
from auditord.testing.daemon import running_daemon
from tests.integration.lake.host import RECORDS

DEEP = Path("srv/data")
"""Below this folder, nothing is there before the daemon starts."""


@pytest.fixture(autouse=True)
def open_umask() -> Generator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def command(folder: Path, *arguments: str) -> None:
    done = CliRunner().invoke(auditord, [*arguments, "--config", str(folder / "auditord.json")])
    assert done.exit_code == 0, done.output


def open_to_others(folder: Path) -> dict[str, str]:
    """The files and folders that other users, or all of a group, may do more with than the group may read."""
    found = {path: path.lstat().st_mode for path in folder.rglob("*")}
    return {
        str(path.relative_to(folder)): stat.filemode(mode)
        for path, mode in found.items()
        if mode & 0o027 and not stat.S_ISSOCK(mode)
    }


@pytest.mark.parametrize("inside", [True, False], ids=["below state_dir", "elsewhere"])
def test_nothing_that_the_daemon_makes_is_open_to_other_users(tmp_path: Path, *, inside: bool) -> None:
    state, data = tmp_path / "state", tmp_path / ("state" if inside else DEEP)
    sections = {
        "lake": {
            "enabled": True,
            "name": "kit",
            "warehouse": str(data / "of/lake"),
            "schedule": "0 0 1 1 *",
            "keep_months": 6,
        },
    }
    with running_daemon(tmp_path, sections) as daemon:
        Client(daemon.url).add_all(RECORDS)
        command(tmp_path, "lake", "run")
        daemon.get("/api/v1/aggregates?source=lake")
        command(tmp_path, "lake", "verify")
        command(tmp_path, "backup", str(data / "new/backups"))
    command(tmp_path, "restore", str(data / "new/backups"), "--force")
    names = {path.name for path in tmp_path.rglob("*")}
    assert {"catalog.db", "manifest.json", "lake-spill", "records.db"} <= names
    assert any(name.endswith(".parquet") for name in names)
    assert (open_to_others(state), open_to_others(data)) == ({}, {})
