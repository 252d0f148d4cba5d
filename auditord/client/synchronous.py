"""The client for plain programs: the asynchronous one, driven by an event loop in a thread for the time of each call.

A call blocks the thread that makes it, as reading a file would, and so it works in scripts, in threads and in
notebooks, whose cells run in an event loop. In a coroutine, take :class:`auditord.client.AsyncClient`. Nothing is kept
between calls, so that threads may share a client.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from auditord.client import exchange
from auditord.client.asynchronous import AsyncClient
from auditord.client.exchange import BaseClient, RecordFramer
from auditord.client.query_string import Source
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery

T = TypeVar("T")


class Client(BaseClient):
    """Talks to an auditord or an AUDITOR 0.11 server, blocking; its arguments are those of :class:`BaseClient`.

    Every method raises :class:`ClientError`: see :mod:`auditord.client.exchange`. What may safely be repeated (reading,
    setting a stop time, and everything that the server cannot have seen) is tried again before it raises.
    """

    @contextmanager
    def stream(
        self, query: RecordQuery | None = None, *, source: Source = "store"
    ) -> Generator[Iterator[Record], None, None]:
        """Stream the matching records in the query's order; see :meth:`AsyncClient.stream`."""
        with (
            self._opened() as (portal, client),
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
        """Return whether the server answers and reports to be healthy."""
        return self._call(lambda client: client.health())

    def add(self, record: Record) -> None:
        """Insert a record; it is durable when this returns. See :meth:`AsyncClient.add`."""
        self._call(lambda client: client.add(record))

    def add_all(self, records: Iterable[Record], *, max_bytes: int = exchange.MAX_BODY_BYTES) -> int:
        """Insert many, in chunks that are all or nothing; returns how many. See :meth:`AsyncClient.add_all`."""
        stored = 0
        with self._opened() as (portal, client):
            for chunk in exchange.chunks(records, max_bytes):  # here: the records may belong to this thread
                portal.call(client.add_chunk, chunk)
                stored = chunk.stop
        return stored

    def update(self, record_id: str, stop_time: datetime) -> None:
        """Set the stop time of a record, open or not. See :meth:`AsyncClient.update`."""
        self._call(lambda client: client.update(record_id, stop_time))

    def _call(self, act: Callable[[AsyncClient], Awaitable[T]]) -> T:
        with self._opened() as (portal, client):
            return portal.call(act, client)

    @contextmanager
    def _opened(self) -> Generator[tuple[BlockingPortal, AsyncClient], None, None]:
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
