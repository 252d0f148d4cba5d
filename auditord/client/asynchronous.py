"""The client for asynchronous programs, over aiohttp."""

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from datetime import datetime
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self, TypeVar

import aiohttp
from yarl import URL

from auditord.client import aggregates, exchange
from auditord.client.connection import RETRY_WAITS, TIMEOUT_SECONDS, Answer, Request, Server, Tls
from auditord.client.errors import (
    AnsweredError,
    ClientError,
    ConnectionFailed,
    CutAnswer,
    InvalidAnswer,
)
from auditord.client.framing import MAX_OBJECT_BYTES, Framer, RecordFramer, TextFramer
from auditord.client.summing import Adder, records_for
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery

T = TypeVar("T")

_KEEP_ALIVE_SECONDS: Final = 2.0
"""AUDITOR closes idle connections after five; a POST on one that is just being closed could not be repeated."""

_LARGE_BODY: Final = 64 * 1024
_LONGEST_EXCHANGE: Final = 4
"""How many time limits a complete answer may take; sending a body has no limit of its own in aiohttp."""


class AsyncClient:
    """Talks to an auditord or an AUDITOR 0.11 server; to be entered with ``async with``.

    Every method raises :class:`ClientError`: see :mod:`auditord.client.errors`. What may safely be repeated (reading,
    setting a stop time, and everything that the server cannot have seen) is tried again before it raises.

    Args:
        url: ``http://host:port`` or ``https://host:port``.
        tls: how the server is trusted and what we show it.
        token: sent as ``Authorization: Bearer …``.
        timeout: seconds without progress after which a request has failed.
        retry_waits: seconds before each further attempt.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: Tls | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        retry_waits: tuple[float, ...] = RETRY_WAITS,
    ) -> None:
        self._server = Server(url, tls or Tls(), token, timeout, retry_waits)
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._server.timeout, sock_read=self._server.timeout)
        secure = self._server.url.startswith("https:")
        connector = aiohttp.TCPConnector(
            ssl=self._server.tls.context() if secure else True, keepalive_timeout=_KEEP_ALIVE_SECONDS
        )
        headers = {**self._server.headers, "Accept-Encoding": "identity"}
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers, max_field_size=64 * 1024)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._session = None
        await self._stack.aclose()

    # -- reading ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def stream(self, query: RecordQuery | None = None) -> AsyncGenerator[AsyncIterator[Record], None]:
        """The matching records in the query's order (all of them without a query), with bounded memory.

        The answer has begun when the context is entered; a stream that is cut raises :class:`CutAnswer` out of the
        iteration, it never just ends. (AUDITOR's own server may end an answer in order when its database fails, which
        nobody can notice.)
        """
        async with self._stream(query or RecordQuery(), RecordFramer(self._server.url)) as records:
            yield records

    @asynccontextmanager
    async def stream_texts(self, query: RecordQuery | None = None) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """The same, as the texts that the server sends: for those who can go on behind a record that is not valid."""
        async with self._stream(query or RecordQuery(), TextFramer(self._server.url)) as texts:
            yield texts

    @asynccontextmanager
    async def _stream(self, query: RecordQuery, framer: Framer[T]) -> AsyncGenerator[AsyncIterator[T], None]:
        request = exchange.listing(query)
        async with AsyncExitStack() as stack:
            response = await self._repeated(request, lambda: self._begin(stack, request))
            async with aclosing(_objects(response, self._server.url, framer)) as objects:
                yield objects

    async def get(self, record_id: str) -> Record | None:
        """One record, or None if there is none."""
        request = exchange.reading(record_id)
        answer = await self._exchange(request)
        try:
            return exchange.read_record(answer)
        except AnsweredError as error:
            if not exchange.may_be_missing(error):
                raise
            return await self._search(record_id, error)

    async def _search(self, record_id: str, error: AnsweredError) -> Record | None:
        """Whether AUDITOR's 500 says that there is none: only then are its listing empty and its database well."""
        async with self.stream(exchange.looking_for(record_id)) as records:
            async for record in records:
                return record
        if await self.health():
            return None
        raise error

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Sums over the matching records; whatever is cut or refused raises, so that no sum lacks a record.

        An auditord sums up by itself. AUDITOR has no sums: its records are streamed and added up here, in memory that
        is bounded by the groups. It is then one state of the records only as far as AUDITOR's stream is.
        """
        try:
            return aggregates.read_aggregates(await self._asked(aggregates.asking(query)), query)
        except AnsweredError as error:
            if not aggregates.may_lack_sums(error):
                raise
        adder = Adder(query)
        async with self.stream(records_for(query)) as records:
            async for record in records:
                adder.add(record)
        return adder.answer()

    async def _asked(self, request: Request) -> Answer:
        answer = await self._exchange(request)
        exchange.check_status(answer)
        return answer

    async def health(self) -> bool:
        """Whether the server says that it is well; False also if it does not answer."""
        try:
            exchange.check_status(await self._exchange(exchange.HEALTH))
        except ClientError:
            return False
        return True

    # -- writing ------------------------------------------------------------------------------------------------------

    async def add(self, record: Record) -> None:
        """Insert a record; it is durable when this returns.

        Raises:
            RecordExists: the id is taken.
            ConnectionFailed: it may have been stored (``sent``); add it again, then :class:`RecordExists` is success.
        """
        exchange.check_added(await self._exchange(exchange.adding(record)))

    async def add_all(self, records: Iterable[Record], *, max_bytes: int = exchange.MAX_BODY_BYTES) -> int:
        """Insert many, in chunks that are all or nothing; returns how many.

        Args:
            records: in the order in which they are sent.
            max_bytes: of a chunk; AUDITOR takes 2 MiB, auditord as much as ``api.max_body`` says.

        Raises:
            RecordExists: an id is taken: the chunk it names is not stored, nor what follows.
            ConnectionFailed: as :meth:`add`, for the chunk under way.
        """
        stored = 0
        for chunk in exchange.chunks(records, max_bytes):
            exchange.check_chunk_added(await self._exchange(exchange.adding_chunk(chunk)), chunk)
            stored = chunk.stop
        return stored

    async def update(self, record_id: str, stop_time: datetime) -> None:
        """Set the stop time of a record, open or not.

        Raises:
            UnknownRecord: there is no such record.
        """
        exchange.check_stopped(await self._exchange(exchange.stopping(record_id, stop_time)))

    # -- one request --------------------------------------------------------------------------------------------------

    async def _exchange(self, request: Request) -> Answer:
        async def attempt() -> Answer:
            async with AsyncExitStack() as stack, asyncio.timeout(_LONGEST_EXCHANGE * self._server.timeout):
                response = await self._send(stack, request)
                with self._faults(request):
                    answer = Answer(self._name(request), response.status, await _whole(response))
            exchange.check_passing(answer)
            return answer

        return await self._repeated(request, attempt)

    async def _begin(self, stack: AsyncExitStack, request: Request) -> aiohttp.ClientResponse:
        """An answer whose body is still to come."""
        response = await self._send(stack, request)
        if response.status != HTTPStatus.OK:
            with self._faults(request):
                exchange.check_status(Answer(self._name(request), response.status, await _whole(response)))
        if response.headers.get("Transfer-Encoding", "").lower() != "chunked" and response.content_length is None:
            raise InvalidAnswer(f"{self._name(request)}: {exchange.ENDLESS}")
        return response

    async def _send(self, stack: AsyncExitStack, request: Request) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("an AsyncClient works inside of `async with`")
        headers = {} if request.body is None else {"Content-Type": "application/json"}
        url = URL(self._server.url + request.target, encoded=True)  # or yarl would rewrite brackets and %2F
        with self._faults(request):
            return await stack.enter_async_context(
                self._session.request(
                    request.method, url, data=_data(request.body), headers=headers, allow_redirects=False
                )
            )

    async def _repeated(self, request: Request, attempt: Callable[[], Awaitable[T]]) -> T:
        for wait in self._server.retry_waits:
            try:
                return await self._timed(request, attempt)
            except ClientError as error:
                if not exchange.may_try_again(request, error):
                    raise
            await asyncio.sleep(wait)
        return await self._timed(request, attempt)

    async def _timed(self, request: Request, attempt: Callable[[], Awaitable[T]]) -> T:
        with self._faults(request):
            return await attempt()

    def _name(self, request: Request) -> str:
        return f"{request.method} {self._server.url}{request.target}"

    @contextmanager
    def _faults(self, request: Request) -> Generator[None, None, None]:
        name = self._name(request)
        try:
            yield
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ConnectionFailed(f"{name}: cannot connect: {_words(error)}", sent=False) from error
        except aiohttp.ClientResponseError as error:
            raise InvalidAnswer(f"{name}: what answers does not speak HTTP: {error.message}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectionFailed(f"{name}: {_words(error)}", sent=True) from error


async def _objects(response: aiohttp.ClientResponse, url: str, framer: Framer[T]) -> AsyncGenerator[T, None]:
    try:
        async for piece in response.content.iter_any():
            for each in framer.feed(piece):
                yield each
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise CutAnswer(f"the answer of {url} was cut: {_words(error)}; ask again") from error
    for each in framer.finish():
        yield each


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_OBJECT_BYTES:
            raise InvalidAnswer(f"{response.method} {response.url}: the answer has more than {MAX_OBJECT_BYTES} bytes")
    return bytes(body)


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    # aiohttp writes large bytes in one go, which holds up everybody else, and warns of it.
    return io.BytesIO(body) if body is not None and len(body) > _LARGE_BODY else body


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
