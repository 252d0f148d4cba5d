"""The schema of the record store: what migrations make equals what is there when the file is made anew."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pytest

from auditord.database.migrations import Migrations, load_migrations, migrate
from auditord.errors import SchemaMismatch
from auditord.store import Duplicates, Provenance
from auditord.store.sqlite import SqliteRecordStore
from auditord.store.sqlite.store import MIGRATIONS
from auditord_hookspecs import Record

START = datetime(2024, 1, 1, tzinfo=UTC)
KNOWN = load_migrations(MIGRATIONS)

COLOUR = "-- A migration that is still to come.\nALTER TABLE records ADD COLUMN colour TEXT DEFAULT 'grey';\n"


def schema(path: Path) -> list[tuple[str, str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    ).fetchall()
    connection.close()
    return rows


def make(path: Path, scripts: Sequence[str]) -> None:
    """A file as the version of auditord with these migrations leaves it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, Migrations(KNOWN.application_id, scripts), path)


async def put(path: Path, *ids: str) -> None:
    store = await SqliteRecordStore.open(path)
    for record_id in ids:
        await store.add(Record(record_id, START, ()), Provenance(START), Duplicates.SAME_RUN)
    await store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("version", range(1, len(KNOWN.scripts) + 1))
async def test_a_migrated_schema_equals_a_fresh_one(tmp_path: Path, version: int) -> None:
    old, fresh = tmp_path / "old.db", tmp_path / "fresh.db"
    make(old, KNOWN.scripts[:version])
    for path in (old, fresh):
        await (await SqliteRecordStore.open(path)).close()
    assert schema(old) == schema(fresh)
    assert schema(fresh)


@pytest.mark.anyio
async def test_a_later_migration_keeps_what_is_stored(tmp_path: Path) -> None:
    paths = [tmp_path / "old.db", tmp_path / "fresh.db"]
    await put(paths[0], "a", "b")
    for path in paths:
        make(path, [*KNOWN.scripts, COLOUR])
    assert schema(paths[0]) == schema(paths[1]) != []
    with closing(sqlite3.connect(paths[0])) as connection:
        found = connection.execute("SELECT record_id, colour FROM records ORDER BY record_id").fetchall()
        assert found == [("a", "grey"), ("b", "grey")]
        assert connection.execute("PRAGMA user_version").fetchone() == (len(KNOWN.scripts) + 1,)


@pytest.mark.anyio
async def test_a_later_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    await put(path, "a")
    before = schema(path)
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        make(path, [*KNOWN.scripts, COLOUR, "INSERT INTO nowhere VALUES (1);"])
    assert schema(path) == before
    await put(path, "b")


@pytest.mark.anyio
async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    make(path, KNOWN.scripts)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA user_version = {len(KNOWN.scripts) + 1}")
    connection.close()
    with pytest.raises(SchemaMismatch, match=r"records\.db has schema .*install the newer version again"):
        await SqliteRecordStore.open(path)
    with pytest.raises(SchemaMismatch, match=r"records\.db has schema"):
        SqliteRecordStore.open_read_only(path)


def test_every_migration_begins_with_a_word_to_the_administrator() -> None:
    files = [file for file in resources.files(MIGRATIONS).iterdir() if file.name.endswith(".sql")]
    assert all(file.read_text().startswith("-- ") for file in files)
