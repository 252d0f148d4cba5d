"""``auditord init`` beside a real PostgreSQL: it says what is missing, and what it says is enough."""

import shlex
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from click.testing import CliRunner

from auditord.cli import auditord, init
from auditord.cli.init import ThisHost, find_postgresql
from tests.postgres_server import PostgresServer


class WithoutSlurm(ThisHost):
    """This host, where Slurm may be installed without being up."""

    def run(self, argv: Sequence[str]) -> str | None:
        return None if argv[0] in {"sacct", "scontrol"} else super().run(argv)


@pytest.fixture
def server(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Generator[PostgresServer, None, None]:
    """The server that libpq's programs find, without the database that init would have."""
    parts = urlsplit(postgres_server.url)
    monkeypatch.setenv("PGHOST", str(parts.hostname))
    monkeypatch.setenv("PGPORT", str(parts.port))
    monkeypatch.setattr(init, "ThisHost", WithoutSlurm)
    yield postgres_server
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS auditord WITH (FORCE)")


def test_its_commands_prepare_the_database_and_it_takes_it_then(server: PostgresServer, tmp_path: Path) -> None:
    found = find_postgresql(ThisHost())
    assert found is not None
    assert not found.is_ready
    for step in found.steps:
        words = shlex.split(step)
        statement = words[words.index("-c") + 1]
        subprocess.run(["psql", "-Xqd", server.url, "-c", statement], check=False, timeout=60)
    ready = find_postgresql(ThisHost())
    assert ready is not None
    assert (ready.is_ready, ready.steps) == (True, ())
    file = tmp_path / "a.yml"
    (tmp_path / "answers.yml").write_text(f"store: {ready.url}\n")
    CliRunner().invoke(auditord, ["init", "--yes", "--config", str(file)], catch_exceptions=False)
    assert f'url: "{ready.url}"' in file.read_text() or f"url: {ready.url}" in file.read_text()
    migrated = CliRunner().invoke(auditord, ["database", "migrate", "--config", str(file)])
    assert migrated.exit_code == 0, migrated.output
    assert (
        "the record store answers: 0 records"
        in CliRunner().invoke(auditord, ["config", "check", "--connect", "--config", str(file)]).output
    )
