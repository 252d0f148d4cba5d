"""Sender ``remote``: ships the send-queue to an auditord or an AUDITOR elsewhere, over AUDITOR's wire contract."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from auditord.client import AsyncClient
from auditord_builtin.remote.config import MAX_BATCH, RemoteConfig
from auditord_builtin.remote.delivery import RemoteSender
from auditord_hookspecs import Sender, SenderContext, SenderKind, hookimpl

RETRY_SECONDS: Final = 0.1


@asynccontextmanager
async def open_remote(config: RemoteConfig, context: SenderContext) -> AsyncGenerator[Sender, None]:
    """A client for the destination; whether it is there shows when something is sent."""
    client = AsyncClient(
        config.url,
        tls=config.tls.client_side(),
        token=None if config.token is None else config.token.get_secret_value(),
        timeout=config.timeout.total_seconds(),
        retry_waits=(RETRY_SECONDS,),  # the host waits longer after each fault that stays, and says so
    )
    async with client:
        yield RemoteSender(client, context.log, open_records=config.open_records, batch_size=config.batch_size)


@hookimpl
def auditord_senders() -> Iterable[SenderKind[Any]]:  # Any: each kind has its own configuration model
    """Bring the sender."""
    yield SenderKind(name="remote", config=RemoteConfig, open=open_remote, batch_size=MAX_BATCH)
