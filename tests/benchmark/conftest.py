"""Full-size measurements run only when they are asked for."""

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from tests.benchmark.measured import Location, Running, server
from tests.postgres_server import NoServer, OwnServer, PostgresServer, migrate_database, own_server

DURABLE = ("-c", "shared_buffers=1GB", "-c", "max_wal_size=8GB", "-c", "checkpoint_timeout=30min")


@pytest.fixture(scope="session")
def durable_server() -> Generator[OwnServer, None, None]:
    """A server that keeps what it has committed."""
    try:
        with own_server(DURABLE) as server:
            yield server
    except NoServer as error:
        pytest.skip(str(error))


@pytest.fixture
def durable_location(durable_server: OwnServer, tmp_path: Path) -> Generator[Location, None, None]:
    """A migrated database of that server, dropped afterwards."""
    with _location(durable_server, tmp_path) as location:
        yield location


@pytest.fixture(params=["sqlite", "postgresql"])
def any_location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A location on either store."""
    if request.param == "sqlite":
        return Location(tmp_path, f"sqlite://{tmp_path / 'records.db'}")
    found: Location = request.getfixturevalue("durable_location")
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty store of each kind."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path_factory.mktemp('records') / 'records.db'}"
    made: str = request.getfixturevalue("postgres_url")
    return made


@pytest.fixture
async def store(url: str) -> AsyncGenerator[RecordStore, None]:
    """The same, open."""
    async with open_store(url, counted_keys=()) as opened:
        yield opened


@pytest.fixture(scope="session")
def running_small(
    durable_server: OwnServer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Running, None, None]:
    """A server over such a database, shared by all that looks whether a measurement works."""
    with _location(durable_server, tmp_path_factory.mktemp("small")) as location, server(location) as running:
        yield running


@contextmanager
def _location(database: OwnServer, folder: Path) -> Generator[Location, None, None]:
    databases = PostgresServer(database.url)
    url = databases.create()
    migrate_database(url)
    yield Location(folder, url, database.pid)
    databases.drop(url)
