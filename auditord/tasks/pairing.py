"""Seeing that record store and spool belong together, at the start and as soon as the store can be asked."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio

from auditord.config.model import Configuration
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.errors import StoreMismatch, StoreUnavailable
from auditord.ingest import Pairing, missing_store
from auditord.spool import Spool
from auditord.store import RecordStore

_BETWEEN_LOOKS: Final = 1.0  # seconds, while the store is away


async def refuse_missing_store(configuration: Configuration, spool: Spool) -> None:
    """Return unless the file of a store is gone that the spool knows; to open it would make a new one.

    Raises:
        StoreMismatch: it is gone.
    """
    url = configuration.store.url
    if is_postgresql(url) or (path := sqlite_path(url)).exists():
        return
    if (await spool.generation()).number > 0:
        raise missing_store(path)


@asynccontextmanager
async def paired(store: RecordStore, spool: Spool) -> AsyncGenerator[Pairing, None]:
    """See that they belong together, and on leaving, too, so that a copy made in between is known for an older one.

    A store that is away now is looked at before anything is delivered to it.

    Raises:
        StoreMismatch: they do not belong together, or one of them is an older copy.
    """
    pairing = Pairing(store, spool)
    with suppress(StoreUnavailable):
        await pairing.advance_both()
    yield pairing
    with suppress(StoreUnavailable, StoreMismatch):  # the next start says so
        await pairing.advance_both()


async def pair_when_back(pairing: Pairing) -> None:
    """Return once the store could be asked and is the spool's.

    Raises:
        StoreMismatch: it is not.
    """
    while True:
        try:
            return await pairing.advance_both()
        except StoreUnavailable:
            await anyio.sleep(_BETWEEN_LOOKS)
