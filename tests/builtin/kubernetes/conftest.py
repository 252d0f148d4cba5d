"""An API server for every test that asks for one."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
import stamina

pytest.importorskip("kubernetes_asyncio", reason="pip install 'auditord[kubernetes]'")

from auditord.testing import FakeCollectorContext
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_hookspecs import Record
from tests.builtin.kubernetes.kube_server import KubeServer, serving
from tests.builtin.kubernetes.pod_maker import NOW


class Site:
    """A server, and an instance that collects from it.

    Args:
        server: the server.
        folder: where its kubeconfig is.
    """

    def __init__(self, server: KubeServer, folder: Path) -> None:
        self.server = server
        self.context = FakeCollectorContext(moment=NOW)
        self._folder = folder

    def config(self, **options: Any) -> KubernetesConfig:
        quick = {"quiet": "50ms", "watch_for": "2s", "kubeconfig": self._folder / "kubeconfig"}
        return KubernetesConfig.model_validate({"earliest_datetime": "2026-01-01T00:00:00Z", **quick, **options})

    async def collect(self, **options: Any) -> list[Record]:
        from auditord_builtin.kubernetes.collecting import KUBERNETES  # noqa: PLC0415 the kind, as the host has it

        return await self.context.keep(KUBERNETES.collect(self.config(**options), self.context))


@pytest.fixture(autouse=True)
def _no_pauses() -> Generator[None]:
    """Try again at once, and not for long."""
    with stamina.set_testing(True, attempts=8, cap=True):
        yield


@pytest.fixture
async def site(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Site]:
    assert anyio_backend == "asyncio"
    async with serving(tmp_path) as server:
        yield Site(server, tmp_path)
