"""The client behind ``context.http``: proxy, TLS, time limits, bounds and retries, for every hook module."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import aiohttp.web
import pytest
import stamina
import stamina.instrumentation

from auditord import __version__
from auditord.client import ClientError
from auditord.client.http import open_client, retry_after
from auditord_hookspecs import (
    CertificateUntrusted,
    HttpOptions,
    HttpStatusError,
    InvalidHttpAnswer,
    NoHttpAnswer,
)
from auditord_hookspecs.sources import TlsFiles
from tests.host_certificates import Authority

pytestmark = pytest.mark.anyio

SECOND = timedelta(seconds=1)


@dataclass
class Server:
    """A server that answers with what the test says, in order, the last answer for ever."""

    url: str = ""
    answers: list[aiohttp.web.Response] = field(default_factory=list[aiohttp.web.Response])
    requests: list[aiohttp.web.Request] = field(default_factory=list[aiohttp.web.Request])
    bodies: list[bytes] = field(default_factory=list[bytes])

    def answer(self, *statuses: int, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers = [aiohttp.web.Response(status=status, headers=named) for status in statuses]

    async def handle(self, request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        assert isinstance(request, aiohttp.web.BaseRequest)
        self.requests.append(request)  # type: ignore[arg-type] # a low-level server knows no routes
        self.bodies.append(await request.read())
        made = self.answers.pop(0) if self.answers else aiohttp.web.Response()
        if not self.answers:
            self.answers = [aiohttp.web.Response(status=made.status, headers=_own(made), body=made.body)]
        return made


def _own(made: aiohttp.web.Response) -> dict[str, str]:
    return {name: value for name, value in made.headers.items() if name in {"Retry-After", "Location", "Link"}}


@asynccontextmanager
async def serving(handle: "Callable[..., object]", trust: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    runner = aiohttp.web.ServerRunner(aiohttp.web.Server(handle), shutdown_timeout=0.1)  # type: ignore[arg-type] # of one answer
    await runner.setup()
    try:
        site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"{'http' if trust is None else 'https'}://{host}:{port}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    made = Server()
    async with serving(made.handle) as made.url:
        yield made


@pytest.fixture
def waits() -> Generator[list[float]]:
    """The pauses before further attempts."""
    found, hooks = list[float](), stamina.instrumentation.get_on_retry_hooks()
    stamina.instrumentation.set_on_retry_hooks([lambda details: found.append(details.wait_for)])
    yield found
    stamina.instrumentation.set_on_retry_hooks(hooks)


async def test_every_request_says_who_asks_and_what_the_options_say(server: Server) -> None:
    server.answers = [aiohttp.web.Response(body=b"{}", headers={"Link": '<https://far.example/2>; rel="next"'})]
    statuses: list[int | None] = []
    options = HttpOptions(headers={"Authorization": "Bearer x"}, on_attempt=statuses.append)
    async with open_client(options) as client:
        answer = await client.request("GET", f"{server.url}/a%2Fb?c[d]=e", params=[("f", "g h"), ("f", "i")])
        await client.request("POST", server.url, form={"grant_type": "client_credentials"})
        await client.request("POST", server.url, body=b"[1]")
    first, second, third = server.requests
    assert (first.headers["User-Agent"], first.headers["Authorization"]) == (f"auditord/{__version__}", "Bearer x")
    assert (first.path_qs, answer.body, dict(answer.links)) == (
        "/a%2Fb?c[d]=e&f=g+h&f=i",
        b"{}",
        {"next": "https://far.example/2"},
    )
    assert [second.content_type, third.content_type] == ["application/x-www-form-urlencoded", "application/json"]
    assert (server.bodies[1:], statuses) == ([b"grant_type=client_credentials", b"[1]"], [200, 200, 200])


async def test_no_password_comes_from_netrc(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with open_client(HttpOptions()) as client:
        await client.request("GET", server.url)
    assert "Authorization" not in server.requests[0].headers


async def test_retry_after_is_honoured(server: Server, waits: list[float]) -> None:
    server.answers = [
        aiohttp.web.Response(status=503, headers={"Retry-After": "0"}),
        aiohttp.web.Response(status=429, headers={"Retry-After": "0"}),
        aiohttp.web.Response(status=200),
    ]
    async with open_client(HttpOptions()) as client:
        answer = await client.request("GET", server.url)
    assert (answer.status, answer.attempts, waits) == (200, 3, [0.0, 0.0])


async def test_a_retry_after_beyond_the_time_for_retries_ends_them(server: Server, waits: list[float]) -> None:
    server.answer(503, Retry_After="3600")
    async with open_client(HttpOptions(retry_for=60 * SECOND)) as client:
        answer = await client.request("GET", server.url)
    assert (answer.status, answer.attempts, waits) == (503, 1, [])


async def test_pauses_grow_unless_they_are_given(server: Server, waits: list[float]) -> None:
    server.answer(502)
    async with open_client(HttpOptions(attempts=3, waits=(0.001, 0.002))) as client:
        assert (await client.request("GET", server.url)).attempts == 3
    assert waits == [0.001, 0.002]
    waits.clear()
    async with open_client(HttpOptions(attempts=2)) as client:
        assert (await client.request("GET", server.url)).attempts == 2
    assert 0.5 <= waits[0] <= 1.0


async def test_only_what_may_be_repeated_is_repeated(server: Server) -> None:
    server.answer(503)
    async with open_client(HttpOptions(attempts=3, waits=(0, 0))) as client:
        assert (await client.request("POST", server.url, body=b"1")).attempts == 1
        assert (await client.request("POST", server.url, body=b"1", idempotent=True)).attempts == 3
        assert (await client.request("POST", server.url, idempotent=True, retry_for=-SECOND)).attempts == 1
        assert (await client.request("PUT", server.url, body=b"1")).attempts == 3
        server.answer(500)
        assert (await client.request("GET", server.url)).attempts == 1
    async with open_client(HttpOptions(attempts=3, waits=(0, 0), retried={500})) as client:
        assert (await client.request("GET", server.url)).attempts == 3


async def test_a_server_that_is_not_there(waits: list[float]) -> None:
    statuses: list[int | None] = []
    async with open_client(HttpOptions(attempts=2, waits=(0,), on_attempt=statuses.append)) as client:
        with pytest.raises(NoHttpAnswer, match=r"cannot connect: 127\.0\.0\.1:\d+: Connection refused") as caught:
            await client.request("POST", "http://127.0.0.1:1/")  # it has seen nothing, so that a POST may be repeated
    assert (caught.value.sent, caught.value.attempts, statuses, waits) == (False, 2, [None, None], [0])


async def test_a_silent_server(waits: list[float]) -> None:
    async def silent(request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        await asyncio.sleep(3600)
        return aiohttp.web.Response(text=request.path)

    options = HttpOptions(timeout=0.1 * SECOND, attempts=2, waits=(0,))
    async with serving(silent) as url, open_client(options) as client:
        with pytest.raises(NoHttpAnswer) as caught:
            await client.request("GET", url)
        assert (caught.value.sent, caught.value.attempts, waits) == (True, 2, [0])
        with pytest.raises(NoHttpAnswer) as caught:
            await client.request("POST", url)
        assert (caught.value.sent, caught.value.attempts) == (True, 1)


async def test_an_answer_that_is_too_long_and_one_that_is_no_http(server: Server) -> None:
    server.answers = [aiohttp.web.Response(body=bytes(1001))]

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    mail = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with mail, open_client(HttpOptions(max_answer=1000)) as client:
        with pytest.raises(InvalidHttpAnswer, match="more than 1000 bytes"):
            await client.request("GET", server.url)
        with pytest.raises(InvalidHttpAnswer, match="does not speak HTTP"):
            await client.request("GET", f"http://127.0.0.1:{mail.sockets[0].getsockname()[1]}")
        with pytest.raises(InvalidHttpAnswer):
            await client.request("GET", "far.example/without-scheme")


async def test_redirects_are_answers(server: Server) -> None:
    server.answer(302, Location="http://far.example/")
    async with open_client(HttpOptions()) as client:
        answer = await client.request("GET", server.url)
        with pytest.raises(HttpStatusError) as caught:
            async with client.stream("GET", server.url):
                pass
    assert (answer.status, answer.ok, caught.value.answer.headers["location"]) == (302, False, "http://far.example/")


@pytest.mark.parametrize(("excepted", "proxied"), [("", True), ("far.example", False)])
async def test_the_environment_names_the_proxy(
    server: Server, monkeypatch: pytest.MonkeyPatch, excepted: str, *, proxied: bool
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", excepted)
    async with open_client(HttpOptions(attempts=1)) as client:
        await client.request("GET", f"{server.url}/loopback")
        if proxied:
            await client.request("GET", "http://far.example/records")
        else:
            with pytest.raises(NoHttpAnswer):
                await client.request("GET", "http://far.example/records")
    assert [str(request.raw_path) for request in server.requests] == [
        "/loopback",
        *(["http://far.example/records"] if proxied else []),
    ]


async def test_a_proxy_of_the_options(server: Server) -> None:
    async with open_client(HttpOptions(proxy=server.url)) as client:
        await client.request("GET", "http://far.example/records")
    assert server.requests[0].raw_path == "http://far.example/records"


async def test_certificates_of_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    host, ours = authority.issue("host", old_style_key=False), authority.issue("ours", old_style_key=False)
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    trust.load_cert_chain(host.certificate, host.key)
    trust.verify_mode = ssl.CERT_REQUIRED
    server = Server()
    known = TlsFiles(ca=authority.file, certificate=ours.certificate, key=ours.key)
    unknown = TlsFiles(certificate=ours.certificate, key=ours.key)
    async with serving(server.handle, trust) as url:
        async with open_client(HttpOptions(tls=known)) as client:
            assert (await client.request("GET", url)).ok
        async with open_client(HttpOptions(tls=unknown, verify=False)) as client:
            assert (await client.request("GET", url)).ok
        async with open_client(HttpOptions(tls=unknown)) as client:
            with pytest.raises(CertificateUntrusted) as caught:
                await client.request("GET", url)
    assert (caught.value.attempts, caught.value.sent) == (1, False)
    with pytest.raises(ClientError, match="TLS files"):
        await _open(open_client(HttpOptions(tls=TlsFiles(ca=tmp_path / "none.pem"))))


async def _open(client: AbstractAsyncContextManager[object]) -> None:
    async with client:
        pass


@pytest.mark.parametrize("whole", [True, False])
async def test_a_stream(*, whole: bool) -> None:
    async def speak(request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        response = aiohttp.web.StreamResponse(headers={"Content-Length": "6"})
        await response.prepare(request)
        await response.write(b"abc")
        if whole:
            await response.write(b"def")
        elif request.transport is not None:
            request.transport.close()
        return response

    async with serving(speak) as url, open_client(HttpOptions()) as client, client.stream("GET", url) as answer:
        assert answer.headers["content-length"] == "6"
        if whole:
            assert b"".join([piece async for piece in answer]) == b"abcdef"
            return
        with pytest.raises(NoHttpAnswer) as caught:
            [piece async for piece in answer]
    assert caught.value.sent


async def test_a_truncated_error_is_an_answer_and_a_truncated_success_is_none() -> None:
    async def speak(request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        response = aiohttp.web.StreamResponse(status=int(request.path[1:]), headers={"Content-Length": "6"})
        await response.prepare(request)
        assert request.transport is not None
        request.transport.close()
        return response

    async with serving(speak) as url, open_client(HttpOptions(attempts=1)) as client:
        assert (await client.request("POST", f"{url}/403")).status == 403
        with pytest.raises(NoHttpAnswer):
            await client.request("POST", f"{url}/200")


async def test_a_stream_is_asked_for_again_until_it_begins(server: Server) -> None:
    server.answers = [aiohttp.web.Response(status=503), aiohttp.web.Response(body=b"abc")]
    async with open_client(HttpOptions(waits=(0,))) as client, client.stream("GET", server.url) as answer:
        assert [piece async for piece in answer] == [b"abc"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5.0),
        ("Sun, 22 Nov 2026 12:00:30 GMT", 30.0),
        ("Sun, 22 Nov 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("", None),
    ],
)
async def test_the_instant_of_retry_after_is_by_the_server_s_clock(text: str, seconds: float | None) -> None:
    headers = {"Retry-After": text, "Date": "Sun, 22 Nov 2026 12:00:00 GMT"}
    assert retry_after(headers) == seconds
