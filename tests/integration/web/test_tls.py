"""TLS at the listeners: what is spoken, who gets in, and how a renewed certificate is picked up."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from auditord.client import AsyncClient, ClientError, Tls
from auditord.config.listen import ListenTls, TcpListen
from auditord.errors import ConfigurationError
from auditord.web.listeners import accepting, bind_sockets, server_context
from tests.api_server import api_server, record
from tests.host_certificates import Authority, HostFiles

pytestmark = pytest.mark.anyio


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls(files: HostFiles, **options: object) -> dict[str, object]:
    written = {"certificate": str(files.certificate), "key": str(files.key)}
    return {"address": "127.0.0.1:0", "tls": written | options}


def client_side(authority: Authority, files: HostFiles | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context


async def test_records_go_in_and_out(tmp_path: Path, authority: Authority) -> None:
    host = authority.issue("host", old_style_key=False)
    async with api_server(tmp_path, listen=tls(host), client_tls=client_side(authority)) as api:
        assert api.url.startswith("https://127.0.0.1:")
        assert (await api.ask("POST", "/record", record("a"))).status == 200
        assert b'"a"' in (await api.get("/records")).body


async def test_without_a_certificate_nobody_gets_in_where_one_is_required(tmp_path: Path, authority: Authority) -> None:
    host, client = authority.issue("host", old_style_key=False), authority.issue("client", old_style_key=False)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("stranger", old_style_key=False)
    listen = tls(host, client_ca=str(authority.file))
    async with api_server(tmp_path, listen=listen, client_tls=client_side(authority, client)) as api:
        assert (await api.get("/health_check")).status == 200
        for shown in (Tls(authority.file), Tls(authority.file, stranger.certificate, stranger.key)):
            async with AsyncClient(api.url, tls=shown, retry_waits=()) as refused:
                with pytest.raises(ClientError):
                    await refused.get("a")


async def test_where_a_certificate_is_optional_a_wrong_one_is_still_refused(
    tmp_path: Path, authority: Authority
) -> None:
    host = authority.issue("host", old_style_key=False)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("stranger", old_style_key=False)
    listen = tls(host, client_ca=str(authority.file), client_certificate="optional")
    async with api_server(tmp_path, listen=listen, client_tls=client_side(authority)) as api:
        assert (await api.get("/health_check")).status == 200
        async with aiohttp.ClientSession() as other:
            with pytest.raises(aiohttp.ClientError):
                await other.get(f"{api.url}/health_check", ssl=client_side(authority, stranger))


async def test_plain_http_is_not_answered_and_old_versions_are_not_spoken(tmp_path: Path, authority: Authority) -> None:
    host = authority.issue("host", old_style_key=False)
    async with api_server(tmp_path, listen=tls(host), client_tls=client_side(authority)) as api:
        async with aiohttp.ClientSession() as plain:
            with pytest.raises(aiohttp.ClientError):
                await plain.get(api.url.replace("https:", "http:") + "/health_check")
        port = int(api.url.rpartition(":")[2])
        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(old_handshake, port)


def old_handshake(port: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AES256-SHA:AES128-SHA256")  # no forward secrecy, no authentication of the ciphertext
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, context.wrap_socket(sock):
        pass


def test_files_that_cannot_be_used_are_named(tmp_path: Path, authority: Authority) -> None:
    host = authority.issue("host", old_style_key=False)
    locked = authority.issue("locked", old_style_key=False, passphrase=b"secret")
    other = authority.issue("other", old_style_key=False)
    for files, said in (
        (ListenTls(certificate=tmp_path / "none.pem"), "none.pem: No such file"),
        (ListenTls(certificate=host.certificate, key=other.key), "the key does not belong to the certificate"),
        (ListenTls(certificate=locked.certificate, key=locked.key), "passphrase"),
        (ListenTls(certificate=host.certificate, key=host.key, client_ca=host.key), "client_ca .*host.key"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            server_context(files)


# -- renewal ----------------------------------------------------------------------------------------------------


class Greeter(asyncio.Protocol):
    """Says back what it hears."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own ones are not derived from it

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@asynccontextmanager
async def greeting(files: HostFiles) -> AsyncGenerator[int, None]:
    address = TcpListen("127.0.0.1", 0, tls=ListenTls(certificate=files.certificate, key=files.key))
    with bind_sockets([address]) as (bound,):
        async with accepting([bound], Greeter, renewal=timedelta(milliseconds=10)):
            yield bound.socket.getsockname()[1]


async def exchange(port: int, context: ssl.SSLContext) -> bytes:
    """Connect, be greeted, leave; returns the certificate that was shown."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return shown
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {}), ("asyncio", {"use_uvloop": True})])
async def test_certificates_are_renewed_under_load_without_a_failed_request(authority: Authority) -> None:
    host, context = authority.issue("host", old_style_key=False), client_side(authority)
    async with greeting(host) as port, asyncio.timeout(60):
        shown, done = set[bytes](), False

        async def load() -> None:
            while not done:
                shown.add(await exchange(port, context))

        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        clients = [asyncio.create_task(load()) for _ in range(8)]
        for number in range(1, 6):
            while len(shown) < number:
                assert [client.exception() for client in clients if client.done()] == []
                await asyncio.sleep(0)
            if number < 5:
                authority.issue("host", old_style_key=False)
                os.utime(host.certificate, (number, number))  # else perhaps of the same instant, by a coarse clock
        done = True
        await asyncio.gather(*clients)
        writer.write(b"still")
        assert await reader.readexactly(5) == b"still", "who came before the first renewal is still served"
        writer.close()
        await writer.wait_closed()


async def test_half_a_renewal_changes_nothing_and_is_mended_by_the_other_half(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    host = authority.issue("host", old_style_key=False)
    context = client_side(authority)
    async with greeting(host) as port, asyncio.timeout(60):
        before = await exchange(port, context)
        (tmp_path / "new").mkdir()
        renewed = authority.issue("renewed", old_style_key=False)
        host.certificate.write_bytes(renewed.certificate.read_bytes())
        while "stays in use" not in caplog.text:  # noqa: ASYNC110 the daemon's own log is what tells
            await asyncio.sleep(0.01)
        assert await exchange(port, context) == before
        host.key.write_bytes(renewed.key.read_bytes())
        while await exchange(port, context) == before:
            pass
