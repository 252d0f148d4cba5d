"""Streamed answers, and limits for each principal: memory for bodies, places for answers, disk space, requests.

No principal gets more than half of any resource; a request that needs more waits. While it waits, its body is not read,
so that TCP holds the client back. An upload that waits too long is cut off instead of answered with 429 or 503, because
the released clients take any answer to a POST for success.

A streamed answer is the result of one query as of its start. It holds a place and, with PostgreSQL, one of a few
connections. If the client stalls, the rest of the result is written to a temporary file without a name, and place and
connection become free. The client does not notice: the file continues the same result, so nothing is missing,
duplicated or newer than the rest. (A new query after the last record would not be exact: a record that is closed
meanwhile moves in the order of stop times.)
"""

import asyncio
import logging
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing
from errno import ENOSPC
from io import FileIO
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter

from auditord.errors import StoreUnavailable
from auditord.web.answers import SERVER
from auditord.web.bodies import DEMAND, Demand, most_unpacked
from auditord.web.dispatch import Abort, Handler
from auditord.web.places import MOST_REMEMBERED, ReadingPlaces, Shares, hold_in_time
from auditord.web.requests import client_key

UPLOAD_PATIENCE: Final = 300.0
"""Seconds that an upload may wait for its turn before it is cut off."""


