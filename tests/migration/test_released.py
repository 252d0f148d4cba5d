"""Upgrades from version 0.1.0: a store and a spool as it left them, filled, and then used by this one.

A spool is migrated when it is opened. A store that was made before 1.0 is refused, and copied into a new one.

``released/0.1.0`` has their dumps, made by that version's own code; those of SQLite begin with pragmas that a dump
leaves out. Stores of later versions: ``test_since_1_0.py``.
"""

import gzip
import hashlib
import json
import logging
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from auditord.config.model import StoreSection
from auditord.database.migrations import BEFORE_1_0, Migrations, load_migrations, migrate
from auditord.errors import SchemaMismatch
from auditord.spool import Spool
from auditord.spool.spool import MIGRATIONS as SPOOL_MIGRATIONS
from auditord.store.copying import copy_store
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord.testing.daemon import running_daemon
from auditord_hookspecs import AggregateQuery, Insert, MetaValue, RecordQuery, Replace
from tests.contract.store.feeds import settled
from tests.postgres_server import PostgresServer, migrate_database

FOLDER = Path(__file__).parent / "released"
RELEASES = ["0.1.0"]
NOW = datetime(2026, 11, 22, tzinfo=UTC)

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("release", RELEASES)]


def dump(release: str, name: str) -> str:
    return gzip.decompress((FOLDER / release / f"{name}.sql.gz").read_bytes()).decode()


def load_file(release: str, name: str, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump(release, f"{name}.sqlite"))
        connection.execute("PRAGMA journal_mode = WAL")
    return path


