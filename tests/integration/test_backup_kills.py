"""Backup and restore killed at any of their steps: nothing is lost or counts twice, no half backup is taken for one.

BACKUP_TEST_KILLS says how many kills each test makes, spread evenly over all steps.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from auditord.backup import NoBackup, found_backup
from auditord.backup.folders import backups
from auditord.backup.manifest import read_manifest, verify_files
from auditord.backup.unfinished import refuse_unfinished
from auditord.errors import StoreMismatch
from tests.backup_site import Site
from tests.killed_at_step import run_killed

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("BACKUP_TEST_KILLS", "4"))

SOURCE = 15
ALL = sorted(f"job-{number}" for number in range(1, SOURCE + 1))


class Killed:
    """A site that is the same before each kill."""

    def __init__(self, folder: Path) -> None:
        self._template = folder / "template"
        self.folder = folder / "site"
        self.prepared = Site(self._template, None)
        self._template.mkdir()

    def fresh(self) -> Site:
        """The site as it was prepared."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._template, self.folder)
        site = Site(self.folder, None)
        file = self.folder / "auditord.json"
        file.write_text(json.dumps({"state_dir": str(site.state), "store": {"url": site.url}}))
        return site

    def run(self, step: int, *words: str) -> int | None:
        return run_killed(step, "--config", str(self.folder / "auditord.json"), *words)

    def each_kill(self, *words: str) -> Iterator[Site]:
        """The site after each kill of a command, whose number of steps varies by some."""
        self.fresh()
        steps = self.run(0, *words)
        assert steps is not None
        assert steps > 50
        for kill in range(KILLS):
            site = self.fresh()
            step = 1 + kill * (steps - 1) // max(KILLS - 1, 1)
            while (ended := self.run(step, *words)) is not None:  # with fewer steps than that
                site = self.fresh()
                step = ended
            yield site


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    return Killed(tmp_path)


async def fill(site: Site) -> None:
    """Ten jobs collected, seven of them delivered, a backup, five more jobs; everything delivered."""
    await site.collect(10)
    await site.deliver(7)
    await site.backup()
    await site.collect(SOURCE)
    await site.deliver()


async def test_a_killed_backup_is_whole_or_none(killed: Killed) -> None:
    await killed.prepared.collect(10)
    await killed.prepared.deliver(7)
    place = str(killed.folder / "backups")
    for site in killed.each_kill("backup", place, "--keep", "1"):
        with suppress(NoBackup):
            folder = found_backup(site.place)
            verify_files(folder, read_manifest(folder))
        killed.run(0, "backup", place, "--keep", "1")
        [last] = backups(site.place)
        assert [path for path in site.place.iterdir() if path.is_dir()] == [last]
        site.lose_store()
        site.lose_spool()
        await site.restored()
        await site.collect(SOURCE)
        await site.deliver()
        assert await site.records() == ALL


def lose_both(site: Site) -> None:
    site.lose_store()
    site.lose_spool()


def lose_nothing(_site: Site) -> None:
    """Let the restore put aside what is there."""


@pytest.mark.parametrize(
    ("lose", "option"),
    [
        (lose_both, "--force"),
        (lose_nothing, "--force"),
        (Site.lose_store, "--continue"),
        (Site.lose_spool, "--continue"),
    ],
)
async def test_a_killed_restore_is_ended_by_the_next(killed: Killed, lose: Callable[[Site], None], option: str) -> None:
    await fill(killed.prepared)
    lose(killed.prepared)
    words = ("restore", str(killed.folder / "backups"), option)
    for site in killed.each_kill(*words):
        usable = await is_usable(site)
        if not usable:
            killed.run(0, *words)
            assert await is_usable(site)
        await site.collect(SOURCE)
        await site.deliver()
        assert await site.records() == ALL


async def is_usable(site: Site) -> bool:
    """Return whether a daemon would start, with something to start with."""
    if not (site.state / "records.db").exists() or not (site.state / "spool.db").exists():
        return False
    try:
        refuse_unfinished(site.state)
        async with site.opened():
            return True
    except StoreMismatch:
        return False
