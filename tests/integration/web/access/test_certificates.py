"""Client certificates over mutual TLS: the released client, and what a certificate opens and does not."""

import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import Final

import pytest

from auditord.testing.daemon import TestDaemon, running_daemon
from auditord.web.access.client_certificates import certificate_of
from tests.host_certificates import Authority, HostFiles

GRID_NAME: Final = "/DC=org/DC=example/O=Jörg's Institute/CN={}"
POSTING: Final = """
import sys
from datetime import UTC, datetime
from pyauditor import AuditorClientBuilder, Component, Record
port, certificate, key, authority, name = sys.argv[1:]
client = AuditorClientBuilder().address("https://localhost", int(port)).with_tls(certificate, key, authority)
client = client.timeout(20).build_blocking()
record = Record(name, datetime(2026, 1, 1, tzinfo=UTC)).with_component(Component("Cores", 1))
try:
    client.add(record.with_stop_time(datetime(2026, 1, 2, tzinfo=UTC)))
    print("stored")
except RuntimeError as error:
    print("kept", error)
try:
    print(len(client.get()))
except RuntimeError as error:
    print("refused" if "403" in str(error) else error)
"""


@dataclass(frozen=True)
class Secured:
    """A daemon with mutual TLS."""

    daemon: TestDaemon
    authority: Authority

    @property
    def port(self) -> int:
        return int(self.daemon.url.rpartition(":")[2])

    def status(self, files: HostFiles | None, target: str, **headers: str) -> int:
        context = ssl.create_default_context(cafile=str(self.authority.file))
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        connection = HTTPSConnection("localhost", self.port, timeout=20, context=context)
        try:
            connection.request("GET", target, headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def posted_by(self, files: HostFiles, name: str) -> list[str]:
        """The released client's outcomes of posting one record, and of reading all."""
        arguments = [str(self.port), str(files.certificate), str(files.key), str(self.authority.file), name]
        command = [sys.executable, "-c", POSTING, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    server = authority.issue("server")
    tls = {"certificate": str(server.certificate), "key": str(server.key), "client_ca": str(authority.file)}
    rules = [
        {"common_name": "writer", "roles": ["writer"]},
        {"subject": GRID_NAME.format("reader"), "roles": ["reader"]},
        {"alternative_name": "nobody.example.org", "roles": ["administrator"]},
    ]
    sections = {
        "api": {"listen": [{"address": "127.0.0.1:0", "tls": tls}]},
        "authenticators": {"certificates": {"kind": "certificates", "rules": rules}},
    }
    with running_daemon(folder, sections) as daemon:
        yield Secured(daemon, authority)


def test_the_released_client_writes_and_reads_by_its_certificate(secured: Secured) -> None:
    assert secured.posted_by(secured.authority.issue("writer"), "mine") == ["stored", "refused"]
    said, read = secured.posted_by(secured.authority.issue("reader"), "not-mine")
    assert said.startswith("kept")
    assert read == "1"


def test_no_header_makes_more_of_a_certificate(secured: Secured) -> None:
    writer = secured.authority.issue("writer")
    forged = ({"X-Forwarded-Proto": "http"}, {"Forwarded": "proto=http"}, {"X-SSL-Client-CN": "reader"})
    assert [secured.status(writer, "/records", **headers) for headers in forged] == [403] * 3
    assert secured.status(secured.authority.issue("reader"), "/records") == 200


def test_a_certificate_that_no_rule_names_opens_nothing_but_health(secured: Secured) -> None:
    stranger = secured.authority.issue("stranger")
    assert [secured.status(stranger, target) for target in ("/records", "/metrics", "/nothing")] == [401] * 3
    assert secured.status(stranger, "/health_check") == 200


def test_without_a_certificate_or_with_another_authoritys_nobody_comes_in(secured: Secured, tmp_path: Path) -> None:
    for files in (None, Authority(tmp_path).issue("reader")):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            secured.status(files, "/health_check")


def test_names_of_a_certificate(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()  # files are named after certificates
    names = certificate_of(ssl.PEM_cert_to_DER_cert(Authority(tmp_path).issue("x/CN=admin").certificate.read_text()))
    assert names.common_names == ("x/CN=admin",)
    assert names.subject == "CN=x/CN=admin,O=Jörg's Institute,DC=example,DC=org"
    assert names.grid_subject == GRID_NAME.format("x\\/CN=admin")
    assert names.alternative_names == ("localhost",)
