"""Both clients as one, and the servers that they talk to."""

from collections.abc import Callable, Generator, Iterable
from datetime import datetime
from typing import Protocol

import anyio
import pytest

from auditord.client import AsyncClient, Client
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery
from tests.auditord_process import auditord_process
from tests.fake_auditor import FakeAuditor, fake_auditor

QUICK = {"timeout": 2.0, "retry_waits": (0.0, 0.0)}


class AnyClient(Protocol):
    """The methods of both clients, blocking."""

    def records(self, query: RecordQuery | None = None) -> list[Record]: ...
    def aggregate(self, query: AggregateQuery) -> Aggregates: ...
    def get(self, record_id: str) -> Record | None: ...
    def health(self) -> bool: ...
    def add(self, record: Record) -> None: ...
    def add_all(self, records: Iterable[Record]) -> int: ...
    def update(self, record_id: str, stop_time: datetime) -> None: ...


class SynchronousClient:
    """The synchronous client."""

    def __init__(self, url: str, timeout: float = 2.0, retry_waits: tuple[float, ...] = (0.0, 0.0)) -> None:
        self._client = Client(url, timeout=timeout, retry_waits=retry_waits)
        self.aggregate = self._client.aggregate
        self.get = self._client.get
        self.health = self._client.health
        self.add = self._client.add
        self.add_all = self._client.add_all
        self.update = self._client.update

    def records(self, query: RecordQuery | None = None) -> list[Record]:
        with self._client.stream(query) as records:
            return list(records)


class Asynchronous:
    """The asynchronous client, each call in a loop of its own."""

    def __init__(self, url: str, timeout: float = 2.0, retry_waits: tuple[float, ...] = (0.0, 0.0)) -> None:
        self._url = url
        self._timeout = timeout
        self._retry_waits = retry_waits

    def _make(self) -> AsyncClient:
        return AsyncClient(self._url, timeout=self._timeout, retry_waits=self._retry_waits)

    def records(self, query: RecordQuery | None = None) -> list[Record]:
        async def work() -> list[Record]:
            async with self._make() as client, client.stream(query) as records:
                return [record async for record in records]

        return anyio.run(work)

    def aggregate(self, query: AggregateQuery) -> Aggregates:
        async def work() -> Aggregates:
            async with self._make() as client:
                return await client.aggregate(query)

        return anyio.run(work)

    def get(self, record_id: str) -> Record | None:
        async def work() -> Record | None:
            async with self._make() as client:
                return await client.get(record_id)

        return anyio.run(work)

    def health(self) -> bool:
        async def work() -> bool:
            async with self._make() as client:
                return await client.health()

        return anyio.run(work)

    def add(self, record: Record) -> None:
        async def work() -> None:
            async with self._make() as client:
                await client.add(record)

        anyio.run(work)

    def add_all(self, records: Iterable[Record]) -> int:
        async def work() -> int:
            async with self._make() as client:
                return await client.add_all(records)

        return anyio.run(work)

    def update(self, record_id: str, stop_time: datetime) -> None:
        async def work() -> None:
            async with self._make() as client:
                await client.update(record_id, stop_time)

        anyio.run(work)


@pytest.fixture(params=[SynchronousClient, Asynchronous], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Callable[..., AnyClient]:
    """Makes a client for a URL."""
    make: Callable[..., AnyClient] = request.param
    return make


@pytest.fixture
def auditor() -> Generator[FakeAuditor, None, None]:
    """An AUDITOR."""
    with fake_auditor() as running:
        yield running


@pytest.fixture(scope="module")
def auditord(tmp_path_factory: pytest.TempPathFactory) -> Generator[str, None, None]:
    """The URL of an auditord that the tests of a module share."""
    with auditord_process(tmp_path_factory.mktemp("auditord")) as url:
        yield url
