"""The clients of an auditord or an AUDITOR: :class:`AsyncClient` for coroutines, :class:`Client` for blocking programs.

For each call, :class:`Client` runs the asynchronous client in the event loop of a new thread. The call blocks only the
calling thread, so it works in scripts, in threads and in notebooks, whose cells run in an event loop. Nothing is kept
between calls, so threads may share a client.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from datetime import datetime
from http import HTTPStatus
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal

from auditord.client import aggregates, exchange
from auditord.client.aggregates import Adder, records_for
from auditord.client.exchange import (
    AnsweredError,
    BaseClient,
    Chunk,
    ClientError,
    ConnectionFailed,
    CutAnswer,
    Framer,
    InvalidAnswer,
    RecordFramer,
    TextFramer,
)
from auditord.client.http import open_client
from auditord.client.query_string import Source, aggregates_target, api_target, record_path, wire_target
from auditord.client.site_reports import PATH as SITE_REPORTS
from auditord.client.site_reports import ReportAnswer, SiteReport
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery, http
from auditord_hookspecs.query import IdEquals
from auditord_hookspecs.wire import encode_record

T = TypeVar("T")


class AsyncClient(BaseClient):
    """Talks to an auditord or an AUDITOR 0.11 server; use it with ``async with``.

    Its arguments are those of :class:`BaseClient`.

    Every method raises :class:`ClientError`: see :mod:`auditord.client.exchange`. Requests that are safe to repeat
    (reads, setting a stop time, and everything that the server cannot have seen) are retried first.
    """

    _opened: http.HttpClient | None = None

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        self._opened = await self._stack.enter_async_context(open_client(self._server.options))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened = None
        await self._stack.aclose()

    # -- reading ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def stream(
        self, query: RecordQuery | None = None, *, source: Source = "store"
    ) -> AsyncGenerator[AsyncIterator[Record], None]:
        """Stream the matching records in the query's order (default: all records), with bounded memory.

        Entering the context waits until the answer begins. If the stream is cut, the iteration raises
        :class:`CutAnswer` instead of ending early. (AUDITOR's own server may end an answer normally when its database
        fails; no client can detect that.)

        Args:
            query: selects and orders the records.
            source: the server's store, or its lake.
        """
        async with (
            self.stream_pieces(query, source=source) as pieces,
            aclosing(_objects(pieces, RecordFramer(self._server.url))) as records,
        ):
            yield records

    @asynccontextmanager
    async def stream_texts(self, query: RecordQuery | None = None) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """Stream the JSON texts of the matching records, for callers that skip invalid records."""
        async with (
            self.stream_pieces(query) as pieces,
            aclosing(_objects(pieces, TextFramer(self._server.url))) as texts,
        ):
            yield texts

    @asynccontextmanager
    async def stream_pieces(
        self, query: RecordQuery | None = None, *, source: Source = "store"
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """Stream chunks of the answer's body, for a :class:`auditord.client.exchange.Framer`."""
        wanted = query or RecordQuery()
        url = self._server.url + (wire_target(wanted) if source == "store" else api_target(wanted, source))
        async with AsyncExitStack() as stack:
            with _client_errors():
                answer = await stack.enter_async_context(self._http.stream("GET", url))
                if answer.headers.get("Transfer-Encoding") != "chunked" and "Content-Length" not in answer.headers:
                    raise InvalidAnswer(f"GET {url}: {exchange.ENDLESS}")
            async with aclosing(_pieces(answer, self._server.url)) as pieces:
                yield pieces

    async def get(self, record_id: str) -> Record | None:
        """Return one record, or None if it does not exist."""
        answer = await self._exchange("GET", record_path(record_id))
        try:
            return exchange.read_record(answer)
        except AnsweredError as error:
            if error.status != HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            # Check whether AUDITOR's 500 means a missing record: then a query finds nothing and the server is healthy.
            async with self.stream(RecordQuery(IdEquals(record_id))) as records:
                async for record in records:
                    return record
            if await self.health():
                return None
            raise

    async def aggregate(self, query: AggregateQuery, *, source: Source = "store") -> Aggregates:
        """Return sums over the matching records. A truncated or refused answer raises, so no sum lacks a record.

        An auditord server computes the sums. AUDITOR cannot: the client streams its records and adds them up, in memory
        that is bounded by the number of groups. These sums are only as consistent as AUDITOR's stream.

        Args:
            query: the sums to compute.
            source: the server's store, or its lake.
        """
        answer = await self._exchange("GET", aggregates_target(query, source))
        if answer.status != HTTPStatus.NOT_FOUND or source == "lake":
            exchange.check_status(answer)
            return aggregates.read_aggregates(answer, query)
        adder = Adder(query)
        async with self.stream(records_for(query)) as records:
            async for record in records:
                adder.add(record)
        return adder.answer()

    async def health(self) -> bool:
        """Return whether the server answers and reports that it is healthy."""
        try:
            exchange.check_status(await self._exchange("GET", "/health_check"))
        except ClientError:
            return False
        return True

    # -- writing ------------------------------------------------------------------------------------------------------

    async def add(self, record: Record) -> None:
        """Insert a record; it is durable when this returns.

        Raises:
            RecordExists: the id is taken.
            ConnectionFailed: it may have been stored if ``sent``: add it again; :class:`RecordExists` then is success.
        """
        exchange.check_added(await self._exchange("POST", "/record", encode_record(record)))

    async def add_all(self, records: Iterable[Record], *, max_bytes: int = exchange.MAX_BODY_BYTES) -> int:
        """Insert many records, in chunks that are all or nothing, and return their number.

        Args:
            records: sent in this order.
            max_bytes: the maximum size of a chunk. AUDITOR accepts 2 MiB, auditord accepts ``api.max_body``.

        Raises:
            RecordExists: an id is taken. Neither the chunk that the error names nor any later chunk is stored.
            ConnectionFailed: as :meth:`add`, for the chunk in flight.
        """
        stored = 0
        for chunk in exchange.chunks(records, max_bytes):
            await self.add_chunk(chunk)
            stored = chunk.stop
        return stored

    async def add_chunk(self, chunk: Chunk) -> None:
        """Insert one chunk of :meth:`add_all`."""
        exchange.check_chunk_added(await self._exchange("POST", "/records", chunk.body), chunk)

    async def update(self, record_id: str, stop_time: datetime) -> None:
        """Set the stop time of a record, open or not.

        Raises:
            UnknownRecord: there is no such record.
        """
        exchange.check_stopped(await self._exchange("PUT", "/record", exchange.stop_update(record_id, stop_time)))

    async def report_site(self, reporter: str, report: SiteReport) -> ReportAnswer:
        """Report the sums of this host's records to a hub, and return the comparison with the hub's records."""
        target = f"{SITE_REPORTS}/{quote(reporter, safe='')}"
        answer = await self._exchange("PUT", target, msgspec.json.encode(report))
        exchange.check_status(answer)
        try:
            return msgspec.json.decode(answer.body, type=ReportAnswer)
        except msgspec.DecodeError as error:
            raise InvalidAnswer(f"{answer.request} was answered without a comparison: {error}") from error

    async def _exchange(self, method: str, target: str, body: bytes | None = None) -> http.HttpAnswer:
        with _client_errors():
            return await self._http.request(method, self._server.url + target, body=body)

    @property
    def _http(self) -> http.HttpClient:
        if self._opened is None:
            raise RuntimeError("use an AsyncClient with `async with`")
        return self._opened


