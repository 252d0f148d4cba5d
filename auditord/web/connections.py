"""Connections with limits in time, memory and number, so that no client exhausts what others need.

aiohttp limits the lifetime of idle connections. It does not limit the time and size of a request's head, the time for
which an answer stays unread, or the number of connections.

At the limit of their number, the address with the most connections loses one: that whose client has sent and read
nothing for the longest time. A new client always gets in, so that ``/health_check`` is answered however many
connections others keep. Below the limit no connection is closed for another, because clients keep idle ones for up to
90 s and do not repeat a request that is lost with one.
"""

import asyncio
import logging
import re
import resource
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from time import time
from typing import Any, Final, Protocol, cast

from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage, StreamWriter
from aiohttp.http_exceptions import BadHttpMessage, BadStatusLine, HttpProcessingError, InvalidURLError, LineTooLong

from auditord.web.answers import UNSENT, Answer, date_line, plain_text
from auditord.web.problems import PREFIX, Refused

HEAD_SECONDS: Final = 30.0
"""Seconds from the first to the last byte of a request's head."""

SILENT_SECONDS: Final = 120.0
"""Seconds for which a new connection may stay silent. HTTP libraries keep a spare connection for up to 90 s. If it were
closed while a client sends a POST over it, clients that do not retry would lose the POST."""

STALL_SECONDS: Final = 300.0
"""Seconds in which a client must read :data:`LEAST_READ` of its answer; a slower client is cut off."""

LEAST_READ: Final = 65_536
"""Bytes; see :data:`STALL_SECONDS`. A plugin may pause for minutes while it processes the data that it has read."""

LARGEST_HEAD: Final = 131_072
"""The most bytes of all headers of a request together."""

_PIPELINED: Final = 2
"""The most requests that wait on a connection behind the current one. At this limit, reading is paused."""

_READ_AT_ONCE: Final = 65_536
"""Bytes of a body to read ahead; aiohttp takes up to twice as many."""


RESERVE: Final = 384
"""File descriptors kept back from clients: files, databases, programs, senders, the control socket, and connections
that are accepted above the limit before the first one is closed."""

_MANY: Final = 1_000_000


_BEGINNING: Final = 64
"""Bytes of a head that tell where an unparsable request was sent to."""

_REASON: Final = re.compile(r"[A-Za-z][A-Za-z' `-]+")
"""A message of the parser, before the part of the request that it quotes."""

_QUOTED_HEADER: Final = re.compile(r"^ +b['\"]([A-Za-z-]+) *:", re.MULTILINE)
_HEADERS: Final = frozenset(
    {"accept", "authorization", "connection", "content-encoding", "content-length", "content-type", "cookie", "expect"}
    | {"forwarded", "host", "origin", "referer", "transfer-encoding", "upgrade", "user-agent", "via"}
    | {f"x-forwarded-{each}" for each in ("for", "host", "port", "proto")}
)
"""Headers whose names may be logged. Any other word before a colon may be the end of a value."""

server_log: Final = logging.getLogger(__name__)


class Member(Protocol):
    """A connection that counts towards a limit."""

    @property
    def address(self) -> str:
        """The client's address; empty for a unix socket."""
        ...

    @property
    def may_go(self) -> bool:
        """True if the server is waiting for the client."""
        ...

    def give_up(self) -> None:
        """Abort the connection."""
        ...


