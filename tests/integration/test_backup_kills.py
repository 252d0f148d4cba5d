"""Backup and restore killed at any of their steps: nothing is lost or counts twice, no half backup is taken for one.

BACKUP_TEST_KILLS says how many kills each test makes, spread evenly over all steps: 4 on files and 1 on PostgreSQL
without it.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from urllib.parse import urlsplit

import pytest

from auditord.backup.manifest import NoBackup, find_backup, read_backups, read_manifest, verify_files
from auditord.backup.notes import refuse_unfinished
from auditord.config.store_url import is_postgresql
from auditord.errors import SchemaMismatch, StoreMismatch
from tests.backup_site import Site
from tests.killed_at_step import run_killed
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = os.environ.get("BACKUP_TEST_KILLS")

SOURCE = 15
ALL = sorted(f"job-{number}" for number in range(1, SOURCE + 1))


class Killed:
    """A site that is the same before each kill.

    Args:
        folder: an empty one.
        server: the one that has the record stores; None: they are files.
        url: an empty record store on it.
    """

    def __init__(self, folder: Path, server: PostgresServer | None = None, url: str | None = None) -> None:
        self._template = folder / "template"
        self._server = server
        self._url: str | None = None
        self.folder = folder / "site"
        self.prepared = Site(self._template, url)
        self._template.mkdir()

    def fresh(self) -> Site:
        """The site as it was prepared."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._template, self.folder)
        site = Site(self.folder, self._fresh_database())
        file = self.folder / "auditord.json"
        file.write_text(json.dumps({"state_dir": str(site.state), "store": {"url": site.url}}))
        return site

    def _fresh_database(self) -> str | None:
        """The URL of a copy of the prepared one; the copy that was there before goes, with all who work on it."""
        self.clear()
        if self._server is not None:
            self._url = self._server.create(urlsplit(self.prepared.url).path[1:])
        return self._url

    def clear(self) -> None:
        """Remove the present site's database."""
        if self._server is not None and self._url is not None:
            self._server.drop(self._url)

    @property
    def dump(self) -> Sequence[str]:
        """The option that makes a backup whole."""
        return () if self._server is None else ("--dump",)

    def run(self, step: int, *words: str) -> int | None:
        return run_killed(step, "--config", str(self.folder / "auditord.json"), *words)

    def each_kill(self, *words: str) -> Iterator[Site]:
        """The site after each kill of a command, whose number of steps varies by some."""
        self.fresh()
        steps = self.run(0, *words)
        assert steps is not None
        assert steps > 50
        kills = int(KILLS or (4 if self._server is None else 1))
        for kill in range(kills):
            site = self.fresh()
            step = 1 + kill * (steps - 1) // (kills - 1) if kills > 1 else steps * 3 // 4
            while (ended := self.run(step, *words)) is not None:  # with fewer steps than that
                site = self.fresh()
                step = ended
            yield site


@pytest.fixture(params=["sqlite", "postgresql"])
def killed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Killed]:
    if request.param == "sqlite":
        yield Killed(tmp_path)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    killed = Killed(tmp_path, server, request.getfixturevalue("postgres_url"))
    yield killed
    killed.clear()


async def fill(site: Site) -> None:
    """Ten jobs collected, seven of them delivered, a backup, five more jobs; everything delivered."""
    await site.collect(10)
    await site.deliver(7)
    await site.backup()
    await site.collect(SOURCE)
    await site.deliver()


def wait_behind(folder: Path) -> None:
    """Let its second pass, in which another backup would be refused."""
    while f"auditord-{datetime.now(UTC):%Y%m%dT%H%M%SZ}" <= folder.name:
        sleep(0.02)


async def test_a_killed_backup_is_whole_or_none(killed: Killed) -> None:
    await killed.prepared.collect(10)
    await killed.prepared.deliver(7)
    words = ("backup", str(killed.folder / "backups"), "--keep", "1", *killed.dump)
    for site in killed.each_kill(*words):
        with suppress(NoBackup):
            folder = find_backup(site.place)
            verify_files(folder, read_manifest(folder))
            wait_behind(folder)
        killed.run(0, *words)
        [last] = read_backups(site.place)[0]
        assert [path for path in site.place.iterdir() if path.is_dir()] == [last]
        site.lose_store()
        site.lose_spool()
        await site.restore()
        await site.collect(SOURCE)
        await site.deliver()
        assert await site.records() == ALL


def lose_both(site: Site) -> None:
    site.lose_store()
    site.lose_spool()


def lose_nothing(_site: Site) -> None:
    """Let the restore put aside what is there."""


@pytest.mark.parametrize(
    ("lose", "options"),
    [
        (lose_both, ()),
        (lose_nothing, ("--force",)),
        (Site.lose_store, ()),
        (Site.lose_spool, ()),
    ],
)
async def test_a_killed_restore_is_ended_by_the_next(
    killed: Killed, lose: Callable[[Site], None], options: Sequence[str]
) -> None:
    await fill(killed.prepared)
    lose(killed.prepared)
    words = ("restore", str(killed.folder / "backups"), *options)
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
    parts = ["spool.db"] if is_postgresql(site.url) else ["spool.db", "records.db"]
    if not all((site.state / name).exists() for name in parts):
        return False
    try:
        refuse_unfinished(site.state)
        async with site.opened():
            return True
    except (StoreMismatch, SchemaMismatch):
        return False
