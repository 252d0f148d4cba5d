"""The schema of the record store: what migrations make equals what is there when the file is made anew."""

import sqlite3
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pytest

from auditord.database.migrations import Migrations, load_migrations, migrate
from auditord.errors import SchemaMismatch
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.rows import scores_text
from auditord.store.sqlite import SqliteRecordStore
from auditord.store.sqlite.store import MIGRATIONS
from auditord_hookspecs import Component, Record, Score
from auditord_hookspecs.wire import encode_record

START = datetime(2024, 1, 1, tzinfo=UTC)
KNOWN = load_migrations(MIGRATIONS)


def schema(path: Path) -> list[tuple[str, str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    ).fetchall()
    connection.close()
    return rows


def scored(record_id: str, value: float) -> Record:
    cores = Component("Ядра", 8, (Score("HEP/SCORE", value), Score("x", 1.0)))
    return Record(record_id, START, (cores, Component("Memory", 1, ())))


def make(path: Path, version: int) -> None:
    """A file as the version of auditord with so many migrations has left it."""
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, Migrations(KNOWN.application_id, KNOWN.scripts[:version]), path)
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
async def test_scores_of_old_records_are_shared_as_those_of_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    make(path, 2)
    old = [scored("a", 9.2), scored("b", 0.1), scored("c", 9.2), Record("d", START, ())]
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO sources VALUES (1, NULL, NULL)")
    columns = "record_id, start_time, content, received_at, source_id, document"
    insert = f"INSERT INTO records ({columns}) VALUES (?, 0, 0, 0, 1, ?)"  # noqa: S608 a literal
    connection.executemany(insert, [(record.record_id, encode_record(record).decode()) for record in old])
    connection.commit()
    store = await SqliteRecordStore.open(path)
    assert await store.add(scored("e", 0.1), Provenance(START), Duplicates.SAME_RUN) is Verdict.ADDED
    await store.close()
    numbers = dict(connection.execute("SELECT record_id, score_set FROM records").fetchall())
    texts = dict(connection.execute("SELECT score_set, scores FROM score_sets").fetchall())
    connection.close()
    assert texts[numbers["a"]] == scores_text(old[0].components)
    assert (numbers["a"], numbers["b"], numbers["d"]) == (numbers["c"], numbers["e"], None)
    assert len(texts) == 2


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
