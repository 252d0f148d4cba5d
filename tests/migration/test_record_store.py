"""The schema of the record store: what migrations make equals what is there when the file is made anew."""

import sqlite3
from importlib import resources
from pathlib import Path

import pytest

from auditord.database.migrations import Migrations, load_migrations, migrate
from auditord.errors import SchemaMismatch
from auditord.store.sqlite import SqliteRecordStore
from auditord.store.sqlite.store import MIGRATIONS

KNOWN = load_migrations(MIGRATIONS)


def schema(path: Path) -> list[tuple[str, str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    ).fetchall()
    connection.close()
    return rows


def make(path: Path, version: int) -> None:
    """A file as the version of auditord with so many migrations has left it."""
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, Migrations(KNOWN.application_id, KNOWN.scripts[:version]))
    connection.close()


@pytest.mark.anyio
@pytest.mark.parametrize("version", range(1, len(KNOWN.scripts) + 1))
async def test_a_migrated_schema_equals_a_fresh_one(tmp_path: Path, version: int) -> None:
    old, fresh = tmp_path / "old.db", tmp_path / "fresh.db"
    make(old, version)
    for path in (old, fresh):
        await (await SqliteRecordStore.open(path)).close()
    assert schema(old) == schema(fresh)
    assert schema(fresh)


@pytest.mark.anyio
async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    make(path, len(KNOWN.scripts))
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