async def _pieces(answer: http.HttpStream, url: str) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in answer:
            yield piece
    except http.NoHttpAnswer as error:
        raise CutAnswer(f"the answer of {url} was cut off: {error}; ask again") from error


async def _objects(pieces: AsyncIterator[bytes], framer: Framer[T]) -> AsyncGenerator[T, None]:
    async for piece in pieces:
        for each in framer.feed(piece):
            yield each
    for each in framer.finish():
        yield each


@contextmanager
def _client_errors() -> Generator[None, None, None]:
    try:
        yield
    except http.HttpStatusError as error:
        exchange.check_status(error.answer)
    except http.NoHttpAnswer as error:
        raise ConnectionFailed(str(error), sent=error.sent) from error
    except http.HttpError as error:
        raise InvalidAnswer(str(error)) from error


class Client(BaseClient):
    """Talks to an auditord or an AUDITOR 0.11 server with blocking calls; takes the arguments of :class:`BaseClient`.

    Every method raises :class:`ClientError`: see :mod:`auditord.client.exchange`. Requests that are safe to repeat
    (reads, setting a stop time, and everything that the server cannot have seen) are retried first.
    """

    @contextmanager
    def stream(
        self, query: RecordQuery | None = None, *, source: Source = "store"
    ) -> Generator[Iterator[Record], None, None]:
        """Stream the matching records in the query's order; see :meth:`AsyncClient.stream`."""
        with (
            self._open() as (portal, client),
            portal.wrap_async_context_manager(client.stream_pieces(query, source=source)) as pieces,
        ):
            yield _records(portal, pieces, RecordFramer(self._server.url))

    def get(self, record_id: str) -> Record | None:
        """Return one record, or None if it does not exist."""
        return self._call(lambda client: client.get(record_id))

    def aggregate(self, query: AggregateQuery, *, source: Source = "store") -> Aggregates:
        """Return sums over the matching records; see :meth:`AsyncClient.aggregate`."""
        return self._call(lambda client: client.aggregate(query, source=source))

    def health(self) -> bool:
        """Return whether the server answers and reports that it is healthy."""
        return self._call(lambda client: client.health())

    def add(self, record: Record) -> None:
        """Insert a record; it is durable when this returns. See :meth:`AsyncClient.add`."""
        self._call(lambda client: client.add(record))

    def add_all(self, records: Iterable[Record], *, max_bytes: int = exchange.MAX_BODY_BYTES) -> int:
        """Insert many records, in chunks that are all or nothing. See :meth:`AsyncClient.add_all`."""
        stored = 0
        with self._open() as (portal, client):
            for chunk in exchange.chunks(records, max_bytes):  # in this thread, to which the records may be bound
                portal.call(client.add_chunk, chunk)
                stored = chunk.stop
        return stored

    def update(self, record_id: str, stop_time: datetime) -> None:
        """Set the stop time of a record, open or not. See :meth:`AsyncClient.update`."""
        self._call(lambda client: client.update(record_id, stop_time))

    def _call(self, act: Callable[[AsyncClient], Awaitable[T]]) -> T:
        with self._open() as (portal, client):
            return portal.call(act, client)

    @contextmanager
    def _open(self) -> Generator[tuple[BlockingPortal, AsyncClient], None, None]:
        server = self._server
        client = AsyncClient(
            server.url, tls=server.tls, token=server.token, timeout=server.timeout, retry_waits=server.retry_waits
        )
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(client):
            yield portal, client


def _records(portal: BlockingPortal, pieces: AsyncIterator[bytes], framer: RecordFramer) -> Iterator[Record]:
    while piece := portal.call(anext, pieces, b""):
        yield from framer.feed(piece)
    yield from framer.finish()
