"""The stores that the contract suite is run against: each factory opens the same records again at every call."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import pytest

from auditord.store import RecordStore
from auditord.store.opening import open_store

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


@pytest.fixture(params=["sqlite", "postgresql"])
def store_factory(request: pytest.FixtureRequest) -> Callable[[Path], StoreFactory]:
    if request.param == "sqlite":
        return sqlite_stores
    return postgres_stores(request.getfixturevalue("new_postgres_url"))


@pytest.fixture
def stores(store_factory: Callable[[Path], StoreFactory], tmp_path: Path) -> StoreFactory:
    return store_factory(tmp_path)


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores() as opened:
        yield opened
