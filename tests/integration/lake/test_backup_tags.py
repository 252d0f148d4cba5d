"""The snapshot of the lake that a backup needs stays as long as the backup, whichever daemon expires snapshots."""

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import anyio
import pytest

from auditord.config.loading import load
from auditord.hooks import load_hooks
from auditord.lake.opening import ConfiguredLake
from auditord.store.opening import open_store
from tests.integration.lake.host import Host

LATER = datetime.now(UTC) + timedelta(days=1)


class Daemon(Host):
    """A daemon whose lake is in a folder that it shares, with all its records released."""

    def __init__(self, folder: Path, name: str, lake: Path, store: str | None = None) -> None:
        folder.mkdir()
        super().__init__(folder, store=store, catalog=f"sqlite:///{lake}/catalog.db", warehouse=str(lake), name=name)
        self.place = folder / "backups"
        self.run("lake", "run")

    def opened(self) -> ConfiguredLake:
        return ConfiguredLake(load([self.config], load_hooks([], []).kinds, {}, lambda _: None))

    def back_up(self, keep: int = 9) -> Path:
        done = self.run("backup", str(self.place), "--keep", str(keep), "--output", "json")
        return Path(json.loads(done.stdout)["folder"])

    def change(self, record_id: str) -> None:
        """Take a record back and release it anew, so that the store needs another snapshot."""

        async def recall() -> None:
            async with open_store(f"sqlite://{self.folder / 'records.db'}", counted_keys=()) as store:
                with closing(self.opened()) as lake:
                    store.lake = lake
                    assert await store.recall([record_id]) == 1

        anyio.run(recall)
        self.run("lake", "run")

    def expire(self) -> None:
        """Expire all snapshots that no tag keeps."""
        with closing(self.opened()) as lake:
            lake.table.expire(LATER)

    def tags(self) -> Sequence[str]:
        """The last parts of the names of all."""
        with closing(self.opened()) as lake, lake.table.load() as table:
            return sorted(name.rpartition("/")[2] for name in table.metadata.refs if name != "main")

    def restore(self) -> str:
        """Lose the state folder's files, and restore the newest backup; returns what is printed."""
        for path in self.folder.glob("*.db*"):
            path.unlink()
        return self.run("restore", str(self.place)).output


@pytest.fixture(autouse=True)
def days(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each backup be of another day: of one second there is one alone."""
    passed = count()
    monkeypatch.setattr("auditord.cli.backup.utc_now", lambda: LATER + timedelta(days=next(passed)))


@pytest.fixture
def daemons(tmp_path: Path) -> tuple[Daemon, Daemon]:
    lake = tmp_path / "lake"
    lake.mkdir()
    return Daemon(tmp_path / "a", "kit", lake), Daemon(tmp_path / "b", "kit/b", lake)


def test_another_daemon_does_not_expire_what_a_backup_needs(daemons: tuple[Daemon, Daemon]) -> None:
    one, other = daemons
    one.back_up()
    one.change("job-3")
    other.expire()
    assert "has snapshot" not in one.restore()
    one.run("lake", "run")
    assert "90 of 90 released records were read back" in one.run("lake", "verify").output


def test_tags_go_with_their_backups(daemons: tuple[Daemon, Daemon]) -> None:
    one, other = daemons
    first, others = one.back_up(), other.back_up()
    assert one.tags() == sorted([first.name, others.name])
    one.change("job-3")
    second = one.back_up(keep=1)
    assert one.tags() == sorted([second.name, others.name])
    shutil.rmtree(others)
    third = other.back_up()
    assert one.tags() == sorted([second.name, third.name])


def test_a_backup_is_made_without_its_lake(daemons: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    one, other = daemons
    (tmp_path / "lake").rename(tmp_path / "away")
    made = one.back_up()
    (tmp_path / "away").rename(tmp_path / "lake")
    assert one.tags() == []
    one.back_up()
    assert made.name in one.tags()
    assert other.tags() == one.tags()


def test_a_database_server_is_asked_for_the_snapshot(tmp_path: Path, postgres_url: str) -> None:
    (tmp_path / "lake").mkdir()
    one = Daemon(tmp_path / "a", "kit", tmp_path / "lake", postgres_url)
    made = one.back_up()
    assert one.tags() == [made.name]


def test_a_restore_names_the_night_that_it_wants(daemons: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    one, other = daemons
    made = one.back_up()
    with closing(one.opened()) as lake:
        lake.table.tag("auditord-backup/", {})  # as another program may
    one.change("job-3")
    other.expire()
    printed = one.restore()
    night = f"{made.name[9:13]}-{made.name[13:15]}-{made.name[15:17]}"
    assert f"restore the lake's folder or bucket file://{tmp_path}/lake" in printed
    assert f"from their backup of the night of {night}" in printed
