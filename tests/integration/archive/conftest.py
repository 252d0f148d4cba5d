"""A record store of either kind, with an archive in a folder of its own."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from auditord.archive.reading import ArchiveReader
from auditord.archive.table import ArchiveTable
from auditord.store import RecordStore
from auditord.store.opening import open_store


class Stores(Protocol):
    """Opens a record store and its archive in a folder, the same ones again at every call."""

    def __call__(self, folder: Path) -> AbstractAsyncContextManager[tuple[RecordStore, ArchiveTable]]: ...

    def url(self, folder: Path) -> str: ...


def table_in(folder: Path) -> ArchiveTable:
    return ArchiveTable(f"sqlite:///{folder}/catalog.db", f"file://{folder}/archive")


class OpenedStores:
    """Implements :class:`Stores`; the databases are SQLite files without a way to new PostgreSQL databases."""

    def __init__(self, new_url: Callable[[], str] | None) -> None:
        self._new_url = new_url
        self._urls: dict[Path, str] = {}

    def url(self, folder: Path) -> str:
        if folder not in self._urls:
            self._urls[folder] = f"sqlite://{folder / 'records.db'}" if self._new_url is None else self._new_url()
        return self._urls[folder]

    @asynccontextmanager
    async def __call__(self, folder: Path) -> AsyncGenerator[tuple[RecordStore, ArchiveTable], None]:
        table = table_in(folder)
        async with open_store(self.url(folder), counted_keys=("site_id",)) as store:
            store.archive = ArchiveReader(table)
            yield store, table
        table.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def stores(request: pytest.FixtureRequest) -> Stores:
    return OpenedStores(request.getfixturevalue("new_postgres_url") if request.param == "postgresql" else None)
