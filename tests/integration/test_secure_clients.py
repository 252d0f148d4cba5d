"""Every client of a server that asks who it is: certificates over mutual TLS, bearer tokens, and neither."""

import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection, IncompleteRead
from pathlib import Path
from ssl import create_default_context
from typing import Final
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from auditord.client import AsyncClient, Client, ClientError, ConnectionFailed, Refused, Tls
from auditord.contexts.plugins import open_records
from auditord.testing import make_record
from auditord.testing.daemon import TestDaemon, running_daemon
from auditord_builtin.access.tokens import TokenFile, new_token
from auditord_hookspecs import AggregateQuery, PluginConfig
from tests.api_server import record
from tests.host_certificates import Authority, HostFiles

LOG: Final = logging.getLogger(__name__)

PYAUDITOR: Final = """
import asyncio, datetime, sys, time, pyauditor
port, cert, key, ca = sys.argv[1:]
now = datetime.datetime(2024, 2, 3, 4, tzinfo=datetime.timezone.utc)

async def main():
    builder = pyauditor.AuditorClientBuilder().address("localhost", int(port)).timeout(20)
    client = builder.with_tls(cert, key, ca).build()
    record = pyauditor.Record("pyauditor-1", now).with_component(pyauditor.Component("Cores", 8))
    record = record.with_meta(pyauditor.Meta().insert("site_id", ["A"]))
    await client.add(record)
    await client.update(record.with_stop_time(now + datetime.timedelta(hours=1)))
    (found,) = [each for each in await client.get() if each.record_id == "pyauditor-1"]
    assert found.runtime == 3600, found.runtime
    assert await client.health_check()
    time.sleep(0.5)

asyncio.run(main())
"""


@dataclass(frozen=True)
class RemoteServer:
    """A server that asks for certificates or tokens.

    Args:
        daemon: itself.
        authority: who vouches for everybody.
        writer: the files of a client that may read and write.
        stranger: those of one that the authority vouches for and that no rule names.
        token: of one who may read.
    """

    daemon: TestDaemon
    authority: Path
    writer: HostFiles
    stranger: HostFiles
    token: str

    @property
    def url(self) -> str:
        return self.daemon.url.replace("127.0.0.1", "localhost")

    @property
    def tls(self) -> Tls:
        return Tls(self.authority, self.writer.certificate, self.writer.key)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteServer]:
    folder = tmp_path_factory.mktemp("far")
    (folder / "state").mkdir()
    authority = Authority(folder)
    host, writer, stranger = (
        authority.issue(name, old_style_key=False) for name in ("host", "ce.example.org", "stranger")
    )
    stored, token = new_token("reports", ["reader"], datetime.now(UTC), datetime.now(UTC) + timedelta(days=1))
    TokenFile(folder / "state").change(lambda _: [stored])
    files = {"certificate": str(host.certificate), "key": str(host.key), "client_ca": str(authority.file)}
    rule = {"common_name": "ce.example.org", "roles": ["reader", "writer"]}
    sections = {
        "api": {"listen": [{"address": "127.0.0.1:0", "tls": {**files, "client_certificate": "optional"}}]},
        "authenticators": {
            "tokens": {"kind": "tokens"},
            "certificates": {"kind": "certificates", "rules": [rule]},
        },
    }
    with running_daemon(folder, sections) as daemon:
        yield RemoteServer(daemon, authority.file, writer, stranger, token)


