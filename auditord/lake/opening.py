"""The configured lake, whose libraries are imported on first use."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pydantic import SecretStr
from typing_extensions import override

from auditord.config.model import Configuration
from auditord.config.secrets import HiddenText
from auditord.database.durable_files import make_private_folder
from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.store.lake import (
    Days,
    LakeMiscounted,
    LakeOvertaken,
    LakeRecord,
    LakeState,
    Released,
    ReleasedRecords,
    ReleasedRow,
)
from auditord.store.store import RecordStore
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery

if TYPE_CHECKING:
    from auditord.lake.engines import Engine
    from auditord.lake.queries import LakeReader
    from auditord.lake.table import LakeTable


T = TypeVar("T")


class ConfiguredLake(ReleasedRecords):
    """The configured lake, from which a record store also reads its released records."""

    def __init__(self, configuration: Configuration, store: RecordStore | None = None) -> None:
        self._section = configuration.lake
        self._store = store if configuration.lake.name is not None else None
        self._state_dir = configuration.state_dir
        self._lock = Lock()
        self._made: LakeReader | None = None
        self._warehouse = self._section.warehouse or str(configuration.state_dir / "lake")

    @cached_property
    def table(self) -> "LakeTable":
        """The lake's table.

        Raises:
            ConfigurationError: the extra ``lake`` is not installed.
        """
        table: LakeTable = lake_module("table").LakeTable(self.catalog(), self.warehouse)
        return table

    @property
    def warehouse(self) -> str:
        """URL of the folder of the table's files."""
        return self._warehouse if "://" in self._warehouse else Path(self._warehouse).as_uri()

    @property
    def is_of_many(self) -> bool:
        """True if queries cover several daemons, whose records may have the same ids."""
        return self._section.scope == "all"

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums over the newest snapshot; see :meth:`auditord.lake.queries.LakeReader.aggregate`.

        Raises:
            ConfigurationError: the extra ``lake`` is not installed, or no daemon is chosen.
        """
        reader = await asyncio.to_thread(self._reader)  # importing the libraries takes a second
        return await self._ask(lambda released: reader.aggregate(query, released))

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """Yield pages of records of the newest snapshot; see :meth:`auditord.lake.queries.LakeReader.stream`."""
        reader = await asyncio.to_thread(self._reader)
        async with AsyncExitStack() as stack:
            yield await self._ask(lambda released: stack.enter_async_context(reader.stream(query, released)))

    async def _ask(self, ask: Callable[[Released], Awaitable[T]]) -> T:
        """Ask about the newest snapshot, and again if released records have changed after the store was asked."""
        released = await self._read_released()
        while True:
            try:
                return await ask(released)
            except (LakeMiscounted, LakeOvertaken):
                before, released = released, await self._read_released()
                if released == before:
                    raise

    async def _read_released(self) -> Released:
        with suppress(StoreUnavailable):  # the lake can be read without the store
            return Released() if self._store is None else await self._store.list_released()
        return Released()

    @override
    async def find(self, state: LakeState, wanted: Collection[ReleasedRow]) -> Sequence[LakeRecord]:
        return await (await asyncio.to_thread(self._reader)).find(state, wanted)

    @override
    async def sum_released(self, released: Released, query: AggregateQuery, days: Days | None) -> Aggregates:
        return await (await asyncio.to_thread(self._reader)).sum_released(released, query, days)

    @asynccontextmanager
    @override
    async def stream_released(
        self, released: Released, query: RecordQuery
    ) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        reader = await asyncio.to_thread(self._reader)
        async with reader.stream_released(released, query) as pages:
            yield pages

    def _reader(self) -> "LakeReader":
        section = self._section
        if section.scope == "own" and section.name is None:
            raise ConfigurationError("lake: say which records to read: set lake.name, or lake.scope: all")
        with self._lock:
            if self._made is not None:
                return self._made
            engine: Engine
            if section.spark is not None:
                engine = lake_module("spark_engine", "lake-spark").Spark(section.spark, _reveal(section.spark_token))
            elif section.trino is not None:
                secrets = _reveal(section.trino_password), _reveal(section.trino_token)
                engine = lake_module("trino_engine", "lake-trino").Trino(section.trino, *secrets)
            else:
                duckdb = lake_module("duckdb_engine")
                limits = duckdb.EngineLimits(section.memory, section.threads, self._state_dir / "lake-spill")
                engine = duckdb.DuckDb(limits)
            daemon = section.name if section.scope == "own" else None
            reader: LakeReader = lake_module("queries").LakeReader(self.table, daemon, engine, section.name)
            self._made = reader
            return reader

    def make_folder(self) -> None:
        """Create the warehouse folder, unless the warehouse is a URL."""
        if "://" not in self._warehouse:
            make_private_folder(Path(self._warehouse))

    def catalog(self) -> dict[str, str]:
        """Return the catalog properties for pyiceberg. Their secrets show as dots when they are printed."""
        section = self._section
        url = section.catalog or f"sqlite:///{self._warehouse}/catalog.db"
        scheme, _, rest = url.partition("://")
        if scheme == "postgresql":
            user, _, host = rest.rpartition("@")
            password = _reveal(section.password)
            login = user if password is None else f"{user}:{quote(password, safe='')}"
            url = HiddenText(f"postgresql+psycopg://{login}@{host}")
        properties = {
            "type": "rest" if url.startswith("http") else "sql",
            "uri": url,
            "warehouse": self.warehouse,
            "token": _reveal(section.token),
            "s3.endpoint": section.s3.endpoint,
            "s3.region": section.s3.region,
            "s3.access-key-id": section.s3.access_key_id,
            "s3.secret-access-key": _reveal(section.s3.secret_access_key),
        }
        return {name: value for name, value in properties.items() if value is not None}

    def close(self) -> None:
        """Wait for running queries, then close the catalog."""
        if self._made is not None:
            self._made.close()
        if "table" in vars(self):
            self.table.close()


@contextmanager
def lake_of(store: RecordStore, configuration: Configuration) -> Generator[ConfiguredLake, None, None]:
    """Yield the configured lake, and let the store read its released records from it."""
    lake = ConfiguredLake(configuration, store)
    store.lake = lake if configuration.lake.name is not None else None
    try:
        yield lake
    finally:
        lake.close()


def lake_module(name: str, extra: str = "lake") -> Any:  # Any: a module
    """Import a module of the lake that needs the libraries of an extra.

    Raises:
        ConfigurationError: a library is missing.
    """
    try:
        return import_module(f"auditord.lake.{name}")
    except ImportError as error:
        remedy = f"pip install 'auditord[{extra}]'"
        raise ConfigurationError(f"lake: the library {error.name} is missing: {remedy}") from error


def _reveal(secret: SecretStr | None) -> HiddenText | None:
    return None if secret is None else HiddenText(secret.get_secret_value())
