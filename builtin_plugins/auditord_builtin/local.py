"""Sender ``local``: forwards the send-queue to the daemon's own record store. Enabled by default."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from auditord_hookspecs import Entry, InstanceConfig, RecordsRejected, Sender, SenderContext, SenderKind, hookimpl


class LocalConfig(InstanceConfig):
    """Delivers to the record store that ``store.url`` names."""


class StoreSender:
    """Writes entries to the record store."""

    def __init__(self, context: SenderContext) -> None:
        self._store = context.store

    async def send(self, entries: Sequence[Entry]) -> None:
        """Deliver the entries in order, in one transaction if the store supports that."""
        refused = await self._store.deliver(entries)
        if refused:
            raise RecordsRejected(dict(refused))


@asynccontextmanager
async def open_store(config: LocalConfig, context: SenderContext) -> AsyncGenerator[Sender, None]:
    """Open the sender. The daemon opens and closes the store itself."""
    del config
    yield StoreSender(context)


@hookimpl
def auditord_senders() -> Iterable[SenderKind[Any]]:  # Any: each kind has its own configuration model
    """Declare the kind ``local``."""
    yield SenderKind(name="local", config=LocalConfig, open=open_store)
