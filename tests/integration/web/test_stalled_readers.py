"""Readers that stop reading give their places back, and their answers stay as of the moment when they began."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from auditord.web import streams
from tests.api_server import Api, api_server, record

pytestmark = pytest.mark.anyio

STORED: Final = 6_000
META: Final = {"site_id": ["A"], "text": [letter * 250 for letter in "abcd"]}
"""As much that the answer is longer than all buffers of the kernel."""
PATIENCE: Final = timedelta(milliseconds=300)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    new: Callable[[], str] = request.getfixturevalue("new_postgres_url")
    return new()


@pytest.fixture(autouse=True)
def short_stall_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STALL_SECONDS", PATIENCE.total_seconds())
    monkeypatch.setattr(streams, "_LEAST_FREE", 0)


@asynccontextmanager
async def served(folder: Path, url: str | None, **options: object) -> AsyncGenerator[Api, None]:
    async with api_server(folder, store_url=url, max_body=64 << 20, options={"max_long_reads": 2, **options}) as api:
        stored = [record(f"r-{number:06}", stop_time=stop(number), meta=META) for number in range(STORED)]
        assert (await api.ask("POST", "/records", stored)).status == 200
        yield api


def stop(number: int) -> str | None:
    """Of every tenth there is none yet: these come last in an answer."""
    return None if number % 10 == 0 else f"2026-01-02T{number % 24:02}:00:00Z"


async def asked(api: Api, target: str = "/records") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A reader that has got the head of its answer, and reads no more than its small buffers hold."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(("127.0.0.1", int(api.url.rpartition(":")[2])))
    sock.setblocking(False)  # noqa: FBT003 a keyword is not taken
    reader, writer = await asyncio.open_connection(sock=sock, limit=4_096)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    return reader, writer


async def body(reader: asyncio.StreamReader) -> bytes:
    """The rest of an answer, which is chunked; to its end, or an error."""
    chunks = list[bytes]()
    while size := int(await reader.readline(), 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    return b"".join(chunks)


def ids(text: bytes) -> list[str]:
    return re.findall(r'"record_id":"([^"]+)"', text.decode())


async def stalled(api: Api, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    return [await asked(api) for _ in range(count)]


async def test_others_read_while_readers_stall_and_every_answer_is_whole(tmp_path: Path, url: str | None) -> None:
    async with served(tmp_path, url) as api, asyncio.timeout(240):
        readers = await stalled(api, 4)
        expected = (await api.get("/records")).body
        assert len(ids(expected)) == STORED
        assert (await api.get("/api/v1/aggregates?by=meta:site_id")).json["groups"][0]["records"] == STORED * 9 // 10
        for reader, writer in readers:
            assert await body(reader) == expected
            writer.close()


async def test_an_answer_stays_as_of_the_moment_when_it_began(tmp_path: Path, url: str | None) -> None:
    async with served(tmp_path, url) as api, asyncio.timeout(240):
        before = (await api.get("/records")).body
        (reader, writer), *_ = await stalled(api, 1)
        closing = [
            record(f"r-{number:06}", stop_time="2026-01-01T00:00:01Z", meta=META) for number in range(0, STORED, 10)
        ]
        assert (await api.post(closing)).json["counts"] == {"closed": STORED // 10}
        assert (await api.ask("POST", "/records", [record(f"new-{number}") for number in range(500)])).status == 200
        (later_reader, later_writer), *_ = await stalled(api, 1)
        after = (await api.get("/records")).body
        assert len(ids(after)) == STORED + 500
        assert await body(reader) == before, "closed records stay where they were, as they were; new ones are not there"
        assert await body(later_reader) == after
        writer.close()
        later_writer.close()


async def test_pages_and_lines_are_whole_as_well(tmp_path: Path, url: str | None) -> None:
    async with served(tmp_path, url) as api, asyncio.timeout(240):
        targets = ["/api/v1/records?format=ndjson", "/api/v1/records?limit=10000"]
        readers = [await asked(api, target) for target in targets]
        for target, (reader, writer) in zip(targets, readers, strict=True):
            assert (await api.get(target)).body == await body(reader)
            writer.close()


async def test_who_reads_slowly_gives_its_place_to_others_that_wait(
    tmp_path: Path, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "STALL_SECONDS", 120)
    monkeypatch.setattr(streams, "WANTED_SECONDS", 0)
    async with served(tmp_path, url) as api, asyncio.timeout(240):
        (reader, writer), *_ = await stalled(api, 1)
        other = asyncio.create_task(api.get("/records?record_id=r-000001"))
        read = b""
        while not other.done():
            read += await reader.readexactly(4_096)
            await asyncio.sleep(0.02)
        assert (await other).status == 200
        until_then = len(read)
        whole = asyncio.StreamReader()
        whole.feed_data(read)
        while not read.endswith(b"\r\n0\r\n\r\n"):
            piece = await reader.read(1 << 16)
            whole.feed_data(piece)
            read = read[-16:] + piece
        text = await body(whole)
        assert len(ids(text)) == STORED
        assert until_then < len(text) / 3, "the rest was kept elsewhere"
        writer.close()


@pytest.mark.parametrize("lacking", ["room", "disk"])
async def test_without_room_who_stalls_is_cut_off_only_where_others_wait(
    tmp_path: Path, url: str | None, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking == "disk":
        monkeypatch.setattr(streams, "_LEAST_FREE", 1 << 62)
    async with served(tmp_path, url, max_unread=2 if lacking == "room" else 1 << 30) as api, asyncio.timeout(240):
        (reader, writer), *_ = await stalled(api, 1)
        await asyncio.sleep(3 * PATIENCE.total_seconds())  # nobody waits meanwhile
        expected = (await api.get("/records?record_id=r-000001")).status
        assert expected == 200, "it has waited, and the other one was cut off"
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):
            await body(reader)
        assert api.registry.get_sample_value("auditord_http_aborted_connections_total", {"reason": "stalled"}) == 1
        writer.close()


async def test_without_room_an_answer_is_whole_where_nobody_waits(tmp_path: Path, url: str | None) -> None:
    async with served(tmp_path, url, max_unread=1 << 20) as api, asyncio.timeout(240):
        (reader, writer), *_ = await stalled(api, 1)
        await asyncio.sleep(3 * PATIENCE.total_seconds())
        assert len(ids(await body(reader))) == STORED
        writer.close()


async def test_a_reader_that_leaves_gives_everything_back(tmp_path: Path, url: str | None) -> None:
    async with served(tmp_path, url) as api, asyncio.timeout(240):
        for _ in range(3):
            for _, writer in await stalled(api, 2):
                writer.transport.abort()
        assert len(ids((await api.get("/records")).body)) == STORED
