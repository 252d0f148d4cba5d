"""Upgrades from each version since 1.0: a store and a spool as it left them, opened and used by this one.

``released/VERSION`` has the files, and the answers that they have to give. With the release of a version that has new
migrations, its code makes the next folder: ``python -m tests.migration.keep VERSION``.
"""

import gzip
import logging
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from auditord.database.migrations import Migrations, load_migrations, migrate
from auditord.spool import Spool
from auditord.spool.spool import MIGRATIONS as SPOOL_MIGRATIONS
from auditord.store import Duplicates, Verdict
from auditord_hookspecs import RecordUpdate
from tests.contract.store.feeds import settled
from tests.migration.keep import CLIENT, FOLDER, HOUR, START, answers, job, opened
from tests.postgres_server import migrate_database

RELEASES = sorted(path.name for path in FOLDER.iterdir() if (path / "answers.json").exists())

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("release", RELEASES)]


def unpacked(release: str, name: str) -> bytes:
    return gzip.decompress((FOLDER / release / f"{name}.gz").read_bytes())


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, release: str, tmp_path: Path) -> str:
    """A store as the release left it, migrated as an operator does it."""
    if request.param == "sqlite":
        (tmp_path / "records.db").write_bytes(unpacked(release, "records.db"))
        return f"sqlite://{tmp_path / 'records.db'}"
    url: str = request.getfixturevalue("empty_postgres_url")
    command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", url]
    done = subprocess.run(command, input=unpacked(release, "records.postgresql.sql"), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    migrate_database(url)
    return url


async def test_a_store_says_what_it_said_and_goes_on(release: str, url: str) -> None:
    expected: dict[str, Any] = msgspec.json.decode((FOLDER / release / "answers.json").read_bytes())  # Any: JSON
    async with opened(url) as store:
        assert await answers(store) == expected
        assert await store.add(job(0), CLIENT, Duplicates.SAME_RUN) is Verdict.SAME
        assert await store.add(job(99), CLIENT, Duplicates.SAME_RUN) is Verdict.ADDED
        assert await store.stop(RecordUpdate("slurm-1", (), START + 9 * HOUR), CLIENT)
        await settled(store)
        more = await answers(store)
    assert (len(more["records"]), more["counts"][0]) == (len(expected["records"]) + 1, expected["counts"][0] + 1)
    assert sorted(entry for entry in more["outbox"] if entry not in expected["outbox"]) == [
        ["Close", "slurm-1"],
        ["Insert", "slurm-99"],
    ]


async def test_a_spool_is_opened(release: str, tmp_path: Path) -> None:
    (tmp_path / "spool.db").write_bytes(unpacked(release, "spool.db"))
    async with Spool.opened(tmp_path, lambda: datetime(2026, 11, 22, tzinfo=UTC)) as spool:
        assert len(await spool.claim("local", 10)) == 2
        assert await spool.checkpoint("slurm") == {"until": "2026-01-09T00:00:00Z"}
        assert await spool.pending("slurm") == {"9": {"first": 1}}
        assert [entry.source_id for entry in await spool.quarantine_summaries("slurm")] == ["77"]
        assert await spool.find_seen("slurm", ["77", "78"]) == {"77"}
        assert (await spool.last_runs())["slurm"][0].skipped == {"never started": 4}
        async with spool.memory("remote_apel", None) as memory:
            assert await memory.load() == {"a": 1}


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from auditord.database import migrations
from auditord.database.migrations import Migrations, load_migrations, migrate
path, known = Path(sys.argv[1]), load_migrations("auditord.spool")
slow = "UPDATE queue SET record_id = record_id || ' ';\\n"
slow += "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
looks = iter(range(5))
def look(watch):
    if next(looks) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return False
migrations.Watch.__call__ = look
connection = sqlite3.connect(path, isolation_level=None)
migrate(connection, Migrations(known.application_id, [*known.scripts, slow + "SELECT count(*) FROM n;"]), path)
"""


def test_a_migration_that_is_killed_has_changed_nothing(release: str, tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    path.write_bytes(unpacked(release, "spool.db"))
    with closing(sqlite3.connect(path)) as connection:
        before = list(connection.iterdump())
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with closing(sqlite3.connect(path)) as connection:
        assert list(connection.iterdump()) == before


def test_a_migration_says_its_steps(release: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, known = tmp_path / "spool.db", load_migrations(SPOOL_MIGRATIONS)
    path.write_bytes(unpacked(release, "spool.db"))
    caplog.set_level(logging.INFO)
    scripts = [*known.scripts, "CREATE TABLE one (n);", "CREATE TABLE two (n);"]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, Migrations(known.application_id, scripts), path)
    steps = [record.getMessage() for record in caplog.records if "step to schema" in record.getMessage()]
    first = len(known.scripts) + 1
    assert steps == [f"migrating {path}: step to schema {number} of {first + 1}" for number in (first, first + 1)]
