"""The stores that the contract suite is run against: each factory opens the same records again at every call."""

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from auditord.store import RecordStore
from auditord.store.opening import open_store
from tests.contract.store.in_memory import MemoryDatabase, MemoryRecordStore

PLANNED = {"test_adding", "test_changing", "test_amending", "test_outbox"}
"""Modules about the plans of changes, which are also run without a database."""

COUNTED_KEYS = ("site_id", "group_id", "user_id", "project")


class StoreFactory(Protocol):
    def __call__(self, *, outbox: bool = False) -> AbstractAsyncContextManager[RecordStore]: ...


def sqlite_stores(folder: Path) -> StoreFactory:
    url = f"sqlite://{folder / 'records.db'}"
    return lambda *, outbox=False: open_store(url, counted_keys=COUNTED_KEYS, outbox=outbox)


def postgres_stores(new_url: Callable[[], str]) -> Callable[[Path], StoreFactory]:
    """A database of its own stands in for each folder."""
    urls: dict[Path, str] = {}

    def stores(folder: Path) -> StoreFactory:
        url = urls.setdefault(folder, new_url())
        return lambda *, outbox=False: open_store(url, counted_keys=COUNTED_KEYS, outbox=outbox)

    return stores


def memory_stores() -> Callable[[Path], StoreFactory]:
    """Tables of their own for each folder."""
    databases: defaultdict[Path, MemoryDatabase] = defaultdict(MemoryDatabase)

    def stores(folder: Path) -> StoreFactory:
        @asynccontextmanager
        async def opened(*, outbox: bool = False) -> AsyncGenerator[RecordStore, None]:
            yield MemoryRecordStore(databases[folder], COUNTED_KEYS, outbox=outbox)

        return opened

    return stores


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_factory" in metafunc.fixturenames:
        has_plans = metafunc.definition.path.stem in PLANNED
        needs_database = metafunc.definition.get_closest_marker("needs_database") is not None
        kinds = ["sqlite", "postgresql", *(["plan"] if has_plans and not needs_database else [])]
        metafunc.parametrize("store_factory", kinds, indirect=True)


@pytest.fixture
def store_factory(request: pytest.FixtureRequest) -> Callable[[Path], StoreFactory]:
    match request.param:
        case "sqlite":
            return sqlite_stores
        case "plan":
            return memory_stores()
        case _:
            return postgres_stores(request.getfixturevalue("new_postgres_url"))


@pytest.fixture
def stores(store_factory: Callable[[Path], StoreFactory], tmp_path: Path) -> StoreFactory:
    return store_factory(tmp_path)


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores() as opened:
        yield opened
