"""Streamed answers, and limits for each principal: memory for bodies, places for answers, disk space, requests.

No principal gets more than half of any resource; a request that needs more waits. While it waits, its body is not read,
so that TCP holds the client back. An upload that waits too long is cut off instead of answered with 429 or 503, because
the released clients take any answer to a POST for success.

Most sums have few groups. A query with more groups is repeated in a place for large answers. There are two of these, at
most one for each principal. So memory is bounded for any query, and other queries continue.

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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from errno import ENOSPC
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter
from msgspec.structs import replace

from auditord.database.readers import Threads
from auditord.errors import StoreUnavailable
from auditord.web.answers import SERVER
from auditord.web.bodies import DEMAND, Demand, most_unpacked
from auditord.web.dispatch import Abort, Handler
from auditord.web.limits import FEW_GROUPS, MANY_GROUPS
from auditord.web.requests import client_key
from auditord_hookspecs import AggregateQuery, Aggregates, AuditordError, TooManyGroups

UPLOAD_PATIENCE: Final = 300.0
"""Seconds that an upload may wait for its turn before it is cut off."""

_REMEMBERED: Final = 10_000


class Shares:
    """A pool of units that requests share. No principal holds more than half of them at a time.

    A request waits if too few units are free. The least recently served principal is next, and the requests of each
    principal are served in order. So a long queue of one principal does not delay another.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = most
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[asyncio.Future[None], tuple[str, int]] = OrderedDict()
        self._served: OrderedDict[str, int] = OrderedDict()
        self._numbers = count(1)

    @property
    def free(self) -> int:
        """The number of free units."""
        return self._free

    def is_wanted(self, who: str) -> bool:
        """Return whether a request is waiting that could proceed if this principal held less."""
        return any(who == waiting or self._may_hold(waiting, size) for waiting, size in self._waiting.values())

    @asynccontextmanager
    async def held(self, who: str, size: int) -> AsyncGenerator[None, None]:
        """Hold units (at most half of all) within the context, waiting for them if necessary."""
        size = min(size, self._half)
        if self._waiting or not self.take(who, size):
            await self._wait(who, size)
        try:
            yield
        finally:
            self.give_back(who, size)

    def take(self, who: str, size: int) -> bool:
        """Take units, which must be given back; return False if too few are free for this principal."""
        if size > self._free or not self._may_hold(who, size):
            return False
        self._take(who, size)
        return True

    def give_back(self, who: str, size: int) -> None:
        """Return units to the pool and serve waiting requests."""
        self._free += size
        left = self._held.pop(who, 0) - size  # 0 for requests of no units
        if left > 0:
            self._held[who] = left
        self._serve()

    @property
    def _half(self) -> int:
        return max(1, self._most // 2)

    def _may_hold(self, who: str, size: int) -> bool:
        return self._held.get(who, 0) + size <= self._half

    def _take(self, who: str, size: int) -> None:
        self._free -= size
        self._held[who] = self._held.get(who, 0) + size
        self._served.pop(who, None)
        self._served[who] = next(self._numbers)
        if len(self._served) > _REMEMBERED:
            self._served.popitem(last=False)

    async def _wait(self, who: str, size: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = (who, size)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted at the same moment
                self.give_back(who, size)
            raise
        finally:
            if self._waiting.pop(turn, None) is not None:
                self._serve()  # others may have waited behind this request

    def _serve(self) -> None:
        while (turn := self._next()) is not None:
            self._take(*self._waiting.pop(turn))
            turn.set_result(None)

    def _next(self) -> "asyncio.Future[None] | None":
        """Return the next request to serve. A principal that has used up its share does not block others."""
        first: dict[str, asyncio.Future[None]] = {}
        for turn, (who, _) in self._waiting.items():
            if not turn.done():
                first.setdefault(who, turn)
        for who in sorted(first, key=lambda who: self._served.get(who, 0)):
            turn = first[who]
            _, size = self._waiting[turn]
            if self._may_hold(who, size):
                return turn if size <= self._free else None
        return None


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
        if len(self._next) > _REMEMBERED:
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


def limited(handler: Handler, uploads: Uploads, rate: RateLimit | None, weight: int = 1) -> Handler:
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
        async with held_in_time(uploads.memory, who, weight * uploads.size(request), UPLOAD_PATIENCE, late):
            request[DEMAND] = Demand(lambda: uploads.memory.is_wanted(who))
            return await handler(request)

    return waiting


@asynccontextmanager
async def held_in_time(
    shares: Shares, who: str, size: int, patience: float, late: AuditordError
) -> AsyncGenerator[None, None]:
    """Hold units within the context; raise ``late`` after waiting for ``patience`` seconds."""
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(patience):
                await stack.enter_async_context(shares.held(who, size))
        except TimeoutError as error:
            raise late from error
        yield


T = TypeVar("T")

Aggregate: TypeAlias = Callable[[AggregateQuery], Awaitable[Aggregates]]

PATIENCE: Final = 30.0
"""Seconds that an answer may wait for its turn, counted from its first wait. So half of a client's patience remains."""

_LARGE: Final = 2
_THREADS: Final = 4


def _now() -> float:
    return asyncio.get_running_loop().time()


class GrowingPlace:
    """The place of an answer that may turn out to be large. All its waits together last for :data:`PATIENCE`.

    Args:
        stack: holds the place.
        take_large: returns a context that holds a large place.
    """

    def __init__(self, stack: AsyncExitStack, take_large: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._stack = stack
        self._take_large = take_large
        self._is_large = False

    async def grow(self) -> None:
        """Exchange an ordinary place for a large one. The caller should hold nothing large while it waits.

        Raises:
            StoreUnavailable: no place became free in time.
        """
        if not self._is_large:
            await self._stack.aclose()
            await self._stack.enter_async_context(self._take_large())
            self._is_large = True

    async def sum_up(self, aggregate: Aggregate, query: AggregateQuery) -> Aggregates:
        """Return sums. If there are many groups, exchange the place for a large one first.

        Raises:
            TooManyGroups: there are more than :data:`MANY_GROUPS`.
        """
        if not self._is_large:
            with suppress(TooManyGroups):  # left before the retry, because the traceback refers to the sums
                return await aggregate(replace(query, most_groups=FEW_GROUPS))
            await self.grow()
        return await aggregate(replace(query, most_groups=MANY_GROUPS))


class ReadingPlaces:
    """Places for answers that read the store, and threads that process the results.

    Args:
        most: the number of answers that may read at a time.
    """

    def __init__(self, most: int) -> None:
        self._any = Shares(most)
        self._large = Shares(_LARGE)
        self._threads = Threads(_THREADS, "answers")

    def close(self) -> None:
        """Stop the threads; blocks until they have finished."""
        self._threads.close()

    def is_wanted(self, who: str) -> bool:
        """Return whether others wait for a place that this principal may hold."""
        return self._any.is_wanted(who) or self._large.is_wanted(who)

    def one(self, who: str, patience: float = PATIENCE) -> AbstractAsyncContextManager[None]:
        """Hold a place within the context, waiting for it if necessary.

        Raises:
            StoreUnavailable: no place became free in time.
        """
        late = StoreUnavailable("other answers used up api.max_long_reads for too long")
        return held_in_time(self._any, who, 1, patience, late)

    @asynccontextmanager
    async def large(self, who: str, patience: float = PATIENCE) -> AsyncGenerator[None, None]:
        """Hold a place for a large answer and an ordinary place within the context.

        Raises:
            StoreUnavailable: no place became free in time.
        """
        late, until = StoreUnavailable("other large answers took too long"), _now() + patience
        async with held_in_time(self._large, who, 1, patience, late), self.one(who, until - _now()):
            yield

    @asynccontextmanager
    async def growing(self, who: str) -> AsyncGenerator["GrowingPlace", None]:
        """Hold an ordinary place within the context, which can be exchanged for a large one.

        Raises:
            StoreUnavailable: no place became free in time.
        """
        until = _now() + PATIENCE
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.one(who))
            yield GrowingPlace(stack, lambda: self.large(who, until - _now()))

    @asynccontextmanager
    async def few(self, who: str, aggregate: Aggregate, query: AggregateQuery) -> AsyncGenerator[Aggregates, None]:
        """Yield sums of at most :data:`FEW_GROUPS` groups, while holding the place in which they were made.

        Raises:
            TooManyGroups: there are more.
        """
        async with self.one(who):
            yield await aggregate(replace(query, most_groups=FEW_GROUPS))

    @asynccontextmanager
    async def summed(self, who: str, aggregate: Aggregate, query: AggregateQuery) -> AsyncGenerator[Aggregates, None]:
        """Yield sums, while holding the place in which they were made.

        Raises:
            TooManyGroups: there are more than :data:`MANY_GROUPS`.
        """
        async with self.growing(who) as place:
            yield await place.sum_up(aggregate, query)

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in a thread.

        A cancelled caller still waits for the function to end, because its place is in use until then.
        """
        working = self._threads.run(work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            while not working.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([working])
            working.exception()  # marks an error as retrieved
            raise


log = logging.getLogger(__name__)

STALL_SECONDS: Final = 5.0
"""A client that reads nothing for this long has stalled."""

WANTED_SECONDS: Final = 10.0
"""A client that has been waited for this long in total counts as stalled while others wait for its place."""

_LEAST_FREE: Final = 1 << 30
"""Bytes to leave free on the disk, because the spool is on it too."""

_SHORT: Final = 48 * 1024
"""A first page of at most this many bytes is most likely the last, because full pages are larger. An empty transport
accepts as many bytes without pausing."""

_WRITTEN_AT_ONCE: Final = 1 << 20
_READ_AT_ONCE: Final = 128 * 1024

Pages: TypeAlias = AsyncIterator[Sequence[bytes]]


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
        self, request: web.BaseRequest, opened: AbstractAsyncContextManager[Pages], content_type: str
    ) -> web.StreamResponse:
        """Send pages as they arrive, with at most one page and one buffer in memory.

        Headers are sent with the first page, so a failing query can still be answered with an error. A later error cuts
        the connection, because a truncated answer must never look complete. A short answer is sent in one piece. The
        query occupies the store until ``opened`` is left.

        Raises:
            StoreUnavailable: there is no first page; nothing was sent.
            Abort: the store failed later, or there is no disk space for a stalled answer.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.places.one(client_key(request)))
            return await self._sent(request, stack, opened, {"Content-Type": content_type})

    async def send_held(
        self, request: web.BaseRequest, opened: AbstractAsyncContextManager[Pages], headers: Mapping[str, str]
    ) -> web.StreamResponse:
        """Send pages that already hold a place while they are open."""
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
            text = f"the record store failed in the middle of an answer ({error}); the client must try again"
            raise Abort("store_failed", text) from error
        return response

    async def _relay(self, client: "_Client", first: Sequence[bytes], pages: Pages, stack: AsyncExitStack) -> None:
        page = first
        while page:
            if not await client.take(b"".join(page)):
                async with self._spilled(pages, client.who) as rest:
                    if rest.is_whole:
                        await stack.aclose()  # frees the place and the connection for others
                    await rest.send(client)
            page = await _next(pages)

    @asynccontextmanager
    async def _spilled(self, pages: Pages, who: str) -> "AsyncGenerator[_Spilled, None]":
        """Write the rest of the pages to a file, as far as there is room, and yield it."""
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
    """Return the next page that is not empty; an empty one at the end."""
    async for page in pages:
        if page:
            return page
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
            self._draining.add_done_callback(_retrieved)
        done, _ = await asyncio.wait({self._draining}, timeout=STALL_SECONDS)
        for task in done:
            self._draining = None
            task.result()
        return bool(done)


def _retrieved(task: "asyncio.Task[None]") -> None:
    """Mark the error of a task as retrieved, because it may no longer have a waiter."""
    if not task.cancelled():
        task.exception()


class _Spilled:
    """The rest of an answer in a file.

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

    async def fill(self, pages: Pages) -> None:
        """Write pages to the file until they end or there is no room."""
        buffer, size = list[bytes](), 0
        async for page in pages:
            buffer += page
            size += sum(map(len, page))
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
