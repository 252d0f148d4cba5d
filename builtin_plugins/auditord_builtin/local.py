"""Sender ``local``: forwards the send-queue to the daemon's own record store. Enabled by default."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from auditord_hookspecs import InstanceConfig, Sender, SenderContext, SenderKind, hookimpl


class LocalConfig(InstanceConfig):
    """Delivers to the record store that ``store.url`` names."""


@asynccontextmanager
async def open_store(config: LocalConfig, context: SenderContext) -> AsyncGenerator[Sender, None]:
    """Open the sender. The daemon opens and closes the store itself."""
    del config
    yield context.store


@hookimpl
def auditord_senders() -> Iterable[SenderKind[Any]]:  # Any: each kind has its own configuration model
    yield SenderKind(name="local", config=LocalConfig, open=open_store)
