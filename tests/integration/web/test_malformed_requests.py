"""Requests that the parser refuses: what they hold is never logged, and each API answers in its own way."""

import asyncio
import json
import logging
import socket
from pathlib import Path
from typing import Final, Never
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from auditord.web.connections import LimitedServer
from tests.api_server import Api, api_server, record

pytestmark = pytest.mark.anyio

LONG: Final = b"x" * 70_000
TARGETS: Final = {
    "control character in a header": b"{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer SEC\x01RET\r\n\r\n",
    "carriage return in a header": b"{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer SEC\rRET\r\n\r\n",
    "line feed in a header": b"{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer SEC\nRET\r\n\r\n",
    "blank before the colon": b"{} HTTP/1.1\r\nHost: localhost\r\nAuthorization : Bearer SECRET\r\n\r\n",
    "folded header": b"{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer\r\n SECRET\r\n\r\n",
    "folded header with a colon": b"{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic\r\n SECRET: SECRET\r\n\r\n",
    "secret as the name of a header": b"{} HTTP/1.1\r\nHost: localhost\r\nSECRET : x\r\n\r\n",
    "long header": b"{} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer SECRET" + LONG + b"\r\n\r\n",
    "long query": b"{}SECRET" + LONG + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "control character in the query": b"{}\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "unknown version": b"{} HTTP/9.1\r\nHost: localhost\r\n\r\n",
    "no host": b"{} HTTP/1.1\r\nAuthorization: Bearer SECRET\r\n\r\n",
    "no length": b"{} HTTP/1.1\r\nHost: localhost\r\nContent-Length: SECRET\r\n\r\n",
    "two lengths": b"{} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nSECRET",
    "many headers": b"{} HTTP/1.1\r\nHost: localhost\r\n" + b"X-Token: SECRET\r\n" * 200 + b"\r\n",
    "broken chunk": b"{} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nSECRET\r\n",
}


async def ask(api: Api, *pieces: bytes) -> bytes:
    """Send the pieces, each after the former has been read, and return everything that comes back."""
    parts = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Everything that any logger was told, with tracebacks, as the text form writes it."""
    return "\n".join(logging.Formatter().format(each) + repr(each.args) for each in caplog.records)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("split", [None, 40, 60, 75])
async def test_nothing_of_a_malformed_request_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, split: int | None
) -> None:
    caplog.set_level(logging.DEBUG)
    raw = TARGETS[kind].replace(b"{}", b"GET /api/v1/records?token=SECRET")
    async with api_server(tmp_path) as api:
        await ask(api, raw[:split], raw[split:] if split is not None else b"")
        assert (await api.get("/health_check")).status == 200
    text = logged(caplog)
    assert "SEC" not in text
    assert "RET" not in text
    assert kind == "broken chunk" or "it is not HTTP: " in text


async def test_the_kind_of_error_and_the_name_of_the_header_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with api_server(tmp_path) as api:
        await ask(api, TARGETS["control character in a header"].replace(b"{}", b"GET /records"))
        await ask(api, TARGETS["long query"].replace(b"{}", b"GET /records?"))
        await ask(api, TARGETS["secret as the name of a header"].replace(b"{}", b"GET /records"))
    assert [line.partition("it is not HTTP: ")[2] for line in caplog.messages if "not HTTP" in line] == [
        "Invalid header value char (Authorization)",
        "the request line or a header is too long",
        "Invalid header token",
    ]


@pytest.mark.parametrize("kind", [kind for kind in TARGETS if kind != "broken chunk"])
@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize("split", [None, 3, 30])
async def test_the_api_answers_with_a_problem(tmp_path: Path, kind: str, method: bytes, split: int | None) -> None:
    raw = TARGETS[kind].replace(b"{}", method + b" /api/v1/records?token=")
    async with api_server(tmp_path) as api:
        head, _, body = (await ask(api, raw[:split], raw[split:] if split else b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    problem = json.loads(body)
    assert (problem["status"], problem["title"], "SECRET" in problem["detail"]) == (400, "Bad Request", False)


@pytest.mark.parametrize("kind", TARGETS)
async def test_a_post_of_auditors_clients_is_cut_off_as_any_answer_would_be_success(tmp_path: Path, kind: str) -> None:
    async with api_server(tmp_path) as api:
        assert await ask(api, TARGETS[kind].replace(b"{}", b"POST /record?")) == b""


@pytest.mark.parametrize("kind", [kind for kind in TARGETS if kind not in {"broken chunk", "no length"}])
async def test_other_routes_answer_in_plain_text(tmp_path: Path, kind: str) -> None:
    async with api_server(tmp_path) as api:
        answer = await ask(api, TARGETS[kind].replace(b"{}", b"GET /records?"))
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"\r\n\r\nBad Request")


@pytest.mark.parametrize(
    ("target", "status", "kind"),
    [
        (b"POST /record", b"", b""),
        (b"POST /records", b"", b""),
        (b"POST /api/v1/records", b"HTTP/1.1 400", b"application/problem+json"),
        (b"GET /api/v1/records", b"HTTP/1.1 400", b"application/problem+json"),
        (b"GET /records", b"HTTP/1.1 400", b"text/plain; charset=utf-8"),
    ],
)
async def test_what_follows_a_fault_does_not_change_how_it_is_answered(
    target: bytes, status: bytes, kind: bytes
) -> None:
    async def never(_request: web.BaseRequest) -> Never:
        raise AssertionError("it is not HTTP")

    client, ours = socket.socketpair()
    with client:
        _, connection = await asyncio.get_running_loop().connect_accepted_socket(LimitedServer(never), ours)
        connection.data_received(TARGETS["folded header"].replace(b"{}", target))
        connection.data_received(b"the rest of a large body")  # before the task of the connection runs
        answer = await asyncio.wait_for(asyncio.to_thread(client.makefile("rb").read), 30)
    assert answer[:12] == status
    assert kind in answer


async def test_a_fault_behind_a_whole_request_is_answered_as_the_first_one(tmp_path: Path) -> None:
    """The parser drops the first one, so that no record of it is stored and its client must not see a success."""
    body = json.dumps(record("a")).encode()
    first = b"POST /record HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with api_server(tmp_path) as api:
        assert await ask(api, first + TARGETS["folded header"].replace(b"{}", b"GET /records")) == b""
        assert (await api.get("/record/a")).status == 404


@pytest.mark.parametrize("headers", [{"Host": "other.example.org"}, {"Host": "localhost", "Origin": "http://evil.org"}])
async def test_a_refused_host_or_page_is_logged_without_the_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, headers: dict[str, str]
) -> None:
    async with api_server(tmp_path) as api:
        assert (await api.get("/records?token=SECRET", **headers)).status in {403, 421}
    assert "/records" in logged(caplog)
    assert "SECRET" not in logged(caplog)
