"""The client for plain programs, over the standard library's ``http.client``.

It has neither a thread nor an event loop of its own: a call blocks the thread that makes it, as reading a file would,
and so it works in scripts, in threads and in notebooks, whose cells run inside a loop. In a coroutine, take
:class:`auditord.client.AsyncClient`. Each request has a connection of its own: no request can fall onto one that the
server is just closing, and threads may share a client.
"""

import http.client
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import urlsplit

from auditord.client import aggregates, exchange
from auditord.client.connection import RETRY_WAITS, TIMEOUT_SECONDS, Answer, Request, Server, Tls
from auditord.client.errors import (
    AnsweredError,
    ClientError,
    ConnectionFailed,
    CutAnswer,
    InvalidAnswer,
)
from auditord.client.framing import RecordFramer
from auditord.client.summing import Adder, records_for
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery

T = TypeVar("T")

_PIECE_BYTES: Final = 64 * 1024


class Client:
    """Talks to an auditord or an AUDITOR 0.11 server, blocking.

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
        self._context = self._server.tls.context() if self._server.url.startswith("https:") else None

    # -- reading ------------------------------------------------------------------------------------------------------

    @contextmanager
    def stream(self, query: RecordQuery | None = None) -> Generator[Iterator[Record], None, None]:
        """The matching records in the query's order (all of them without a query), with bounded memory.

        The answer has begun when the context is entered; a stream that is cut raises :class:`CutAnswer` out of the
        iteration, it never just ends. (AUDITOR's own server may end an answer in order when its database fails, which
        nobody can notice.)
        """
        request = exchange.listing(query or RecordQuery())
        connection, response = self._repeated(request, lambda: self._begin(request))
        with closing(connection), closing(response), closing(_records(response, self._server.url)) as records:
            yield records

    def get(self, record_id: str) -> Record | None:
        """One record, or None if there is none."""
        answer = self._exchange(exchange.reading(record_id))
        try:
            return exchange.read_record(answer)
        except AnsweredError as error:
            if not exchange.may_be_missing(error):
                raise
            return self._search(record_id, error)

    def _search(self, record_id: str, error: AnsweredError) -> Record | None:
        """Whether AUDITOR's 500 says that there is none: only then are its listing empty and its database well."""
        with self.stream(exchange.looking_for(record_id)) as records:
            for record in records:
                return record
        if self.health():
            return None
        raise error

    def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Sums over the matching records; whatever is cut or refused raises, so that no sum lacks a record.

        An auditord sums up by itself. AUDITOR has no sums: its records are streamed and added up here, in memory that
        is bounded by the groups. It is then one state of the records only as far as AUDITOR's stream is.
        """
        try:
            return aggregates.read_aggregates(self._asked(aggregates.asking(query)), query)
        except AnsweredError as error:
            if not aggregates.may_lack_sums(error):
                raise
        adder = Adder(query)
        with self.stream(records_for(query)) as records:
            for record in records:
                adder.add(record)
        return adder.answer()

    def _asked(self, request: Request) -> Answer:
        answer = self._exchange(request)
        exchange.check_status(answer)
        return answer

    def health(self) -> bool:
        """Whether the server says that it is well; False also if it does not answer."""
        try:
            exchange.check_status(self._exchange(exchange.HEALTH))
        except ClientError:
            return False
        return True

    # -- writing ------------------------------------------------------------------------------------------------------

    def add(self, record: Record) -> None:
        """Insert a record; it is durable when this returns.

        Raises:
            RecordExists: the id is taken.
            ConnectionFailed: it may have been stored (``sent``); add it again, then :class:`RecordExists` is success.
        """
        exchange.check_added(self._exchange(exchange.adding(record)))

    def add_all(self, records: Iterable[Record], *, max_bytes: int = exchange.MAX_BODY_BYTES) -> int:
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
            exchange.check_chunk_added(self._exchange(exchange.adding_chunk(chunk)), chunk)
            stored = chunk.stop
        return stored

    def update(self, record_id: str, stop_time: datetime) -> None:
        """Set the stop time of a record, open or not.

        Raises:
            UnknownRecord: there is no such record.
        """
        exchange.check_stopped(self._exchange(exchange.stopping(record_id, stop_time)))

    # -- one request --------------------------------------------------------------------------------------------------

    def _exchange(self, request: Request) -> Answer:
        def attempt() -> Answer:
            connection, response = self._send(request)
            with closing(connection), closing(response), self._faults(request):
                answer = Answer(self._name(request), response.status, response.read())
            exchange.check_passing(answer)
            return answer

        return self._repeated(request, attempt)

    def _begin(self, request: Request) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """An answer whose body is still to come."""
        connection, response = self._send(request)
        try:
            self._check_begun(request, response)
        except BaseException:
            response.close()
            connection.close()
            raise
        return connection, response

    def _check_begun(self, request: Request, response: http.client.HTTPResponse) -> None:
        if response.status != HTTPStatus.OK:
            with self._faults(request):
                exchange.check_status(Answer(self._name(request), response.status, response.read()))
        if not response.chunked and response.length is None:
            raise InvalidAnswer(f"{self._name(request)}: {exchange.ENDLESS}")

    def _send(self, request: Request) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connection()
        try:
            with self._connecting(request):
                connection.connect()
            with self._faults(request):
                body = {} if request.body is None else {"Content-Type": "application/json"}
                target = urlsplit(self._server.url).path + request.target
                headers = {**self._server.headers, **body, "Connection": "close"}
                connection.request(request.method, target, request.body, headers)
                return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._server.url)
        host = parts.hostname or ""
        if self._context is None:
            return http.client.HTTPConnection(host, parts.port, timeout=self._server.timeout)
        return http.client.HTTPSConnection(host, parts.port, timeout=self._server.timeout, context=self._context)

    def _repeated(self, request: Request, attempt: Callable[[], T]) -> T:
        for wait in self._server.retry_waits:
            try:
                return attempt()
            except ClientError as error:
                if not exchange.may_try_again(request, error):
                    raise
            time.sleep(wait)
        return attempt()

    def _name(self, request: Request) -> str:
        return f"{request.method} {self._server.url}{request.target}"

    @contextmanager
    def _connecting(self, request: Request) -> Generator[None, None, None]:
        try:
            yield
        except (OSError, ssl.SSLError) as error:
            raise ConnectionFailed(f"{self._name(request)}: cannot connect: {_words(error)}", sent=False) from error

    @contextmanager
    def _faults(self, request: Request) -> Generator[None, None, None]:
        name = self._name(request)
        try:
            yield
        except (http.client.RemoteDisconnected, http.client.IncompleteRead, OSError) as error:
            raise ConnectionFailed(f"{name}: {_words(error)}", sent=True) from error
        except http.client.HTTPException as error:
            raise InvalidAnswer(f"{name}: what answers does not speak HTTP: {_words(error)}") from error


def _records(response: http.client.HTTPResponse, url: str) -> Generator[Record, None, None]:
    framer = RecordFramer(url)
    for piece in _pieces(response, url):
        yield from framer.feed(piece)
    yield from framer.finish()


def _pieces(response: http.client.HTTPResponse, url: str) -> Generator[bytes, None, None]:
    # The length is counted here: http.client takes an end before it for the end.
    left = None if response.chunked else response.length
    try:
        while left != 0 and (piece := response.read1(_PIECE_BYTES)):
            yield piece
            left = None if left is None else left - len(piece)
    except (http.client.HTTPException, OSError) as error:
        raise CutAnswer(f"the answer of {url} was cut: {_words(error)}; ask again") from error
    if left:
        raise CutAnswer(f"the answer of {url} was cut {left} bytes before its end; ask again")


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