class ConnectionLimit:
    """A limit on the number of connections. No address gets more than half of them, except for proxies.

    Args:
        closed: is called whenever a connection is closed to admit another one.
        is_proxy: returns whether an address is that of a proxy, which many clients share.
    """

    def __init__(
        self,
        most: int = _MANY,
        closed: Callable[[], None] = lambda: None,
        is_proxy: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._most = most
        self._closed = closed
        self._is_proxy = is_proxy
        self._members: dict[str, OrderedDict[Member, None]] = {}
        """By address, the least recently active connection first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, member: Member) -> None:
        """Count a new connection, and close one if there are too many."""
        neighbours = self._members.setdefault(member.address, OrderedDict())
        neighbours[member] = None
        self._count += 1
        if len(neighbours) > max(1, self._most // 2) and not self._is_proxy(member.address):
            self._close_one_of(neighbours)
        elif self._count > self._most:
            self._close_one_of(max(self._members.values(), key=len))

    def note_traffic(self, member: Member) -> None:
        """Note that bytes were received from or sent to a connection."""
        neighbours = self._members.get(member.address)
        if neighbours is not None and member in neighbours:
            neighbours.move_to_end(member)

    def leave(self, member: Member) -> None:
        """Forget a connection; ignore unknown ones."""
        neighbours = self._members.get(member.address)
        if neighbours is None or member not in neighbours:
            return
        del neighbours[member]
        self._count -= 1
        if not neighbours:
            del self._members[member.address]

    def _close_one_of(self, members: "OrderedDict[Member, None]") -> None:
        newest = next(reversed(members))
        unwanted = next((each for each in members if each.may_go), newest)
        self.leave(unwanted)
        self._closed()
        unwanted.give_up()


def limit_of_connections(wanted: int) -> int:
    """Return the wanted number of connections, or as many as the process's limit of descriptors allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(soft - RESERVE, soft // 2))


class LimitedServer(web.Server):
    """aiohttp's server with limits for its connections.

    Args:
        limit: the limit on the number of connections; by default a million.
        stalled: is called whenever a client is cut off because it does not read its answer.
        head_seconds: see :data:`HEAD_SECONDS`.
        silent_seconds: see :data:`SILENT_SECONDS`.
        stall_seconds: see :data:`STALL_SECONDS`.
        options: aiohttp's options.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limit: ConnectionLimit | None = None,
        *,
        stalled: Callable[[], None] = lambda: None,
        head_seconds: float = HEAD_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
        stall_seconds: float = STALL_SECONDS,
        **options: Any,  # Any: as aiohttp has them
    ) -> None:
        super().__init__(handler, **options)
        self.limit = ConnectionLimit() if limit is None else limit
        self.stalled = stalled
        self._seconds = (head_seconds, silent_seconds, stall_seconds)
        self._options = options

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        return LimitedConnection(self, self._seconds, **self._options)


class LimitedConnection(web.RequestHandler):
    """aiohttp's connection with timers for the head of a request and for an unread answer.

    It uses a few private attributes of aiohttp. A test fails if they are removed.
    """

    __slots__ = (
        "_beginning",
        "_failed",
        "_handler",
        "_head_bytes",
        "_head_seconds",
        "_head_timer",
        "_limit",
        "_own_loop",
        "_payload",
        "_silent",
        "_silent_seconds",
        "_stall_seconds",
        "_stall_timer",
        "_stalled",
        "_unread",
        "address",
    )

    def __init__(
        self, server: LimitedServer, seconds: tuple[float, float, float], **options: Any
    ) -> None:  # Any: aiohttp's
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, read_bufsize=_READ_AT_ONCE, **options)
        self._max_msg_queue_size, self._msg_queue_resume_size = _PIPELINED, _PIPELINED // 2
        self._own_loop, self._handler = loop, server.request_handler
        self._limit, self._stalled = server.limit, server.stalled
        self._head_seconds, self._silent_seconds, self._stall_seconds = seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._silent = True
        self._payload: StreamReader | None = None
        self._head_bytes = self._unread = 0
        self._beginning = self._failed = b""
        self.address = ""

    @property
    def may_go(self) -> bool:
        """True if the server is waiting for a request, for more of a body, or for the client to read its answer."""
        if self._current_request is None:
            return not self._messages
        return self.writing_paused or not self._current_request.content.is_eof()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give the client time for its first byte."""
        super().connection_made(transport)
        self._head_timer = self._own_loop.call_later(self._silent_seconds, self.give_up)
        self.address = peer_address(transport)
        self._limit.enter(self)

    async def start(self) -> None:
        """Answer requests that have arrived completely, one after the other, in the task of the connection.

        aiohttp would make a task for each request. It takes over the rest of the connection at the first request that
        has not arrived completely, is not HTTP, or asks for another protocol.
        """
        task = cast("asyncio.Task[None]", asyncio.current_task())
        while not self._force_close:
            if not self._messages:
                self._waiter = self._own_loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            message, payload = self._messages[0]
            if not isinstance(message, RawRequestMessage) or message.upgrade or not payload.is_eof():
                await super().start()
                return
            self._messages.popleft()
            if self._parser is not None:
                self._parser.message_consumed()
            if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
                self._resume_reading_if_drained()
            writer = StreamWriter(self, self._own_loop)
            if not await self._answers(web.BaseRequest(message, payload, self, writer, task, self._own_loop)):
                break
            self._next_keepalive_close_time = self._own_loop.time() + self._keepalive_timeout
        self._task_handler = None
        if self.transport is not None:
            self.transport.close()

    async def _answers(self, request: web.BaseRequest) -> bool:
        """Answer a request; return False if the connection must be closed after it."""
        try:
            response, is_lost = await self._handle_request(request, None, self._handler)
        except ConnectionError:
            return False
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                self.log_exception("Unhandled exception", exc_info=error)
            self.force_close()
            raise
        self._keepalive = bool(response.keep_alive)
        return self._keepalive and not is_lost and not self._close

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; the flag is True if the client has left. An :class:`Answer` is already serialised."""
        if not isinstance(resp, Answer) or self._upgraded:  # pyright: ignore[reportUnknownMemberType]
            return await super().finish_response(request, resp, start_time)
        if self.transport is None:
            return resp, True
        self.transport.write(resp.status_line + date_line(int(time())) + resp.remainder)
        if self.writing_paused:
            try:
                await request.writer.drain()
            except ConnectionError:
                return resp, True
        return resp, False

    def data_received(self, data: bytes) -> None:
        """Stop the timer at the end of a head, and start it if a head is incomplete."""
        before = self._request_count
        if len(self._beginning) < _BEGINNING and (self._payload is None or self._payload.is_eof()):
            self._beginning += data[:_BEGINNING]
        super().data_received(data)
        if data:
            self._limit.note_traffic(self)
        if self._request_count != before:
            message, self._payload = self._messages[-1]
            if not isinstance(message, RawRequestMessage):
                # The parser drops whole requests before the one at fault: the answer will be taken for the first's.
                # It fails again with each further piece, which may arrive before the answer is written.
                self._failed = self._failed or self._beginning
            self._beginning, self._head_bytes = b"", 0
        elif self._payload is None or self._payload.is_eof():
            self._head_bytes += len(data)
            if self._head_bytes > LARGEST_HEAD:
                self.give_up()
        if self._messages or self._current_request is not None:
            if self._head_timer is not None:
                self._stop_head_timer()
        elif self._head_timer is None or self._silent:
            self._stop_head_timer()
            self._head_timer = self._own_loop.call_later(self._head_seconds, self.give_up)
        self._silent = False

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 as aiohttp has it
        """Resume reading if it is paused. aiohttp calls this after every body, paused or not."""
        if self._reading_paused or self._buffer_paused:
            super().resume_reading(resume_parser)

    def pause_writing(self) -> None:
        """Start to watch whether the client reads."""
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        """Stop watching the client."""
        super().resume_writing()
        self._limit.note_traffic(self)
        self._stop_stall_timer()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop the timers and cancel the handler of a GET. Handlers that write may finish."""
        self._stop_head_timer()
        self._stop_stall_timer()
        self._limit.leave(self)
        request, task = self._current_request, self._task_handler
        super().connection_lost(exc)
        if task is not None and request is not None and request.method == "GET":
            task.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Log an error and answer without the program names in aiohttp's own answer.

        A ``POST`` is cut off instead of being answered with an error, which its client would take for success; except
        that one to ``/api/`` which is not HTTP gets a problem.
        """
        super().handle_error(request, status, exc, message)
        method = request.method
        if isinstance(exc, HttpProcessingError):
            head = self._failed.decode("ascii", "replace").split(" ")
            method, target = head[0], head[1] if len(head) > 1 else ""
            if target.startswith(PREFIX):
                return Refused(status, describe(exc), remedy="see /openapi.json").answer().closing()
        if method == "POST":
            self.give_up()
            return UNSENT
        return plain_text(status, HTTPStatus(status).phrase).closing()

    def give_up(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _watch_reading(self) -> None:
        if self.transport is not None:
            self._unread = self.transport.get_write_buffer_size()
            self._stall_timer = self._own_loop.call_later(self._stall_seconds, self._look_after_reader)

    def _look_after_reader(self) -> None:
        if self.transport is not None and self._unread - self.transport.get_write_buffer_size() < LEAST_READ:
            self._stalled()
            self.give_up()
        else:
            self._watch_reading()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Return the address of the peer; empty for a unix socket."""
    peer: tuple[object, ...] | str | bytes | None = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


def describe(error: HttpProcessingError) -> str:
    """Describe the fault of a request, without any part of it except the name of a common header.

    The parser's own messages quote the request line or header at fault, which may hold a token.
    """
    match error:
        case LineTooLong():
            return "the request line or a header is too long"
        case InvalidURLError():
            return "the URL is invalid"
        case BadStatusLine():
            return "the request line is invalid"
        case BadHttpMessage() if type(error) is BadHttpMessage and (reason := _REASON.match(error.message)):
            header = _QUOTED_HEADER.search(error.message)
            named = header is not None and header[1].lower() in _HEADERS
            return f"{reason[0]} ({header[1]})" if header is not None and named else reason[0]
        case _:
            return "a header or the encoding of the body is invalid"


class OneLine(logging.Filter):
    """Reduces aiohttp's traceback about an unparsable request to one line of level INFO."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten such a log record and leave others unchanged; return whether to log it."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        record.msg, record.args = f"{record.getMessage()}: it is not HTTP: %s", (describe(error),)
        record.exc_info, record.levelno, record.levelname = None, logging.INFO, logging.getLevelName(logging.INFO)
        return logging.getLogger(record.name).isEnabledFor(logging.INFO)


server_log.addFilter(OneLine())
