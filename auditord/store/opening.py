"""The record store that a URL names."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from auditord.config.store_url import sqlite_path
from auditord.errors import ConfigurationError
from auditord.store.protocol import RecordStore
from auditord.store.sqlite import SqliteRecordStore


@asynccontextmanager
async def open_store(
    url: str, *, counted_keys: Sequence[str], outbox: bool = False
) -> AsyncGenerator[RecordStore, None]:
    """The store that ``store.url`` names, closed on leaving.

    Args:
        url: ``sqlite:///var/lib/auditord/records.db``; the path is absolute (a fourth slash does no harm).
        counted_keys: meta keys whose values ``counts()`` tells.
        outbox: whether changes are kept for senders, see :meth:`RecordStore.outbox`.

    Raises:
        ConfigurationError: the URL is none of those that this version can open.
        SchemaMismatch: the file is another program's, or newer than this version.
        StoreUnavailable: it cannot be opened, or not be written.
    """
    store = await SqliteRecordStore.open(_sqlite_path(url), counted_keys=counted_keys, outbox=outbox)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_store_for_reading(url: str) -> AsyncGenerator[RecordStore, None]:
    """The same beside a daemon that may be writing: reads work, everything else raises StoreUnavailable.

    Raises:
        ConfigurationError: the URL is none of those that this version can open.
        SchemaMismatch: the schema is not exactly this version's.
        StoreUnavailable: there is no such file, or it cannot be opened.
    """
    store = SqliteRecordStore.open_read_only(_sqlite_path(url))
    try:
        yield store
    finally:
        await store.close()


def _sqlite_path(url: str) -> Path:
    try:
        return sqlite_path(url)
    except ValueError as error:
        raise ConfigurationError(f"store.url: {error}.") from error
