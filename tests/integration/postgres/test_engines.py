"""Servers and poolers that cannot keep the records are refused in one sentence, before anything is changed."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

import anyio
import psycopg
import pytest
from click.testing import CliRunner

from auditord.cli import auditord
from auditord.config.model import StoreSection
from auditord.database.postgres.faults import as_unavailable
from auditord.errors import SchemaMismatch
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.opening import open_store
from auditord.testing import make_record
from tests.ports import free_port

PROVENANCE: Final = Provenance(datetime(2026, 3, 1, tzinfo=UTC), "task:test")

VERSION: Final = """
CREATE FUNCTION public.version() RETURNS text LANGUAGE sql AS $$SELECT '{}'$$;
DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END$$
"""

CITUS: Final = """
CREATE TABLE public.pg_dist_partition (logicalrelid regclass);
INSERT INTO public.pg_dist_partition VALUES ('auditord.records')
"""

TIMESCALE: Final = """
CREATE SCHEMA timescaledb_information;
CREATE TABLE timescaledb_information.hypertables (hypertable_schema name, hypertable_name name);
INSERT INTO timescaledb_information.hypertables VALUES ('{}', 'records')
"""

pytestmark = pytest.mark.anyio


def change(url: str, script: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script.encode())


async def store_takes_a_record(url: str) -> bool:
    async with open_store(StoreSection(url=url), counted_keys=()) as store:
        return await store.add(make_record("one"), PROVENANCE, Duplicates.SAME_RUN) is Verdict.ADDED


def migrate(url: str, folder: Path) -> str:
    """The last line that ``auditord database migrate`` prints."""
    file = folder / "auditord.yml"
    file.write_text(f"state_dir: {folder}\nstore:\n  url: {url}\n")
    done = CliRunner().invoke(auditord, ["--config", str(file), "database", "migrate"])
    return f"{done.output}{done.exception}"


# What the version() of each says, after its documentation.
ENGINES: Final[Mapping[str, str]] = {
    "CockroachDB": "CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu, built 2024/05/15 21:28:29, go1.22.2)",
    "YugabyteDB": "PostgreSQL 15.2-YB-2025.1.0.0-b0 on x86_64-pc-linux-gnu, compiled by clang 17, 64-bit",
    "Greenplum": "PostgreSQL 14.4 (Greenplum Database 7.0.0) on x86_64-pc-linux-gnu",
}


@pytest.mark.parametrize("engine", ENGINES)
async def test_another_engine_is_refused_at_start(postgres_url: str, engine: str) -> None:
    assert await store_takes_a_record(postgres_url)
    change(postgres_url, VERSION.format(ENGINES[engine]))
    with pytest.raises(SchemaMismatch, match=f"is {engine}, which is not supported: keep the records in a plain"):
        await store_takes_a_record(postgres_url)


def test_another_engine_is_refused_before_tables_are_made(empty_postgres_url: str, tmp_path: Path) -> None:
    change(empty_postgres_url, VERSION.format(ENGINES["CockroachDB"]))
    assert "is CockroachDB, which is not supported" in migrate(empty_postgres_url, tmp_path)
    with psycopg.connect(empty_postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('auditord')").fetchone() == (None,)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding_is_refused(empty_postgres_url: str, tmp_path: Path, encoding: str) -> None:
    name = f"{encoding.lower()}_{os.getpid()}"
    change(empty_postgres_url, f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    url = urlsplit(empty_postgres_url)._replace(path=f"/{name}").geturl()
    try:
        assert f"has the encoding {encoding}, which cannot keep all names" in migrate(url, tmp_path)
        with pytest.raises(SchemaMismatch, match="createdb --encoding=UTF8"):
            anyio.run(store_takes_a_record, url)
    finally:
        change(empty_postgres_url, f"DROP DATABASE {name}")


async def test_tables_that_citus_distributes_are_refused(postgres_url: str) -> None:
    change(postgres_url, CITUS)
    with pytest.raises(
        SchemaMismatch, match=r"Citus distributes tables of auditord in .*, where sums would be inconsistent"
    ):
        await store_takes_a_record(postgres_url)
    change(postgres_url, "DELETE FROM pg_dist_partition")
    assert await store_takes_a_record(postgres_url)


@pytest.mark.parametrize("schema", ["auditord", "metrics"])
async def test_hypertables_are_refused_if_they_are_ours(postgres_url: str, schema: str) -> None:
    change(postgres_url, TIMESCALE.format(schema))
    if schema == "metrics":
        assert await store_takes_a_record(postgres_url)
    else:
        with pytest.raises(SchemaMismatch, match="are TimescaleDB hypertables"):
            await store_takes_a_record(postgres_url)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (psycopg.errors.InternalError_, "an internal error; look at its log, and check whether it is a plain"),
        (psycopg.errors.DataCorrupted, "reports damage"),
        (psycopg.errors.IndexCorrupted, "reports a damaged index"),
    ],
)
def test_an_internal_error_is_no_damage(error: type[psycopg.Error], advice: str) -> None:
    assert advice in str(as_unavailable(error("something"), "there"))


# -- PgBouncer, the real one ----------------------------------------------------------------------------------------


@contextmanager
def pooled(url: str, mode: str) -> Generator[str, None, None]:
    """A URL of the same database through a PgBouncer."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("no pgbouncer on this machine (tests/services/pg-install)")
    port = free_port()
    address = urlsplit(url)
    name = address.path[1:]
    password = f" password={address.password}" if address.password else ""
    settings = (
        f"[databases]\n{name} = host={address.hostname} port={address.port} user={address.username}{password}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = {mode}\n"
    )
    with TemporaryDirectory(prefix="auditord-pgbouncer-") as folder:
        file = Path(folder, "pgbouncer.ini")
        file.write_text(settings)
        Path(folder).chmod(0o755)
        user = "nobody" if os.getuid() == 0 else None  # it does not run as root
        with subprocess.Popen([program, "-q", str(file)], user=user, stderr=subprocess.DEVNULL) as process:
            try:
                wait_for(port, process)
                yield f"postgresql://{address.username}@127.0.0.1:{port}/{name}"
            finally:
                process.terminate()


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)
    raise AssertionError(f"pgbouncer ended with {process.returncode}")


async def test_a_pooler_in_session_mode_serves(postgres_url: str, tmp_path: Path) -> None:
    with pooled(postgres_url, "session") as url:
        assert "is up to date" in await anyio.to_thread.run_sync(migrate, url, tmp_path)
        assert await store_takes_a_record(url)


@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_pooler_that_shares_sessions_is_refused(postgres_url: str, mode: str) -> None:
    with (
        pooled(postgres_url, mode) as url,
        pytest.raises(
            SchemaMismatch, match=r"pool_mode=session for this database there, or point store\.url to the server itself"
        ),
    ):
        await store_takes_a_record(url)


def test_a_migration_through_a_pooler_that_shares_sessions_is_refused(empty_postgres_url: str, tmp_path: Path) -> None:
    with pooled(empty_postgres_url, "transaction") as url:
        assert "A pooler in transaction mode in front of" in migrate(url, tmp_path)
