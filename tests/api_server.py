"""The HTTP server in the test's own process, over a real store and a real spool that can be made to fail."""

import asyncio
import io
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry

from auditord.config.model import ApiSection
from auditord.duplicates import Duplicates
from auditord.errors import StoreUnavailable
from auditord.ingest import Ingest
from auditord.spool import Spool
from auditord.store import Provenance, Verdict
from auditord.store.opening import open_store
from auditord.store.store import RecordStore
from auditord.web.access.authorisation import Authorisation
from auditord.web.api.lake_source import Lake
from auditord.web.server import serve
from auditord_hookspecs import AggregateQuery, Aggregates, Entry, Record, RecordQuery, RecordUpdate
from auditord_hookspecs.entries import Encoded

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
AWAY = StoreUnavailable("no space left on device, see to /srv")

Pages = AsyncIterator[Sequence[bytes]]


@dataclass
class Faults:
    """The faults from now on."""

    store: StoreUnavailable | None = None
    spool: StoreUnavailable | None = None
    after_pages: int | None = None
    stores_left: int | None = None
    """So many more calls that store succeed."""
    endless: bool = False
    """An answer's first page comes again and again."""
    pages_given: int = 0
    streams_left: int = 0
    held: Callable[[], Awaitable[None]] | None = None
    """All reading waits for it first."""


class FaultyStore:
    """A record store that fails on demand."""

    def __init__(self, store: RecordStore, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def __getattr__(self, name: str) -> Any:  # Any: the store's methods
        return getattr(self._store, name)

    async def get(self, record_id: str) -> bytes | None:
        self._fail()
        return await self._store.get(record_id)

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        self._fail()
        await self._hold()
        return await self._store.aggregate(query)

    async def check(self) -> None:
        self._fail()
        await self._store.check()

    async def stop(self, update: RecordUpdate, provenance: Provenance) -> bool:
        self._fail()
        return await self._store.stop(update, provenance)

    async def documents(self, record_ids: Sequence[str]) -> Mapping[str, bytes]:
        self._fail()
        return await self._store.documents(record_ids)

    async def add(
        self, record: Record, provenance: Provenance, duplicates: Duplicates, encoded: Encoded | None = None
    ) -> Verdict:
        self._fail()
        return await self._store.add(record, provenance, duplicates, encoded)

    async def add_all(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates, *, atomic: bool
    ) -> Sequence[Verdict]:
        self._fail()
        if self._faults.stores_left is not None:
            self._faults.stores_left -= 1
            if self._faults.stores_left < 0:
                raise AWAY
        return await self._store.add_all(records, provenance, duplicates, atomic=atomic)

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[Pages, None]:
        self._fail()
        await self._hold()
        try:
            async with self._store.stream(query) as pages:
                yield self._some(pages)
        finally:
            self._faults.streams_left += 1

    async def _some(self, pages: Pages) -> Pages:
        given = 0
        async for page in pages:
            if given == self._faults.after_pages:
                raise AWAY
            given += 1
            yield page
            while self._faults.endless:
                self._faults.pages_given += 1
                yield page

    def _fail(self) -> None:
        if self._faults.store is not None:
            raise self._faults.store

    async def _hold(self) -> None:
        if self._faults.held is not None:
            await self._faults.held()


class FaultySpool:
    """A spool that fails on demand."""

    def __init__(self, spool: Spool, faults: Faults) -> None:
        self._spool = spool
        self._faults = faults

    def __getattr__(self, name: str) -> Any:  # Any: the spool's methods
        return getattr(self._spool, name)

    async def accept(self, entries: Sequence[Entry], provenance: Provenance, destinations: Sequence[str]) -> None:
        if self._faults.spool is not None:
            raise self._faults.spool
        await self._spool.accept(entries, provenance, destinations)


@dataclass(frozen=True)
class Answer:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # Any: JSON
        return msgspec.json.decode(self.body)

    @property
    def lines(self) -> list[Any]:  # Any: JSON
        assert self.body.endswith(b"\n") or not self.body
        return [msgspec.json.decode(line) for line in self.body.splitlines()]

    @property
    def problem(self) -> Any:  # Any: JSON
        assert self.headers["Content-Type"] == "application/problem+json", self.body
        assert self.json["status"] == self.status
        return self.json


@dataclass
class Api:
    """A running server and a client of it."""

    session: aiohttp.ClientSession
    store: RecordStore
    spool: Spool
    registry: CollectorRegistry
    faults: Faults = field(default_factory=Faults)
    url: str = ""

    async def ask(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; a body that is no bytes goes as JSON."""
        sent = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        data = None if sent is None else io.BytesIO(sent)  # aiohttp warns of large bytes
        named = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers
        async with asyncio.timeout(30), self.session.request(method, encoded(target), data=data, headers=named) as got:
            return Answer(got.status, got.headers, await got.read())

    async def get(self, target: str, **headers: str) -> Answer:
        return await self.ask("GET", target, headers=headers)

    async def post(self, records: object, content_type: str = "application/json") -> Answer:
        return await self.ask("POST", "/api/v1/records", records, {"Content-Type": content_type})

    async def ids(self, query: str) -> list[str]:
        """The ids of one page."""
        answer = await self.get(f"/api/v1/records?{query}")
        assert answer.status == 200, answer.body
        return [record["record_id"] for record in answer.json["records"]]


def encoded(target: str) -> Any:  # Any: yarl's URL, which aiohttp does not export
    """A target that goes out as it is."""
    from yarl import URL  # noqa: PLC0415 comes with aiohttp

    return URL(target, encoded=True)


@asynccontextmanager
async def api_server(
    folder: Path,
    *,
    duplicates: Duplicates = Duplicates.SAME_RUN,
    max_body: int = 1 << 20,
    destinations: Sequence[str] = ("local",),
    authorisation: Authorisation | None = None,
    store_url: str | None = None,
    now: Callable[[], datetime] = lambda: NOW,
    listen: object = "127.0.0.1:0",
    client_tls: ssl.SSLContext | bool = True,
    options: Mapping[str, object] | None = None,
    lake: Lake | None = None,
) -> AsyncGenerator[Api, None]:
    """Serve an empty store in a folder."""
    faults, registry = Faults(), CollectorRegistry()
    section = ApiSection.model_validate(
        {"listen": [listen], "max_body": max_body, "duplicates": duplicates, **(options or {})}
    )
    faulty: Any = FaultyStore  # Any: it passes on what it does not do itself
    spooling: Any = FaultySpool  # Any: the same
    async with (
        open_store(store_url or f"sqlite:///{folder}/records.db", counted_keys=("site_id",)) as store,
        Spool.opened(folder, now) as spool,
        serve(
            section,
            Ingest(
                faulty(store, faults),
                spooling(spool, faults),
                destinations,
                queue_updates=section.updates_while_away == "queue",
            ),
            registry=registry,
            now=now,
            grace=timedelta(seconds=5),
            authorisation=authorisation,
            lake=lake,
        ) as (url,),
        aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(ssl=client_tls)) as session,
    ):
        yield Api(session, store, spool, registry, faults, url)


def record(record_id: str, **members: object) -> dict[str, object]:
    """A record as JSON."""
    by_default: dict[str, object] = {
        "record_id": record_id,
        "components": [{"name": "Cores", "amount": 8, "scores": [{"name": "HEPscore23", "value": 12.5}]}],
        "start_time": "2026-01-01T00:00:00Z",
        "stop_time": "2026-01-01T01:00:00Z",
        "meta": {"site_id": ["A"]},
    }
    return by_default | members
