"""The schema in PostgreSQL: what migrations make one after the other equals what a new database gets."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import resources

import anyio
import psycopg
import pytest

from auditord.database.postgres import migrations
from auditord.database.sql_files import Script, load_scripts
from auditord.errors import DaemonsConnected, SchemaMismatch
from auditord.store import Duplicates, Provenance
from auditord.store.opening import open_store, open_store_for_reading
from auditord.store.postgres import MIGRATIONS
from auditord_hookspecs import Record
from tests.postgres_server import PostgresServer, migrate_database

SCRIPTS = load_scripts(MIGRATIONS)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
COLOUR = Script(len(SCRIPTS) + 1, "colour", "ALTER TABLE auditord.records ADD COLUMN colour text DEFAULT 'grey'")
"""A migration that is still to come."""

pytestmark = pytest.mark.anyio

_SCHEMA = """
SELECT 'column', table_name, ordinal_position::text, column_name, data_type || ' ' || is_nullable
    || coalesce(collation_name, '') || coalesce(column_default, '') || is_identity
FROM information_schema.columns WHERE table_schema = 'auditord'
UNION ALL
SELECT 'index', tablename, '', indexname, indexdef FROM pg_indexes WHERE schemaname = 'auditord'
UNION ALL
SELECT 'constraint', conrelid::regclass::text, '', conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'auditord')
ORDER BY 1, 2, 3, 4
"""


def schema(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(_SCHEMA).fetchall()


async def migrate(url: str, scripts: list[Script], *, end_sessions: bool = False) -> list[str]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        done = await migrations.migrate(connection, scripts, url, lambda: NOW, end_sessions=end_sessions)
        return [script.name for script in done]


@pytest.mark.parametrize("version", range(1, len(SCRIPTS) + 1))
async def test_a_migrated_schema_equals_a_fresh_one(
    postgres_server: PostgresServer, empty_postgres_url: str, postgres_template: str, version: int
) -> None:
    assert await migrate(empty_postgres_url, list(SCRIPTS[:version])) == [script.name for script in SCRIPTS[:version]]
    assert await migrate(empty_postgres_url, list(SCRIPTS)) == [script.name for script in SCRIPTS[version:]]
    found = schema(empty_postgres_url)
    assert found == schema(postgres_server.database(postgres_template))
    assert len(found) > 30


async def test_a_later_migration_keeps_what_is_stored(postgres_url: str, empty_postgres_url: str) -> None:
    async with open_store(postgres_url, counted_keys=()) as store:
        await store.add(Record("a", NOW, ()), Provenance(NOW), Duplicates.SAME_RUN)
    assert await migrate(postgres_url, [*SCRIPTS, COLOUR]) == ["colour"]
    assert await migrate(empty_postgres_url, [*SCRIPTS, COLOUR]) == [*(script.name for script in SCRIPTS), "colour"]
    assert schema(postgres_url) == schema(empty_postgres_url)
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT record_id, colour FROM auditord.records").fetchall() == [("a", "grey")]


async def test_a_database_that_lacks_a_later_migration_is_refused(postgres_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
        with pytest.raises(SchemaMismatch, match=rf"has schema {len(SCRIPTS)}, this version .* database migrate"):
            await migrations.require_current(connection, [*SCRIPTS, COLOUR], postgres_url)


async def test_nothing_is_migrated_while_a_daemon_is_connected(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditord.database.postgres.migrations._PATIENCE", 0.2)
    with psycopg.connect(postgres_url, application_name="auditord") as daemon:
        daemon.execute("SELECT 1")
        with pytest.raises(DaemonsConnected, match="stop those daemons first"):
            await migrate(postgres_url, [*SCRIPTS, COLOUR])
        assert await migrate(postgres_url, [*SCRIPTS, COLOUR], end_sessions=True) == ["colour"]
        with pytest.raises(psycopg.OperationalError):
            daemon.execute("SELECT 1")


async def test_migrations_at_the_same_time_take_turns(empty_postgres_url: str) -> None:
    done = await asyncio.gather(*(migrate(empty_postgres_url, list(SCRIPTS)) for _ in range(4)))
    assert sorted(done) == [[], [], [], [script.name for script in SCRIPTS]]


async def test_a_migration_that_fails_leaves_nothing_behind(empty_postgres_url: str) -> None:
    broken = Script(len(SCRIPTS) + 2, "broken", "CREATE TABLE auditord.half (); SELECT 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        await migrate(empty_postgres_url, [*SCRIPTS, COLOUR, broken])
    assert schema(empty_postgres_url) == []


async def test_an_end_within_a_step_ends_it_in_the_server(postgres_url: str) -> None:
    sleep = Script(len(SCRIPTS) + 1, "sleep", "SELECT pg_sleep(600)")
    query = "SELECT count(*) FROM pg_stat_activity WHERE query = %s AND state = 'active'"
    async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as look:

        async def wait_for(number: int) -> None:
            while await (await look.execute(query, (sleep.sql,))).fetchone() != (number,):  # noqa: ASYNC110 the server's
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as group:
            group.start_soon(migrate, postgres_url, [*SCRIPTS, sleep])
            await wait_for(1)
            group.cancel_scope.cancel()
        await wait_for(0)
        found = await (await look.execute("SELECT count(*) FROM auditord.migrations")).fetchone()
    assert found == (len(SCRIPTS),)


async def test_the_printed_script_does_the_same(empty_postgres_url: str, postgres_url: str) -> None:
    command = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", empty_postgres_url]
    await anyio.run_process(command, input=migrations.as_script(SCRIPTS).encode())
    assert schema(empty_postgres_url) == schema(postgres_url)
    assert await migrate(empty_postgres_url, list(SCRIPTS)) == []


async def open_and_leave(url: str) -> None:
    async with open_store(url, counted_keys=()):
        pass


async def test_a_database_without_tables_is_refused(empty_postgres_url: str) -> None:
    for attempt in (open_and_leave(empty_postgres_url), _read(empty_postgres_url)):
        with pytest.raises(SchemaMismatch, match=r"has no tables yet: run `auditord database migrate`"):
            await attempt


async def test_a_newer_schema_is_refused(new_postgres_url: Callable[[], str]) -> None:
    url = new_postgres_url()
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO auditord.migrations VALUES (%s, 'later', now())", (len(SCRIPTS) + 1,))
    for attempt in (open_and_leave(url), _read(url), migrate(url, list(SCRIPTS))):
        with pytest.raises(SchemaMismatch, match=r"has schema \d+, .*install the newer version again"):
            await attempt


async def _read(url: str) -> None:
    async with open_store_for_reading(url):
        pass


async def test_migrating_twice_changes_nothing(postgres_url: str) -> None:
    before = schema(postgres_url)
    await asyncio.to_thread(migrate_database, postgres_url)
    assert schema(postgres_url) == before


def test_every_migration_begins_with_a_word_to_the_administrator() -> None:
    files = [file for file in resources.files(MIGRATIONS).iterdir() if file.name.endswith(".sql")]
    assert all(file.read_text().startswith("-- ") for file in files)