class RateLimit:
    """A limit of requests per second for each principal.

    Args:
        rate: requests per second, also the size of a burst.
        clock: monotonic seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._next: OrderedDict[str, float] = OrderedDict()

    def delay(self, who: str) -> float:
        """Count a request and return the seconds that it must wait."""
        now = self._clock()
        due = max(self._next.pop(who, 0.0), now - 1.0)
        self._next[who] = due + 1.0 / self._rate
        if len(self._next) > MOST_REMEMBERED:
            self._next.popitem(last=False)
        return max(0.0, due - now)


class Uploads(msgspec.Struct, frozen=True):
    """The memory for request bodies.

    Args:
        memory: the bytes for all bodies.
        max_body: the most bytes of a body, assumed if its size is unknown.
    """

    memory: Shares
    max_body: int

    def size(self, request: web.BaseRequest) -> int:
        """Return the most bytes that the decompressed body may take."""
        if request.content_length is None:
            return self.max_body
        if "Content-Encoding" in request.headers:
            return most_unpacked(request.content_length, self.max_body)
        return min(request.content_length, self.max_body)


def limit_uploads(handler: Handler, uploads: Uploads, rate: RateLimit | None, weight: int = 1) -> Handler:
    """Wrap a handler so that requests wait for the rate limit, if any, and unread or compressed bodies for memory.

    Args:
        handler: the handler to wrap.
        uploads: the memory for bodies.
        rate: the rate limit, if any.
        weight: the factor by which the size of a body counts.
    """

    async def waiting(request: web.BaseRequest) -> web.StreamResponse:
        who = client_key(request)
        if rate is not None and (delay := rate.delay(who)):
            if delay > UPLOAD_PATIENCE:
                raise Abort("too_busy", "more requests than api.requests_per_second allows; the client was cut off")
            await asyncio.sleep(delay)
        if request.content.is_eof() and "Content-Encoding" not in request.headers:
            return await handler(request)
        late = Abort("too_busy", "other bodies used up api.max_uploads for too long; the client was cut off")
        async with hold_in_time(uploads.memory, who, weight * uploads.size(request), UPLOAD_PATIENCE, late):
            request[DEMAND] = Demand(lambda: uploads.memory.is_wanted(who))
            return await handler(request)

    return waiting


log = logging.getLogger(__name__)

STALL_SECONDS: Final = 5.0
"""A client that reads nothing for this long has stalled."""

WANTED_SECONDS: Final = 10.0
"""A client that has been waited for this long in total counts as stalled while others wait for its place."""

_LEAST_FREE: Final = 1 << 30
"""Bytes to leave free on the disk, because the spool is on it too."""

_SHORT: Final = 48 * 1024
"""A first chunk of at most this many bytes is most likely the last, because full chunks are larger. An empty transport
accepts as many bytes without pausing."""

_WRITTEN_AT_ONCE: Final = 1 << 20
_READ_AT_ONCE: Final = 128 * 1024

Chunks: TypeAlias = AsyncIterator[Sequence[bytes]]
"""Parts of an answer, such as the pages of rows that a store reads at a time."""


class StreamedAnswers(msgspec.Struct, frozen=True):
    """Sends streamed answers, which share places and disk space.

    Args:
        places: the places for answers that read the store.
        room: bytes on the disk for the rest of stalled answers.
        folder: the folder for temporary files; None for the system's.
    """

    places: ReadingPlaces
    room: Shares
    folder: Path | None = None

    async def send(
        self, request: web.BaseRequest, opened: AbstractAsyncContextManager[Chunks], content_type: str
    ) -> web.StreamResponse:
        """Send chunks as they arrive, with at most one chunk and one buffer in memory.

        Headers are sent with the first chunk, so a failing query can still be answered with an error. A later error
        cuts the connection, because a truncated answer must never look complete. A short answer is sent in one piece.
        The query occupies the store until ``opened`` is left.

        Raises:
            StoreUnavailable: there is no first chunk; nothing was sent.
            Abort: the store failed later, or there is no disk space for a stalled answer.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.places.one(client_key(request)))
            return await self._send(request, stack, opened, {"Content-Type": content_type})

    async def send_held(
        self, request: web.BaseRequest, opened: AbstractAsyncContextManager[Chunks], headers: Mapping[str, str]
    ) -> web.StreamResponse:
        """Send chunks that already hold a place while they are open."""
        async with AsyncExitStack() as stack:
            return await self._send(request, stack, opened, headers)

    async def _send(
        self,
        request: web.BaseRequest,
        stack: AsyncExitStack,
        opened: AbstractAsyncContextManager[Chunks],
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        chunks = await stack.enter_async_context(opened)
        first, is_all = await _next(chunks), False
        if sum(map(len, first)) <= _SHORT:
            more = await _next(chunks)
            first, is_all = [*first, *more], not more
        response = web.StreamResponse(headers={**headers, "Server": SERVER})
        writer = await response.prepare(request)
        if is_all and request.transport is not None and not request.transport.get_write_buffer_size():
            await response.write_eof(b"".join(first))  # with the head, in one piece
            return response
        client = _Client(request, writer, self.places)
        try:
            chunk = first
            while chunk:
                if not await client.take(b"".join(chunk)):
                    with closing(_Spilled(self.room, self.folder, client.who)) as rest:
                        await rest.fill(chunks)
                        if rest.is_whole:
                            await stack.aclose()  # frees the place and the connection for others
                        await rest.send(client)
                chunk = await _next(chunks)
            await response.write_eof()
        except StoreUnavailable as error:
            text = f"the record store failed in the middle of an answer ({error}); the client must try again"
            raise Abort("store_failed", text) from error
        return response


async def _next(chunks: Chunks) -> Sequence[bytes]:
    """Return the next chunk that is not empty; an empty one at the end."""
    async for chunk in chunks:
        if chunk:
            return chunk
    return []


class _Client:
    """Writes an answer to its client and measures how fast it reads."""

    def __init__(self, request: web.BaseRequest, writer: AbstractStreamWriter | None, places: ReadingPlaces) -> None:
        self.who = client_key(request)
        self._writer = writer if isinstance(writer, StreamWriter) else None
        self._protocol = request.protocol
        self._places = places
        self._clock = asyncio.get_running_loop().time
        self._waited = 0.0
        self._draining: asyncio.Task[None] | None = None

    async def take(self, data: bytes) -> bool:
        """Write data; return False if the client has stalled, or is slow while others wait for its place."""
        await self._write(data)
        if not self._protocol.writing_paused:
            return True
        started = self._clock()
        if not await self._has_read():
            return False
        self._waited += self._clock() - started
        return self._waited < WANTED_SECONDS or not self._places.is_wanted(self.who)

    async def take_in_time(self, data: bytes, *, holding: bool) -> None:
        """Write data and wait until the client has read most of it. Its connection cuts it off if it never reads.

        Raises:
            Abort: the client holds a place, and others wait for it.
        """
        await self._write(data)
        while not await self._has_read():
            if holding and self._places.is_wanted(self.who):
                raise Abort("stalled", "a client does not read its answer, no room is left for it, and others wait")

    async def _write(self, data: bytes) -> None:
        if self._writer is None:
            raise ConnectionResetError("the client left before it was answered")
        await self._writer.write(data, drain=False)

    async def _has_read(self) -> bool:
        """Return whether the client reads most of the written bytes within :data:`STALL_SECONDS`."""
        if self._draining is None:
            if self._writer is None or not self._protocol.writing_paused:
                return True
            # Never cancelled, because all waits of a connection share one future.
            self._draining = asyncio.create_task(self._writer.drain())
            self._draining.add_done_callback(_retrieve_error)
        done, _ = await asyncio.wait({self._draining}, timeout=STALL_SECONDS)
        for task in done:
            self._draining = None
            task.result()
        return bool(done)


def _retrieve_error(task: "asyncio.Task[None]") -> None:
    """Mark the error of a task as retrieved, because it may no longer have a waiter."""
    if not task.cancelled():
        task.exception()


class _Spilled:
    """The rest of an answer in a file, as far as there is room on the disk.

    Args:
        room: bytes on the disk.
        who: the principal for whom the bytes count.
    """

    def __init__(self, room: Shares, folder: Path | None, who: str) -> None:
        self.is_whole = False
        self._room, self._folder, self._who = room, folder, who
        self._file: FileIO | None = None
        self._taken = self._size = 0
        self._behind = b""

    async def fill(self, chunks: Chunks) -> None:
        """Write chunks to the file until they end or there is no room."""
        buffer, size = list[bytes](), 0
        async for chunk in chunks:
            buffer += chunk
            size += sum(map(len, chunk))
            if size >= _WRITTEN_AT_ONCE:
                if not await self._has_written(b"".join(buffer)):
                    return
                buffer, size = [], 0
        self.is_whole = not buffer or await self._has_written(b"".join(buffer))

    async def send(self, client: _Client) -> None:
        """Send the content of the file, and the data for which it had no room."""
        if self._file is not None:
            self._file.seek(0)
        while self._file is not None and (piece := await asyncio.to_thread(self._file.read, _READ_AT_ONCE)):
            await client.take_in_time(piece, holding=not self.is_whole)
        if self._behind:
            await client.take_in_time(self._behind, holding=not self.is_whole)

    def close(self) -> None:
        """Delete the file and give its room back."""
        if self._file is not None:
            self._file.close()
        self._room.give_back(self._who, self._taken)

    def _write(self, data: bytes) -> None:
        """Append all data to the file, or nothing."""
        if shutil.disk_usage(self._folder or tempfile.gettempdir()).free < _LEAST_FREE + len(data):
            raise OSError(ENOSPC, f"less than {_LEAST_FREE} bytes are free")
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 close() closes it
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self._size)
            raise
        self._size += len(data)

    async def _has_written(self, data: bytes) -> bool:
        self._behind = data
        if not self._room.take(self._who, len(data)):
            return False
        self._taken += len(data)
        try:
            await asyncio.to_thread(self._write, data)
        except OSError as error:
            log.warning("cannot buffer the rest of an answer on disk: %s", error)
            return False
        self._behind = b""
        return True
