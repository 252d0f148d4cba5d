"""A pytest plugin: a real PostgreSQL server for the tests, and a database of its own for each test that wants one.

The server is the one that ``AUDITORD_TEST_DATABASE_URL`` names (its user must be allowed to create databases), else one
that is made in a temporary folder with the system's ``initdb``, as an unprivileged user where the tests run as root.
Where neither is possible the tests skip and say why; with ``CI=true`` that is a failure.
"""

import asyncio
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Final
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from auditord.database.postgres.migrations import migrate
from auditord.database.sql_files import load_scripts
from auditord.store.postgres import MIGRATIONS
from tests.ports import free_port

_UNPRIVILEGED: Final = ("postgres", "nobody")

_FAST: Final = ("-F", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
"""Settings of a server that may lose its data, since these are of tests."""

_WITH_STRATEGY: Final = 150_000
"""The version of PostgreSQL since which CREATE DATABASE writes its copy into the log, unless it is given a strategy."""

_GIVEN_SERVER: Final = os.environ.get("AUDITORD_TEST_DATABASE_URL")  # each test takes it out of the environment

_GIVEN_PROGRAMS: Final = os.environ.get("POSTGRES_TEST_PROGRAMS")

_numbers = count(1)


class NoServer(Exception):
    """The reason for which there can be none."""


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server.

    Args:
        url: of a database whose user may create others.
    """

    url: str

    def database(self, name: str) -> str:
        """The URL of another database of the server."""
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def create(self, template: str | None = None) -> str:
        """The URL of a new database, empty or as another one."""
        name = f"auditord_test_{os.getpid()}_{next(_numbers)}"
        like = sql.SQL(" TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
        with psycopg.connect(self.url, autocommit=True) as connection:
            if connection.info.server_version >= _WITH_STRATEGY:
                like += sql.SQL(" STRATEGY FILE_COPY")  # half the work, where nothing waits for a disk
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)) + like)
        return self.database(name)

    def drop(self, url: str) -> None:
        """Delete a database, whoever is connected to it."""
        name = sql.Identifier(urlsplit(url).path[1:])
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


class OwnServer:
    """A server in a folder of its own, which can be stopped and started.

    Args:
        options: of ``postgres``; empty for one that keeps what it has committed.
        primary: the server that it follows; None for one that follows nobody.
    """

    def __init__(self, options: Sequence[str] = _FAST, primary: "OwnServer | None" = None) -> None:
        self._bin = programs()
        self._user = _server_user()
        self.folder = Path(mkdtemp(prefix="auditord-postgres-"))
        self.port = free_port()
        self._options = options
        if self._user:
            shutil.chown(self.folder, self._user)
        self.folder.chmod(0o755)
        if primary is None:
            self._run(
                "initdb", "-D", self._data, "-U", "auditord", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N"
            )
        else:
            # Its recovery settings (-R) are of the connection by which the copy was made.
            self._run("pg_basebackup", "-D", self._data, "-R", "-X", "stream", "-c", "fast", "-d", primary.url)

    @property
    def url(self) -> str:
        """Of a database whose user may do everything."""
        return f"postgresql://auditord@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The process that every other one of the server comes from."""
        return int(Path(self._data, "postmaster.pid").read_text().splitlines()[0])

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = ["-p", str(self.port), "-k", str(self.folder), "-c", "max_connections=200", *self._options]
        listen = "-c listen_addresses=127.0.0.1"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", self._data, "-l", log, "-w", "-t", "60", "-o", " ".join([*settings, listen]), "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it: ``immediate`` is a crash."""
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")

    def install(self, files: Mapping[str, str], rules: str) -> None:
        """Put files, which only the server may read, into its data folder, and say who may come in."""
        for name, text in {**files, "pg_hba.conf": rules}.items():
            path = self.folder / "data" / name
            path.write_text(text)
            path.chmod(0o600)
            if self._user:
                shutil.chown(path, self._user)

    def restart(self, *settings: str) -> None:
        """Stop it and start it with further settings."""
        self.stop("fast")
        self._options = (*self._options, *(word for setting in settings for word in ("-c", setting)))
        self.start()

    def remove(self) -> None:
        """Delete its folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        # pg_ctl's child would keep a pipe open, so the output goes to a file.
        with (self.folder.parent / f"{self.folder.name}.out").open("w+") as output:
            Path(output.name).unlink()
            command = [str(self._bin / program), *arguments]
            done = subprocess.run(
                command, user=self._user, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TZ": "UTC"}, timeout=120,
            )  # fmt: skip
            output.seek(0)
            assert done.returncode == 0, f"{' '.join(command)}: {output.read()}"


def programs() -> Path:
    """Return the folder of the server's programs: the newest of the system's, or ``POSTGRES_TEST_PROGRAMS``.

    Raises:
        NoServer: there are none.
    """
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    here = [*reversed(versions), *map(Path, os.environ.get("PATH", "").split(":")), Path("/usr/pgsql/bin")]
    for folder in [Path(_GIVEN_PROGRAMS)] if _GIVEN_PROGRAMS else here:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    raise NoServer("no initdb on this machine: install PostgreSQL (tests/services/pg-install)")


def _server_user() -> str | None:
    if os.getuid() != 0:
        return None
    for name in _UNPRIVILEGED:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise NoServer("PostgreSQL does not run as root, and there is no user postgres or nobody")


@contextmanager
def own_server(options: Sequence[str] = _FAST, primary: OwnServer | None = None) -> Generator[OwnServer, None, None]:
    """A running server of one's own, gone afterwards; see :class:`OwnServer`."""
    server = OwnServer(options, primary)
    try:
        server.start()
        yield server
        server.stop()
    finally:
        server.remove()


@contextmanager
def _some_server() -> Generator[PostgresServer, None, None]:
    if _GIVEN_SERVER:
        yield PostgresServer(_GIVEN_SERVER)
        return
    with own_server() as server:
        yield PostgresServer(server.url)


def _unless_there_is_one(error: NoServer) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"PostgreSQL is needed where CI=true: {error}")
    pytest.skip(str(error))


def migrate_database(url: str) -> None:
    """Migrate a database as ``auditord database migrate`` does."""

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await migrate(connection, load_scripts(MIGRATIONS), url, lambda: datetime.now(UTC))

    asyncio.run(work())


@pytest.fixture(scope="session")
def postgres_server() -> Generator[PostgresServer, None, None]:
    """A server for the whole session."""
    try:
        with _some_server() as server:
            yield server
    except NoServer as error:
        _unless_there_is_one(error)


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> Generator[str, None, None]:
    """The name of a migrated database without records."""
    url = postgres_server.create()
    migrate_database(url)
    yield urlsplit(url).path[1:]
    postgres_server.drop(url)


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Generator[str, None, None]:
    """A database that has not been migrated."""
    url = postgres_server.create()
    yield url
    postgres_server.drop(url)


@pytest.fixture
def new_postgres_url(
    postgres_server: PostgresServer, postgres_template: str
) -> Generator[Callable[[], str], None, None]:
    """Makes migrated databases; they are deleted after the test."""
    made: list[str] = []

    def make() -> str:
        made.append(postgres_server.create(postgres_template))
        return made[-1]

    yield make
    for url in made:
        postgres_server.drop(url)


@pytest.fixture
def postgres_url(new_postgres_url: Callable[[], str]) -> str:
    """A migrated database without records."""
    return new_postgres_url()
