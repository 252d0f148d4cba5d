"""Long answers: pages from the store to a client, which may read slowly without delaying others.

An answer is one query's, as of its start. It holds one of the places for long answers and, with PostgreSQL, one of a
few connections. If the client stalls, the rest of the answer goes into a file without a name, and place and connection
become free. The client does not notice: it reads the end of the file as it would have read the query's, so nothing is
left out, doubled or newer than the rest. (Querying again after the last record would not be exact: a record that is
closed meanwhile moves in the order of stop times.)
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
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
from auditord.web.dispatch import Abort
from auditord.web.reading import ReadingPlaces, Shares
from auditord.web.requests import holder

log = logging.getLogger(__name__)

STALL_SECONDS: Final = 5.0
"""A client that reads nothing for this long has stalled."""

WANTED_SECONDS: Final = 10.0
"""A client that has caused waits of this length in total counts as stalled while others wait for its place."""

_LEAST_FREE: Final = 1 << 30
"""Bytes that are left free on the disk, because the spool is on it too."""

_SHORT: Final = 48 * 1024
"""Bytes of a first page that is most likely the last, because others are larger. An empty transport accepts this many
without a pause."""

_WRITTEN_AT_ONCE: Final = 1 << 20
_READ_AT_ONCE: Final = 128 * 1024

Pages: TypeAlias = AsyncIterator[Sequence[bytes]]


class StreamedAnswers(msgspec.Struct, frozen=True):
    """Sends long answers, which share places and disk space.

    Args:
        places: the places for answers that read the store.
        room: the disk space in bytes for the rest of stalled answers.
        folder: the folder for temporary files; None for the system's.
    """

    places: ReadingPlaces
    room: Shares
    folder: Path | None = None

    async def send(
        self, request: web.BaseRequest, opened: AbstractAsyncContextManager[Pages], content_type: str
    ) -> web.StreamResponse:
        """Send pages as they come, with at most a page and a buffer in memory.

        Headers are sent with the first page, so a failing query can still be answered with an error. A later fault cuts
        the connection, because a truncated answer must never look complete. A short answer is sent as a whole.

        Args:
            request: the request.
            opened: the pages; they occupy the store until it is left.
            content_type: the content type of the answer.

        Raises:
            StoreUnavailable: there is no first page; nothing was sent.
            Abort: the store failed later, or there is no disk space for a stalled answer.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.places.one(holder(request)))
            return await self._sent(request, stack, opened, {"Content-Type": content_type})

    async def send_held(
        self, request: web.BaseRequest, opened: AbstractAsyncContextManager[Pages], headers: Mapping[str, str]
    ) -> web.StreamResponse:
        """Send pages that hold a place of their own while they are open."""
        async with AsyncExitStack() as stack:
            return await self._sent(request, stack, opened, headers)

    async def _sent(
        self,
        request: web.BaseRequest,
        stack: AsyncExitStack,
        opened: AbstractAsyncContextManager[Pages],
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        pages = await stack.enter_async_context(opened)
        first, is_all = await _beginning(pages)
        response = web.StreamResponse(headers={**headers, "Server": SERVER})
        writer = await response.prepare(request)
        if is_all and request.transport is not None and not request.transport.get_write_buffer_size():
            await response.write_eof(b"".join(first))  # with the head, in one piece
            return response
        client = _Client(request, writer, self.places)
        try:
            await self._relay(client, first, pages, stack)
            await response.write_eof()
        except StoreUnavailable as error:
            text = f"the record store failed in the middle of an answer ({error}); the client must ask again"
            raise Abort("store_failed", text) from error
        return response

    async def _relay(self, client: "_Client", first: Sequence[bytes], pages: Pages, stack: AsyncExitStack) -> None:
        page = first
        while page:
            if not await client.take(b"".join(page)):
                async with self._spilled(pages, client.who) as rest:
                    if rest.is_whole:
                        await stack.aclose()  # others have the place and the connection from now on
                    await rest.send(client)
            page = await _next(pages)

    @asynccontextmanager
    async def _spilled(self, pages: Pages, who: str) -> "AsyncGenerator[_Spilled, None]":
        """Yield the rest of the pages, as far as there is room for it."""
        spilled = _Spilled(self.room, self.folder, who)
        try:
            await spilled.fill(pages)
            yield spilled
        finally:
            spilled.close()


async def _beginning(pages: Pages) -> tuple[Sequence[bytes], bool]:
    """Return the first page of rows and whether it is the last. Large pages are returned without reading ahead."""
    first = await _next(pages)
    if sum(map(len, first)) > _SHORT:
        return first, False
    more = await _next(pages)
    return [*first, *more], not more


async def _next(pages: Pages) -> Sequence[bytes]:
    """Return the next page that is not empty; empty at the end."""
    async for page in pages:
        if page:
            return page
    return []


class _Client:
    """The client that reads an answer."""

    def __init__(self, request: web.BaseRequest, writer: AbstractStreamWriter | None, places: ReadingPlaces) -> None:
        self.who = holder(request)
        self._writer = writer if isinstance(writer, StreamWriter) else None
        self._protocol = request.protocol
        self._places = places
        self._clock = asyncio.get_running_loop().time
        self._waited = 0.0
        self._draining: asyncio.Task[None] | None = None

    async def take(self, data: bytes) -> bool:
        """Write; return False if the client has stalled, or is slow while others wait for its place."""
        await self._write(data)
        if not self._protocol.writing_paused:
            return True
        begun = self._clock()
        if not await self._has_read():
            return False
        self._waited += self._clock() - begun
        return self._waited < WANTED_SECONDS or not self._places.is_wanted(self.who)

    async def take_in_time(self, data: bytes, *, holding: bool) -> None:
        """Write, and wait until the client has read most of it; its connection is cut if it never does.

        Raises:
            Abort: the client holds a place, and others wait for it.
        """
        await self._write(data)
        while not await self._has_read():
            if holding and self._places.is_wanted(self.who):
                raise Abort("stalled", "a client does not read, there is no room for its answer, and others wait")

    async def _write(self, data: bytes) -> None:
        if self._writer is None:
            raise ConnectionResetError("the client left before it was answered")
        await self._writer.write(data, drain=False)

    async def _has_read(self) -> bool:
        """Return whether the client reads most of the written bytes within :data:`STALL_SECONDS`."""
        if self._draining is None:
            if self._writer is None or not self._protocol.writing_paused:
                return True
            # Never cancelled: all waits of a connection share a future.
            self._draining = asyncio.create_task(self._writer.drain())
            self._draining.add_done_callback(_retrieved)
        done, _ = await asyncio.wait({self._draining}, timeout=STALL_SECONDS)
        for task in done:
            self._draining = None
            task.result()
        return bool(done)


def _retrieved(task: "asyncio.Task[None]") -> None:
    """Retrieve the result of a task that may have no waiter any more."""
    if not task.cancelled():
        task.exception()


class _Spilled:
    """The rest of an answer in a file.

    Args:
        room: bytes on the disk.
        folder: of the file.
        who: in whose name it takes room.
    """

    def __init__(self, room: Shares, folder: Path | None, who: str) -> None:
        self.is_whole = False
        self._room, self._folder, self._who = room, folder, who
        self._file: FileIO | None = None
        self._taken = self._size = 0
        self._behind = b""

    async def fill(self, pages: Pages) -> None:
        """Write pages to the file until they end or there is no room."""
        begun, size = list[bytes](), 0
        async for page in pages:
            begun += page
            size += sum(map(len, page))
            if size >= _WRITTEN_AT_ONCE:
                if not await self._has_written(b"".join(begun)):
                    return
                begun, size = [], 0
        self.is_whole = not begun or await self._has_written(b"".join(begun))

    async def send(self, client: _Client) -> None:
        """Send the content of the file."""
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
        """Append everything to the file, or nothing."""
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
            log.warning("no room for the rest of an answer: %s", error)
            return False
        self._behind = b""
        return True
