"""Full-size measurements run only when they are asked for."""

from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from auditord.store import RecordStore
from auditord.store.opening import open_store
from tests.benchmark.measured import Place, Running, server
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
def durable_place(durable_server: OwnServer, tmp_path: Path) -> Generator[Place, None, None]:
    """A migrated database of that server, dropped afterwards."""
    with _place(durable_server, tmp_path) as place:
        yield place


@pytest.fixture(params=["sqlite", "postgresql"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place on either store."""
    if request.param == "sqlite":
        return Place(tmp_path, f"sqlite://{tmp_path / 'records.db'}")
    found: Place = request.getfixturevalue("durable_place")
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
    with _place(durable_server, tmp_path_factory.mktemp("small")) as place, server(place) as running:
        yield running


@contextmanager
def _place(database: OwnServer, folder: Path) -> Generator[Place, None, None]:
    databases = PostgresServer(database.url)
    url = databases.create()
    migrate_database(url)
    yield Place(folder, url, database.pid)
    databases.drop(url)
