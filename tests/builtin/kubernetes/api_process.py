"""A real kube-apiserver over a real etcd, in a folder of its own; without kubelets, schedulers and controllers."""

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.builtin.kubernetes.real_cluster import connected
from tests.ports import free_ports

PATIENCE = 120.0
MISSING = [name for name in ("kube-apiserver", "etcd") if shutil.which(name) is None]


class ApiServer:
    """Both processes, of which the API server can be killed and started again on its port.

    Args:
        folder: where they keep what they know.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = secrets.token_hex(16)
        self.port, self._etcd_port, self._peer_port = free_ports(3)
        self.url = f"https://127.0.0.1:{self.port}"
        self.kills = 0
        self._etcd: asyncio.subprocess.Process | None = None
        self._server: asyncio.subprocess.Process | None = None
        (folder / "tokens.csv").write_text(f'{self.token},admin,1000,"system:masters"\n')
        (folder / "key.pem").write_bytes(_key())

    async def start(self) -> None:
        """Start whichever of the two does not run, until both answer."""
        if self._etcd is None:
            self._etcd = await self._process("etcd", self._etcd_options())
        self._server = await self._process("kube-apiserver", self._options())
        deadline = time.monotonic() + PATIENCE
        while not await self._ready():
            assert time.monotonic() < deadline, (self.folder / "kube-apiserver.log").read_text()[-3000:]
            await asyncio.sleep(0.1)

    async def kill(self) -> None:
        """Kill the API server alone: what it remembered of events is lost."""
        self.kills += 1
        await _end(self._server)
        self._server = None

    async def stop(self) -> None:
        """End both."""
        await _end(self._server)
        await _end(self._etcd)

    async def _ready(self) -> bool:
        with suppress(aiohttp.ClientError, OSError):
            async with (
                connected(self.url, self.token, "") as cluster,
                cluster.session.get(f"{self.url}/readyz") as answer,
            ):
                return answer.status == 200
        return False

    async def _process(self, program: str, options: Sequence[str]) -> asyncio.subprocess.Process:
        with (self.folder / f"{program}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                program, *options, cwd=self.folder, env={"PATH": os.environ["PATH"]}, stdout=log, stderr=log
            )

    def _etcd_options(self) -> Sequence[str]:
        clients, peers = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        return (
            *("--data-dir", str(self.folder / "etcd"), "--initial-cluster", f"default={peers}"),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        )

    def _options(self) -> Sequence[str]:
        return (
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self.port}"),
            *(f"--cert-dir={self.folder / 'certificates'}", f"--token-auth-file={self.folder / 'tokens.csv'}"),
            *("--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--api-audiences=api"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self.folder / 'key.pem'}",
            f"--service-account-key-file={self.folder / 'key.pem'}",
            "--disable-admission-plugins=ServiceAccount",  # nobody makes the accounts
        )


def _key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form, none = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, none)


async def _end(process: asyncio.subprocess.Process | None) -> None:
    if process is not None and process.returncode is None:
        process.kill()
        await process.wait()


@asynccontextmanager
async def api_server(folder: Path) -> AsyncGenerator[ApiServer]:
    """Both running, and ended whatever happens."""
    server = ApiServer(folder)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
