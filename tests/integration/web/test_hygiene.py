"""Clients that say nothing, say it slowly, or are browsers that somebody else's page sends."""

import asyncio
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from auditord.web import hosts
from auditord.web.connections import LimitedConnection, LimitedServer
from tests.api_server import api_server, record

pytestmark = pytest.mark.anyio

EVIL = {"Host": "evil.example.org"}


async def test_a_name_that_anybody_can_give_us_shows_nothing(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        for target in ("/records", "/metrics", "/api/v1/records", "/record/a"):
            assert (await api.get(target, **EVIL)).status == 421
        for host in ("localhost:80", "a.localhost", "127.0.0.1:1", "[::1]:8000", "auditord:8000", "10.0.0.1"):
            assert (await api.get("/records", Host=host)).status == 200


async def test_a_record_is_neither_lost_nor_left_open_for_a_name(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        opened = record("a", stop_time=None)
        assert (await api.ask("POST", "/record", opened, EVIL)).status == 200
        assert (await api.ask("PUT", "/record", record("a"), EVIL)).status == 200
        assert (await api.get("/record/a")).json["runtime"] == 3_600
        assert [(await api.get(each, **EVIL)).status for each in ("/health_check", "/health_check/?a=b")] == [200, 200]
        foreign = EVIL | {"Origin": f"http://{EVIL['Host']}"}
        assert (await api.ask("PUT", "/record", record("a"), foreign)).status == 421


@pytest.mark.parametrize(
    ("headers", "status", "named"),
    [(EVIL, 421, "api.hosts"), ({"Origin": "http://evil.example.org", "Host": "localhost"}, 403, "a reverse proxy")],
)
async def test_what_is_refused_for_its_name_says_how_to_mend_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, headers: dict[str, str], status: int, named: str
) -> None:
    async with api_server(tmp_path) as api:
        for _ in range(2):
            answer = await api.get("/api/v1/records", **headers)
            assert (answer.status, answer.headers["Content-Type"]) == (status, "application/problem+json")
            assert answer.json["remedy"]
        assert (await api.get("/records", **headers)).headers["Content-Type"].startswith("text/plain")
        [warning] = [each.getMessage() for each in caplog.records if each.name == "auditord.web.hosts"]
        assert all(part in warning for part in ("GET /api/v1/records", "evil.example.org", named))


async def test_a_name_can_be_made_known(tmp_path: Path) -> None:
    async with api_server(tmp_path, options={"hosts": ["Evil.example.org"]}) as api:
        assert (await api.get("/records", Host="evil.example.org:8000")).status == 200
        assert (await api.get("/records", Host="other.example.org")).status == 421


@pytest.mark.parametrize("origin", ["http://evil.example.org", "null", "https://localhost:1", "http://localhost:2"])
async def test_a_page_of_another_server_neither_reads_nor_writes(tmp_path: Path, origin: str) -> None:
    async with api_server(tmp_path) as api:
        headers = {"Origin": origin, "Host": "localhost:1" if "localhost:2" in origin else "localhost"}
        assert (await api.ask("POST", "/record", record("a"), headers)).status == 403
        assert (await api.get("/records", **headers)).status == 403
        assert (await api.get("/record/a")).status == 404


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://a]b", "//[", "\u00e4"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_origin_that_is_no_url_is_a_foreign_one(tmp_path: Path, origin: str, method: str) -> None:
    async with api_server(tmp_path) as api:
        body = record("a") if method == "POST" else b""
        assert (await api.ask(method, "/records", body, {"Origin": origin, "Host": "localhost"})).status == 403


async def test_a_fault_before_the_dispatcher_is_answered_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of our own")

    monkeypatch.setattr(hosts.HostCheck, "refusal", fail)
    async with api_server(tmp_path) as api:
        answer = await api.get("/records")
        assert (answer.status, answer.body) == (500, b"Internal Server Error")
        assert "aiohttp" not in str(answer.headers)
        with pytest.raises(aiohttp.ClientError):  # a client of AUDITOR takes any answer for success
            await api.ask("POST", "/record", record("a"), {"Origin": "http://localhost"})


@pytest.mark.parametrize("request_", [b"GET /\x00 HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
async def test_an_error_answer_names_no_program(tmp_path: Path, request_: bytes) -> None:
    async with api_server(tmp_path) as api:
        parts = urlsplit(api.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(request_)
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request")
        assert not any(name in answer.lower() for name in (b"python", b"aiohttp"))


async def test_streams_name_no_versions(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        assert (await api.get("/records")).headers.get("Server") in {None, "auditord"}


async def test_a_page_of_our_own_may_ask_unless_its_name_is_borrowed(tmp_path: Path) -> None:
    async with api_server(tmp_path) as api:
        own = {"Origin": "http://localhost:8000", "Host": "localhost:8000"}
        assert (await api.ask("POST", "/record", record("a"), own)).status == 200
        borrowed = {"Origin": "http://evil.example.org:8000", "Host": "evil.example.org:8000"}
        assert (await api.ask("POST", "/record", record("b"), borrowed)).status == 421


# -- time ----------------------------------------------------------------------------------------------------


async def greet(_request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="hello")


async def served(head: timedelta, silent: timedelta) -> tuple[LimitedServer, asyncio.Server, int]:
    server = LimitedServer(greet, head_seconds=head.total_seconds(), silent_seconds=silent.total_seconds())
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    return server, listener, listener.sockets[0].getsockname()[1]


LONG, SHORT = timedelta(minutes=10), timedelta(milliseconds=50)
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "silent", "sent"),
    [(LONG, SHORT, b""), (SHORT, LONG, b"G"), (SHORT, LONG, WHOLE[:-2]), (SHORT, LONG, WHOLE + WHOLE[:9])],
)
async def test_who_does_not_come_to_the_point_is_cut_off(head: timedelta, silent: timedelta, sent: bytes) -> None:
    server, listener, port = await served(head, silent)
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent[: len(WHOLE)] if len(sent) > len(WHOLE) else sent)
        if len(sent) > len(WHOLE):
            assert await reader.readuntil(b"hello")
            writer.write(sent[len(WHOLE) :])
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
    listener.close()
    await server.shutdown(1)


async def test_an_idle_connection_and_a_slow_body_are_nobodys_slow_head() -> None:
    server, listener, port = await served(SHORT, SHORT)
    async with asyncio.timeout(30), aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.get(f"http://127.0.0.1:{port}/") as answer:
                assert await answer.text() == "hello"
            await asyncio.sleep(3 * SHORT.total_seconds())  # longer than any head may take
        assert len(server.connections) == 1
    listener.close()
    await server.shutdown(1)


def test_what_the_timer_looks_at_is_there() -> None:
    names = (
        "_buffer_paused",
        "_close",
        "_current_request",
        "_force_close",
        "_handle_request",
        "_keepalive",
        "_keepalive_timeout",
        "_max_msg_queue_size",
        "_messages",
        "_msg_queue_resume_size",
        "_next_keepalive_close_time",
        "_reading_paused",
        "_request_count",
        "_resume_reading_if_drained",
        "_task_handler",
        "_upgraded",
        "_waiter",
        "writing_paused",
    )
    for name in names:
        assert hasattr(LimitedConnection, name), f"aiohttp renamed {name}: see LimitedConnection"
