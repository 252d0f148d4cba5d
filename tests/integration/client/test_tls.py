"""Certificates of both sides, with both clients."""

import ssl
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import anyio
import pytest

from auditord.client import AsyncClient, Client, ConnectionFailed, Tls
from auditord.testing import make_record
from tests.fake_auditor import FakeAuditor, fake_auditor

Add = Callable[[str, Tls], None]


def add_plainly(url: str, tls: Tls) -> None:
    Client(url, tls=tls, timeout=5, retry_waits=()).add(make_record())


def add_asynchronously(url: str, tls: Tls) -> None:
    async def work() -> None:
        async with AsyncClient(url, tls=tls, timeout=5, retry_waits=()) as client:
            await client.add(make_record())

    anyio.run(work)


@pytest.fixture(params=[add_plainly, add_asynchronously], ids=["sync", "async"])
def add(request: pytest.FixtureRequest) -> Add:
    chosen: Add = request.param
    return chosen


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, a server's and a client's certificate, and another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # Python 3.13 asks for it
    for name in ("ca", "other"):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl(folder, "req", "-x509", *new_key, *files, "-subj", f"/CN={name}", *usage)
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl(folder, "req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return folder


@pytest.fixture
def auditor(certificates: Path) -> Generator[FakeAuditor, None, None]:
    """A server that wants to see a certificate of its authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with fake_auditor(context) as running:
        yield running


def test_both_sides_know_each_other(add: Add, auditor: FakeAuditor, certificates: Path) -> None:
    add(auditor.url, Tls(certificates / "ca.pem", certificates / "client.pem", certificates / "client.key"))
    assert set(auditor.records) == {"test-1"}


def test_a_server_that_nobody_vouches_for(add: Add, auditor: FakeAuditor, certificates: Path) -> None:
    for tls in (Tls(certificates / "other.pem"), Tls()):
        with pytest.raises(ConnectionFailed, match="certificate verify failed") as caught:
            add(auditor.url, tls)
        assert not caught.value.sent
    assert auditor.records == {}


def test_a_client_without_a_certificate(add: Add, auditor: FakeAuditor, certificates: Path) -> None:
    with pytest.raises(ConnectionFailed):
        add(auditor.url, Tls(certificates / "ca.pem"))
    assert auditor.records == {}
