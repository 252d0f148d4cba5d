"""Two daemons that share a database, behind the HAProxy of the manual: restarted in turn, and killed."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.acceptance.test_drain import PATIENCE, Daemon, settled, stored
from tests.ports import free_ports

HAPROXY: Final = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(
        HAPROXY is None, reason="HAProxy is not installed; as root, tests/services/haproxy-install installs it"
    ),
]

MANUAL: Final = Path(__file__).parents[2] / "auditord/manual/several-daemons.md"
CLIENTS: Final = 8
NAMES: Final = ("one", "two")


class Clients:
    """Clients, each with an address and a connection of its own, that post one record after another.

    Args:
        port: of the proxy.
        repeat: whether they post again what was not answered with 200.
    """

    def __init__(self, port: int, *, repeat: bool) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._repeat = repeat
        self._enough = asyncio.Event()
        self.posted: list[set[str]] = [set() for _ in range(CLIENTS)]
        self.failures: list[str] = []

    async def post(self, client: int) -> None:
        """Be one of them until :meth:`stop`."""
        connector = aiohttp.TCPConnector(local_addr=(f"127.0.1.{client + 1}", 0), limit=1)
        headers = {"Host": "accounting.example.org"}
        async with aiohttp.ClientSession(self._url, connector=connector, headers=headers) as session:
            while not self._enough.is_set() and (self._repeat or not self.failures):
                name = f"client{client}-{len(self.posted[client])}"
                if await self._is_posted(session, name):
                    self.posted[client].add(name)

    async def _is_posted(self, session: aiohttp.ClientSession, name: str) -> bool:
        body = {"record_id": name, "components": list[object](), "start_time": "2026-01-01T00:00:00Z"}
        try:
            async with session.post("/record", json=body) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, ConnectionError) as error:
            self.failures.append(repr(error))
            return False
        if answer.status != 200:
            self.failures.append(f"{answer.status}: {text}")
        return answer.status == 200

    async def go_on(self, many: int = 25) -> None:
        """Wait until each of them has posted so many further records."""
        wanted = [len(posted) + many for posted in self.posted]
        async with asyncio.timeout(PATIENCE):
            while any(len(posted) < each for posted, each in zip(self.posted, wanted, strict=True)):
                assert self._repeat or not self.failures, self.failures
                await asyncio.sleep(0.005)

    def stop(self) -> None:
        self._enough.set()


class Balancer:
    """A running HAProxy.

    Args:
        port: for clients.
        control: its socket.
    """

    def __init__(self, port: int, control: Path) -> None:
        self.port = port
        self._control = control

    async def sees(self, server: str, status: str) -> None:
        """Wait until it takes the server for ``UP``, or ``DOWN``."""
        async with asyncio.timeout(PATIENCE):
            while not (await self._column("status", server)).startswith(status):  # noqa: ASYNC110 another process sets no event
                await asyncio.sleep(0.05)

    async def connections(self, server: str) -> int:
        """Those that the server has had."""
        return int(await self._column("stot", server))

    async def _column(self, name: str, server: str) -> str:
        reader, writer = await asyncio.open_unix_connection(self._control)
        writer.write(b"show stat\n")
        heads, *rows = [line.split(",") for line in (await reader.read()).decode().splitlines() if line]
        writer.close()
        await writer.wait_closed()
        [value] = [row[heads.index(name)] for row in rows if row[:2] == ["auditord", server]]
        return value


def configuration(control: Path, port: int, servers: Sequence[int]) -> str:
    """The manual's, with the ports of this test and without TLS."""
    block = MANUAL.read_text().split("```text\n")[1].split("```")[0]
    own = {f"192.0.2.{number}:8000": f"127.0.0.1:{port}" for number, port in enumerate(servers, 1)}
    for before, after in {":443 ssl crt /etc/haproxy/accounting.pem": f"127.0.0.1:{port}", **own}.items():
        assert before in block
        block = block.replace(before, after)
    return f"global\n    stats socket {control}\n\n{block}"


@asynccontextmanager
async def balancer(folder: Path, servers: Sequence[int]) -> AsyncGenerator[Balancer, None]:
    assert HAPROXY is not None
    file, control, [port] = folder / "haproxy.cfg", folder / "haproxy.sock", free_ports(1)
    file.write_text(configuration(control, port, servers))
    process = await asyncio.create_subprocess_exec(HAPROXY, "-db", "-f", str(file))
    try:
        async with asyncio.timeout(PATIENCE):
            while not control.exists():
                assert process.returncode is None
                await asyncio.sleep(0.02)
        yield Balancer(port, control)
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def pair(
    folder: Path, store: str, *, repeat: bool
) -> AsyncGenerator[tuple[dict[str, Daemon], Balancer, Clients], None]:
    """Two daemons, the balancer before them, and clients that post; at the end all that they posted is there once."""
    ports = free_ports(2)
    daemons = dict[str, Daemon]()
    for name, port in zip(NAMES, ports, strict=True):
        (folder / name).mkdir()
        daemons[name] = Daemon(folder / name, store, port, proxies=["127.0.0.1"], hosts=["accounting.example.org"])
    try:
        for daemon in daemons.values():
            await daemon.start()
        async with balancer(folder, ports) as between:
            clients = Clients(between.port, repeat=repeat)
            async with asyncio.TaskGroup() as group:
                for number in range(CLIENTS):
                    group.create_task(clients.post(number))
                yield daemons, between, clients
                clients.stop()
        for daemon in daemons.values():
            await settled(daemon)
        assert set(await stored(daemons["one"])) == set[str]().union(*clients.posted)
    finally:
        for daemon in daemons.values():
            await daemon.kill()


async def test_no_request_is_refused_while_both_are_restarted_in_turn(tmp_path: Path, postgres_url: str) -> None:
    async with pair(tmp_path, postgres_url, repeat=False) as (daemons, between, clients):
        await clients.go_on()
        assert all([await between.connections(name) for name in NAMES])
        for name in NAMES * 2:
            await daemons[name].stop()
            await clients.go_on()
            await daemons[name].start()
            await between.sees(name, "UP")
            await clients.go_on()
    assert clients.failures == []


async def test_what_clients_repeat_after_kills_is_there_once(tmp_path: Path, postgres_url: str) -> None:
    async with pair(tmp_path, postgres_url, repeat=True) as (daemons, between, clients):
        for name in NAMES * 2:
            await clients.go_on()
            await daemons[name].kill()
            await clients.go_on()
            await daemons[name].start()
            await between.sees(name, "UP")