def test_the_released_python_auditor_over_mutual_tls(far: RemoteServer) -> None:
    port = str(urlsplit(far.url).port)
    arguments = [port, str(far.writer.certificate), str(far.writer.key), str(far.authority)]
    done = subprocess.run(
        [sys.executable, "-c", PYAUDITOR, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def curl(far: RemoteServer, *arguments: str) -> str:
    asked = ("-sS", "--max-time", "30", "--cacert", str(far.authority), "-o", "/dev/null", "-w", "%{http_code}")
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(["curl", *asked, *arguments], capture_output=True, text=True, check=False, env=environment)
    return done.stdout


def test_curl_with_a_token_from_a_file(far: RemoteServer, tmp_path: Path) -> None:
    header = tmp_path / "header"  # never in the list of arguments, which everybody on the host sees
    header.write_text(f"Authorization: Bearer {far.token}\n")
    assert curl(far, "-H", f"@{header}", f"{far.url}/records") == "200"
    assert curl(far, "-H", f"@{header}", f"{far.url}/metrics") == "403"
    assert curl(far, f"{far.url}/records") == "401"
    assert curl(far, f"{far.url}/health_check") == "200"


def test_our_clients_by_certificate_and_by_token(far: RemoteServer) -> None:
    Client(far.url, tls=far.tls).add(make_record("client-1"))
    reader = Client(far.url, tls=Tls(far.authority), token=far.token, retry_waits=())
    found = reader.get("client-1")
    assert found is not None
    assert found.record_id == "client-1"
    with pytest.raises(Refused, match="403 Insufficient permissions"):
        reader.add(make_record("client-2"))
    stranger = Tls(far.authority, far.stranger.certificate, far.stranger.key)
    with pytest.raises(ClientError):
        Client(far.url, tls=stranger, retry_waits=()).get("client-1")
    with pytest.raises(ConnectionFailed):
        Client(far.url, retry_waits=()).get("client-1")


@pytest.mark.anyio
async def test_a_remote_source_by_certificate_and_by_token(far: RemoteServer) -> None:
    async with AsyncClient(far.url, tls=far.tls) as client:
        await client.add(make_record("source-1"))
    files = {"ca": str(far.authority), "certificate": str(far.writer.certificate), "key": str(far.writer.key)}
    for access in ({"tls": files}, {"tls": {"ca": str(far.authority)}, "token": far.token}):
        config = PluginConfig.model_validate({"source": {"url": far.url, **access}})
        async with open_records(config, None) as records:
            assert (await records.aggregate(AggregateQuery())).groups[0].records >= 1


def test_a_remote_sender_ships_over_mutual_tls(far: RemoteServer, tmp_path: Path) -> None:
    tls = {"ca": str(far.authority), "certificate": str(far.writer.certificate), "key": str(far.writer.key)}
    sender = {"kind": "remote", "from": "api", "url": far.url, "tls": tls}
    client = Client(far.url, tls=far.tls)
    with running_daemon(tmp_path, {"senders": {"far": sender}}) as near:
        body = json.dumps(record("shipped-1")).encode()
        posted = Request(f"{near.url}/record", body, {"Content-Type": "application/json"})  # noqa: S310 our own server
        with urlopen(posted, timeout=30) as answer:  # noqa: S310 the same
            assert answer.status == 200
        deadline = time.monotonic() + 30
        while client.get("shipped-1") is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)


# -- wrong credentials ------------------------------------------------------------------------------------------------


def send_wrong_tokens(far: RemoteServer, times: int) -> None:
    """So many requests, each with another wrong token."""
    context = create_default_context(cafile=far.authority)
    with closing(HTTPSConnection("localhost", urlsplit(far.url).port, timeout=30, context=context)) as connection:
        for number in range(times):
            token = f"auditord_{number:012x}_{number:043x}"
            connection.request("GET", f"/records?unknown={number}", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            assert answer.status == 401
            with suppress(IncompleteRead):  # it is cut short on purpose, lest a client takes it for an empty list
                answer.read()
            connection.close()


def latency(far: RemoteServer) -> float:
    """Milliseconds of a good request, in the median."""
    taken = list[float]()
    reader = Client(far.url, tls=Tls(far.authority), token=far.token)
    for _ in range(50):
        begun = time.perf_counter()
        reader.get("none")
        taken.append(1_000 * (time.perf_counter() - begun))
    return statistics.median(taken)


def peak() -> int:
    """The most memory that this process has had, in KiB; the daemon is in it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("times", [300, pytest.param(10_000, marks=pytest.mark.benchmark)])
def test_wrong_credentials_cost_no_memory_and_hold_up_nobody(
    far: RemoteServer, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "auditord.audit")  # pytest would keep every line in this process's memory
    send_wrong_tokens(far, 200)
    before, quick = peak(), latency(far)
    send_wrong_tokens(far, times)
    LOG.info("%d: %d KiB more; good ones %.2f ms, then %.2f", times, peak() - before, quick, latency(far))
    assert peak() - before < 4_096
