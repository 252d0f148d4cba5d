"""The archive that a configuration names; its libraries are imported when it is first used."""

import asyncio
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from auditord.config.model import Configuration
from auditord.config.store_url import is_postgresql
from auditord.errors import ConfigurationError
from auditord.store import RecordStore
from auditord.store.archived import Archive, ArchivedRecord, ArchiveState, Counted, Days, Removal
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery

if TYPE_CHECKING:
    from auditord.archive.table import ArchiveTable

_SCHEMA: Final = "-csearch_path=auditord"
"""The schema in which `auditord database migrate` makes the catalog's tables."""


class ConfiguredArchive:
    """Implements :class:`auditord.store.archived.Archive` on the table of a configuration.

    Raises:
        ConfigurationError: of every method: the extra ``archive`` is not installed.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self.folder: Final = _folder(configuration)
        """The folder of the table's files."""

    @cached_property
    def table(self) -> "ArchiveTable":
        """The table."""
        made: ArchiveTable = _module("table").ArchiveTable(catalog_url(self._configuration), self.folder.as_uri())
        return made

    async def find(self, state: ArchiveState, wanted: Collection[Removal]) -> Sequence[ArchivedRecord]:
        """See :class:`Archive`."""
        return await (await self._loaded()).find(state, wanted)

    async def aggregate(self, counted: Counted, query: AggregateQuery, days: Days | None) -> Aggregates:
        """See :class:`Archive`."""
        return await (await self._loaded()).aggregate(counted, query, days)

    async def page(self, counted: Counted, query: RecordQuery, after: Record | None) -> Sequence[bytes]:
        """See :class:`Archive`."""
        return await (await self._loaded()).page(counted, query, after)

    def close(self) -> None:
        """Release the catalog, if it was used."""
        if "table" in vars(self):
            self.table.close()

    async def _loaded(self) -> Archive:
        """The reader; its libraries take a second to be imported, during which the daemon goes on."""
        return await asyncio.to_thread(lambda: self._reader)

    @cached_property
    def _reader(self) -> Archive:
        made: Archive = _module("reading").ArchiveReader(self.table)
        return made


@contextmanager
def archive_of(store: RecordStore, configuration: Configuration) -> Generator[ConfiguredArchive, None, None]:
    """Let a store read the archive that its configuration names."""
    archive = ConfiguredArchive(configuration)
    store.archive = archive
    try:
        yield archive
    finally:
        archive.close()


def catalog_url(configuration: Configuration) -> str:
    """SQLAlchemy's URL of the catalog; it may hold a password, and is never printed."""
    section, store = configuration.archive, configuration.store
    if section.catalog is not None:
        return str(section.catalog).replace("postgresql://", "postgresql+psycopg://", 1)
    file = _folder(configuration) / "catalog.db"
    if file.exists() or not is_postgresql(store.url):  # it is there where the store was in SQLite once
        return f"sqlite:///{file}"
    from auditord.database.postgres.address import address_of  # noqa: PLC0415 psycopg, where it is configured

    parameters = {name: str(value) for name, value in address_of(store).parameters().items()}
    parameters["options"] = f"{parameters.get('options', '')} {_SCHEMA}".strip()
    return f"postgresql+psycopg://?{urlencode(parameters)}"


def _folder(configuration: Configuration) -> Path:
    return configuration.archive.folder or configuration.state_dir / "archive"


def _module(name: str) -> Any:  # Any: a module
    try:
        return import_module(f"auditord.archive.{name}")
    except ImportError as error:
        raise ConfigurationError(
            f"archive: the library {error.name} is missing: pip install 'auditord[archive]'"
        ) from error
