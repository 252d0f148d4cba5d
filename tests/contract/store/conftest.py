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


@pytest.fixture(params=[sqlite_stores], ids=["sqlite"])
def store_factory(request: pytest.FixtureRequest) -> Callable[[Path], StoreFactory]:
    factory: Callable[[Path], StoreFactory] = request.param
    return factory


@pytest.fixture
def stores(store_factory: Callable[[Path], StoreFactory], tmp_path: Path) -> StoreFactory:
    return store_factory(tmp_path)


@pytest.fixture
async def store(stores: StoreFactory) -> AsyncIterator[RecordStore]:
    async with stores() as opened:
        yield opened