def load_server(release: str, url: str) -> str:
    done = subprocess.run(
        ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", url],
        input=dump(release, "records.postgresql"), text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return url


@pytest.fixture
def documents(release: str, tmp_path: Path) -> Sequence[str]:
    """The wire texts of the records as that version had them, in the order of their ids."""
    with closing(sqlite3.connect(load_file(release, "records", tmp_path / "before/records.db"))) as connection:
        return [text for (text,) in connection.execute("SELECT document FROM records ORDER BY record_id")]


async def verify(store: RecordStore, documents: Sequence[str]) -> None:
    """All that 0.1.0 kept is there, and counts as it did."""
    async with store.stream(RecordQuery()) as pages:
        found = sorted(text.decode() for page in [page async for page in pages] for text in page)
    assert digest(found) == digest(sorted(documents))
    counts = await store.counts()
    assert (counts.total, counts.differences) == (202, 1)
    assert counts.per_value["site_id"] == {"site-0": 70, "site-1": 68, "site-2": 65}
    sums = await store.aggregate(AggregateQuery(by=(MetaValue("group_id"),)))
    assert {group.key[0]: group.records for group in sums.groups if group.key[0]} == counts.per_value["group_id"]
    [version] = await store.history("slurm-11")
    assert (version.reason, list(await store.deleted(["slurm-11"]))) == ("ticket 12", ["slurm-11"])
    await settled(store)
    assert {type(waiting.entry) for waiting in (await store.outbox(100)).entries} == {Insert, Replace}
    async with store.memory("apel", None) as memory:
        assert await memory.load() == {"site-0": {"2026-01": "hash"}}


def digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


class SilentProgress:
    """Watches a copy."""

    def progressed(self, phase: str, done: int, total: int) -> None:
        pass


async def copy(source: str, target: str) -> None:
    ends = StoreSection(url=source), StoreSection(url=target)
    await copy_store(*ends, resume=False, now=lambda: NOW, progress=SilentProgress())


async def run_command(folder: Path, store: str, *arguments: str) -> str:
    """Run a command as the manual's page on upgrading does, for a host that keeps its records in the store."""
    configuration = folder / "auditord.yml"
    configuration.write_text(json.dumps({"state_dir": str(folder / "state"), "store": {"url": store}}))
    command = [sys.executable, "-m", "auditord", "--config", str(configuration), *arguments]
    done = await anyio.run_process(command, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


REFUSED = "was made by a version of auditord before 1.0: `auditord database copy` copies records from version 0.1.0"


async def test_a_store_in_sqlite(release: str, tmp_path: Path, documents: Sequence[str]) -> None:
    path, target = load_file(release, "records", tmp_path / "records.db"), f"sqlite://{tmp_path / 'new.db'}"
    with pytest.raises(SchemaMismatch, match=REFUSED):
        async with open_store(f"sqlite://{path}", counted_keys=()):
            pass
    before = path.read_bytes()
    assert "202 records" in await run_command(tmp_path, target, "database", "copy", "--from", f"sqlite://{path}")
    assert path.read_bytes() == before
    for _ in range(2):
        async with open_store(target, counted_keys=("site_id", "group_id"), outbox=True) as store:
            await verify(store, documents)


async def test_a_store_in_postgresql(
    release: str, empty_postgres_url: str, postgres_server: PostgresServer, tmp_path: Path, documents: Sequence[str]
) -> None:
    url, target = load_server(release, empty_postgres_url), postgres_server.create()
    with pytest.raises(SchemaMismatch, match=REFUSED):
        async with open_store(url, counted_keys=()):
            pass
    with pytest.raises(SchemaMismatch, match=REFUSED):
        await anyio.to_thread.run_sync(migrate_database, url)
    await run_command(tmp_path, target, "database", "migrate")
    assert "202 records" in await run_command(tmp_path, target, "database", "copy", "--from", url)
    async with open_store(target, counted_keys=("site_id", "group_id"), outbox=True) as store:
        await verify(store, documents)
    postgres_server.drop(target)


async def test_development_versions_cannot_be_copied(release: str, tmp_path: Path) -> None:
    path = load_file(release, "records", tmp_path / "records.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(SchemaMismatch, match="the only earlier release"):
        await copy(f"sqlite://{path}", f"sqlite://{tmp_path / 'new.db'}")


async def test_a_spool(release: str, tmp_path: Path) -> None:
    load_file(release, "spool", tmp_path / "spool.db")
    async with Spool.opened(tmp_path, lambda: NOW) as spool:
        for sender in ("local", "elsewhere"):
            assert len(await spool.claim(sender, 10)) == 2
        assert await spool.checkpoint("slurm") == {"until": "2026-01-09T00:00:00Z"}
        assert await spool.seen("slurm", ["77", "78"]) == {"77"}
        assert await spool.pending("slurm") == {"9": {"first": 1}}
        assert [entry.source_id for entry in await spool.quarantine_list("slurm")] == ["77"]
        assert (await spool.statistics()).refused_bodies == 1
        assert (await spool.last_runs())["slurm"][0].skipped == {"never started": 4}
        async with spool.memory("remote_apel", None) as memory:
            assert await memory.load() == {"a": 1}


async def test_a_daemon_goes_on_where_that_version_ended(release: str, tmp_path: Path) -> None:
    load_file(release, "spool", tmp_path / "state/spool.db")
    old = load_file(release, "records", tmp_path / "old.db")
    await copy(f"sqlite://{old}", f"sqlite://{tmp_path / 'state/records.db'}")

    def run() -> int:
        with running_daemon(tmp_path, {}):
            pass  # which drains the queue
        with running_daemon(tmp_path, {}) as daemon:
            return len(daemon.records())

    assert await anyio.to_thread.run_sync(run) == 204


def test_that_version_would_refuse_what_this_one_leaves(release: str, tmp_path: Path) -> None:
    """By its own rule: the number of the schema is higher than it knows, or the application id another one."""
    path = load_file(release, "spool", tmp_path / "state/spool.db")
    with closing(sqlite3.connect(path)) as connection:
        before: int = connection.execute("PRAGMA user_version").fetchone()[0]
    with running_daemon(tmp_path, {}):
        pass
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] > before
    with closing(sqlite3.connect(tmp_path / "state/records.db")) as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] != BEFORE_1_0


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
    path = load_file(release, "spool", tmp_path / "spool.db")
    with closing(sqlite3.connect(path)) as connection:
        before = list(connection.iterdump())
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with closing(sqlite3.connect(path)) as connection:
        assert list(connection.iterdump()) == before


def test_a_migration_says_its_steps(release: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, known = load_file(release, "spool", tmp_path / "spool.db"), load_migrations(SPOOL_MIGRATIONS)
    caplog.set_level(logging.INFO)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, Migrations(known.application_id, known.scripts), path)
    steps = [record.getMessage() for record in caplog.records if "step to schema" in record.getMessage()]
    assert steps == [
        f"migrating {path}: step to schema {number} of {len(known.scripts)}"
        for number in range(3, len(known.scripts) + 1)
    ]
