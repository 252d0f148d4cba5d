"""Clients that ask and do not read, or send heads without end: what they cost is bounded."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from aiohttp import web

from auditord.web.answers import TEXT, Answer
from auditord.web.connections import LARGEST_HEAD, ConnectionLimit, LimitedServer

pytestmark = pytest.mark.anyio

BODY = bytes(1 << 20)
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG, SHORT = timedelta(minutes=10), timedelta(milliseconds=200)


class Site:
    """A server that counts what it answers."""

    def __init__(self) -> None:
        self.begun = 0
        self.stalled = 0
        self.port = 0
        self.answer = Answer(200, BODY, TEXT)
        self.limit = ConnectionLimit()

    async def handle(self, _request: web.BaseRequest) -> web.StreamResponse:
        self.begun += 1
        return self.answer

    def count_stalled(self) -> None:
        self.stalled += 1


@asynccontextmanager
async def serving(site: Site, stall: timedelta = LONG) -> AsyncGenerator[LimitedServer, None]:
    server = LimitedServer(
        site.handle, site.limit, stalled=site.count_stalled, stall_seconds=stall.total_seconds(), access_log=None
    )
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    site.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await server.shutdown(1)


def connected(site: Site) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(("127.0.0.1", site.port))
    sock.setblocking(False)  # noqa: FBT003 a keyword is not taken
    return sock


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 nobody tells
            await asyncio.sleep(0.01)


async def quiet(site: Site) -> int:
    """The number of answers that were begun once no more are."""
    before = -1
    while before != site.begun:
        before = site.begun
        await asyncio.sleep(0.3)
    return before


async def test_unread_answers_do_not_pile_up() -> None:
    site = Site()
    async with serving(site) as server, asyncio.timeout(60):
        sock = connected(site)
        await asyncio.get_running_loop().sock_sendall(sock, GET * 400)
        await until(lambda: site.begun)
        begun = await quiet(site)
        (connection,) = server.connections
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 2 * len(BODY)
        assert begun < 20, "the kernel's buffers hold a few MB"
        sock.close()


async def test_who_reads_late_gets_every_answer_whole() -> None:
    site = Site()
    async with serving(site), asyncio.timeout(60):
        sock = connected(site)
        await asyncio.get_running_loop().sock_sendall(sock, GET * 30)
        await quiet(site)
        reader, writer = await asyncio.open_connection(sock=sock)
        for _ in range(30):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert await reader.readexactly(len(BODY)) == BODY
        assert site.begun == 30
        writer.close()


async def test_who_does_not_read_is_cut_off_in_the_end() -> None:
    site = Site()
    async with serving(site, stall=SHORT) as server, asyncio.timeout(60):
        sock = connected(site)
        await asyncio.get_running_loop().sock_sendall(sock, GET * 30)
        await until(lambda: site.stalled)
        await until(lambda: not server.connections)
        sock.close()


@pytest.mark.slow
async def test_who_reads_slowly_is_not() -> None:
    site = Site()
    stall = timedelta(seconds=5)  # long enough for a machine that is busy, shorter than all of the pauses
    async with serving(site, stall=stall), asyncio.timeout(120):
        reader, writer = await asyncio.open_connection(sock=connected(site))
        writer.write(GET * 8)
        for _ in range(8 * 4):
            await reader.readexactly(len(BODY) // 4)
            await asyncio.sleep(stall.total_seconds() / 20)
        assert not site.stalled
        writer.close()


@pytest.mark.parametrize("first", [b"", GET, GET * 3], ids=["alone", "behind one", "pipelined"])
async def test_a_head_is_bounded_as_a_whole(first: bytes) -> None:
    site = Site()
    site.answer = Answer(200)
    async with serving(site), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(first)
        line = b"X-Long: " + b"x" * 4_000 + b"\r\n"
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(LARGEST_HEAD // len(line) + 20):  # fewer lines than aiohttp allows
                writer.write(line)
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(b"\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()  # ends, since the server has cut the connection
        assert site.begun == len(first) // len(GET)


async def test_heads_are_not_read_while_an_answer_waits_for_its_reader() -> None:
    site = Site()
    async with serving(site), asyncio.timeout(60):
        sock = connected(site)
        large = GET[:-2] + b"X-Long: " + b"x" * 4_000 + b"\r\n\r\n"
        sent = 0
        try:
            async with asyncio.timeout(2):
                while True:
                    await asyncio.get_running_loop().sock_sendall(sock, large)
                    sent += len(large)
        except TimeoutError:
            pass
        assert sent < 16 << 20, "the rest waits on the client's side"
        sock.close()


async def test_a_large_body_is_no_large_head() -> None:
    site = Site()
    site.answer = Answer(200)
    async with serving(site), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        for _ in range(3):  # the body is not read by the handler, and the connection lives on
            writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (LARGEST_HEAD * 4))
            writer.write(bytes(LARGEST_HEAD * 4))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_newcomer_gets_in_where_others_idle() -> None:
    site = Site()
    site.answer, site.limit = Answer(200, b"hello"), ConnectionLimit(8)
    async with serving(site) as server, asyncio.timeout(60):
        kept = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(4)]
        for _, writer in kept[1:]:
            writer.write(GET)
        for reader, _ in kept[1:]:
            await reader.readuntil(b"hello")
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(GET)
        assert await reader.readuntil(b"hello")
        assert await kept[0][0].read() == b"", "the one that said nothing is closed"
        assert len(server.connections) == 4
        for _, each in [*kept, (reader, writer)]:
            each.close()
