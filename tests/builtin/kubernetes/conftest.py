"""An API server for every test that asks for one."""

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import stamina

pytest.importorskip("kubernetes_asyncio", reason="pip install 'auditord[kubernetes]'")

from auditord.testing import FakeCollectorContext
from auditord_builtin.kubernetes import following
from auditord_builtin.kubernetes.config import KubernetesConfig
from auditord_hookspecs import AuditordError, Batch, Produced, Record
from tests.builtin.kubernetes.kube_server import KubeServer, serving
from tests.builtin.kubernetes.pod_maker import NOW


class Site:
    """A server, and an instance that collects from it.

    Args:
        server: the server.
        folder: where its kubeconfig is.
        patch: changes the size of pages, and the time without an event after which a run ends.
    """

    def __init__(self, server: KubeServer, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.context = FakeCollectorContext(moment=NOW)
        self._folder = folder
        self._patch = patch

    def config(self, page_size: int = 500, quiet: float = 0.05, **options: Any) -> KubernetesConfig:
        self._patch.setattr(following, "PAGE_SIZE", page_size)
        self._patch.setattr(following, "QUIET", timedelta(seconds=quiet))
        quick = {"watch_for": "2s", "kubeconfig": self._folder / "kubeconfig"}
        return KubernetesConfig.model_validate({"earliest_datetime": "2026-01-01T00:00:00Z", **quick, **options})

    async def collect(self, **options: Any) -> list[Record]:
        from auditord_builtin.kubernetes.collecting import KUBERNETES  # noqa: PLC0415 the kind, as the host has it

        return await self.context.keep(KUBERNETES.collect(self.config(**options), self.context))

    async def collect_and_die(self, after: int, **options: Any) -> list[Record]:
        """Collect in a run that is killed once so many of its batches have been kept, and return their records."""
        from auditord_builtin.kubernetes.collecting import KUBERNETES  # noqa: PLC0415 the kind, as the host has it

        batches = KUBERNETES.collect(self.config(**options), self.context)
        before = len(self.context.kept)

        async def some() -> AsyncIterator[Batch]:
            for _ in range(after):
                if (batch := await anext(batches, None)) is None:
                    return
                yield batch

        with suppress(AuditordError):
            await self.context.keep(some())
        await batches.aclose()  # type: ignore[attr-defined] # an async generator
        produced = [each for batch in self.context.kept[before:] for each in batch.records]
        return [each.record if isinstance(each, Produced) else each for each in produced]


@pytest.fixture(autouse=True)
def _no_pauses() -> Generator[None]:
    """Try again at once, and not for long."""
    with stamina.set_testing(True, attempts=8, cap=True):
        yield


@pytest.fixture
async def site(tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Site]:
    assert anyio_backend == "asyncio"
    async with serving(tmp_path) as server:
        yield Site(server, tmp_path, monkeypatch)
