"""Open the record store of a URL."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, cast

import anyio

from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.errors import ConfigurationError, SchemaMismatch, StoreMisconfigured, StoreUnavailable, plain_errors
from auditord.store.sqlite import SqliteRecordStore
from auditord.store.store import Recognise, RecordStore
from auditord_hookspecs.zones import UTC_NAME

if TYPE_CHECKING:  # psycopg and pydantic, which commands that read an SQLite file do not need
    from auditord.config.model import Configuration, StoreSection
    from auditord.store.postgres import PostgresRecordStore
    from auditord.store.replica import Replica

_log: Final = logging.getLogger(__name__)

_STARTS_WITHOUT: Final = (
    "starting without the record store; posted records are queued in the spool until it is available: %s"
)

_BEFORE_THE_PRIMARY: Final = 1.0
"""Seconds that a read waits for a connection to the replica before it goes to the primary."""


@asynccontextmanager
async def open_store(
    where: "StoreSection | str",
    *,
    counted_keys: Sequence[str],
    outbox: bool = False,
    recognise: Recognise | None = None,
    rolled_keys: Sequence[str] | None = None,
    rolled_by_user: Sequence[str] = (),
    zone: str = UTC_NAME,
) -> AsyncGenerator[RecordStore, None]:
    """Open the configured store, and close it at the end of the context.

    If a PostgreSQL server is down, the store opens nevertheless, and works as soon as the server does. If the schema is
    not this version's, or the store is not the expected one, now or later, the body of the context is cancelled and
    SchemaMismatch or StoreMismatch is raised.

    Args:
        where: the section ``store``, or its URL alone: ``sqlite:///var/lib/auditord/records.db`` (the path is absolute,
            a fourth slash does no harm) or ``postgresql://user@host/database``.
        counted_keys: meta keys whose values ``counts()`` has.
        outbox: whether changes are kept for senders; see :meth:`RecordStore.outbox`.
        recognise: returns work that raises StoreMismatch if it is not the expected store. It runs before anything else.
        rolled_keys: meta keys, besides those of site, group and user, by which sums over long periods are fast; None
            keeps the present ones.
        rolled_by_user: further ones, by which sums by user are fast, too.
        zone: the time zone by whose days sums are fast, besides UTC.

    Raises:
        ConfigurationError: this version cannot open such a URL.
        SchemaMismatch: the database is another program's, newer than this version, or not migrated.
        StoreMismatch: it is not the expected store.
        StoreMisconfigured: the PostgreSQL server refuses the user, the database or the connection.
        StoreUnavailable: the SQLite file cannot be opened or written.
    """
    section = section_of(where)
    if is_postgresql(section.url):
        postgres = _postgres_store(section, counted_keys, outbox=outbox, recognise=recognise)
        with plain_errors():
            async with _close_after(postgres):
                try:
                    await postgres.open()
                except StoreMisconfigured:  # a permanent fault, which waiting would hide
                    raise
                except StoreUnavailable as error:
                    _log.warning(_STARTS_WITHOUT, error)
                async with anyio.create_task_group() as group:
                    group.start_soon(_end_if_refused, postgres)
                    postgres.rollups.keep_by(rolled_keys, zone, with_users=rolled_by_user)
                    yield postgres
                    group.cancel_scope.cancel()
        return
    path = sqlite_path(section.url)
    sqlite = await SqliteRecordStore.open(path, counted_keys=counted_keys, outbox=outbox, recognise=recognise)
    async with _close_after(sqlite):
        sqlite.rollups.keep_by(rolled_keys, zone, with_users=rolled_by_user)
        yield sqlite


def open_configured_store(configuration: "Configuration") -> AbstractAsyncContextManager[RecordStore]:
    """Open the store for a command that writes to it while no daemon runs; see :func:`open_store`."""
    return open_store(configuration.store, counted_keys=configuration.counted_keys)


@asynccontextmanager
async def open_store_for_reading(
    where: "StoreSection | str", *, with_memory: bool = False
) -> AsyncGenerator[RecordStore, None]:
    """Open a store beside a daemon that may be writing. Reads work, everything else raises StoreUnavailable.

    Args:
        where: the section ``store``, or its URL alone.
        with_memory: whether the state of plugins can be written, too.

    Raises:
        ConfigurationError: this version cannot open such a URL.
        SchemaMismatch: the schema is not exactly this version's.
        StoreUnavailable: the file does not exist or cannot be opened, or the server does not answer.
    """
    url = where if isinstance(where, str) else where.url
    if is_postgresql(url):
        postgres = _postgres_store(section_of(where), None, read_only=not with_memory)
        async with _close_after(postgres):
            await postgres.open()
            yield postgres
        return
    path = _sqlite_path(url)
    sqlite = await SqliteRecordStore.open_beside(path) if with_memory else SqliteRecordStore.open_read_only(path)
    async with _close_after(sqlite):
        yield sqlite


@asynccontextmanager
async def open_replica(section: "StoreSection", primary: RecordStore) -> AsyncGenerator["Replica", None]:
    """Open the configured replica, for :class:`ReplicatedReads`. If it is down, it is used once it is back.

    Raises:
        ConfigurationError: libpq does not understand its URL.
    """
    from auditord.database.postgres.address import address_of  # noqa: PLC0415 psycopg, only if configured
    from auditord.store.postgres import PostgresRecordStore  # noqa: PLC0415 the same
    from auditord.store.replica import Replica  # noqa: PLC0415 the same

    address = address_of(section.model_copy(update={"url": section.replica}))
    store = PostgresRecordStore(address, None, read_only=True, patience=_BEFORE_THE_PRIMARY)
    async with _close_after(store):
        with suppress(StoreUnavailable, SchemaMismatch):  # Replica.look raises it again
            await store.open()
        followed = cast("PostgresRecordStore", primary)
        yield Replica(store, followed, address.where, section.replica_max_lag, anyio.current_time)


def _postgres_store(
    section: "StoreSection",
    counted_keys: Sequence[str] | None,
    *,
    outbox: bool = False,
    read_only: bool = False,
    recognise: Recognise | None = None,
) -> "PostgresRecordStore":
    from auditord.database.postgres.address import address_of  # noqa: PLC0415 psycopg, only if configured
    from auditord.store.postgres import PostgresRecordStore  # noqa: PLC0415 the same

    address = address_of(section)
    return PostgresRecordStore(address, counted_keys, outbox=outbox, read_only=read_only, recognise=recognise)


@asynccontextmanager
async def _close_after(store: RecordStore) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):  # unfinished writes end even when cancelled
            await store.close()


async def _end_if_refused(store: "PostgresRecordStore") -> NoReturn:
    raise await store.wait_for_refusal()


def section_of(where: "StoreSection | str") -> "StoreSection":
    """Return a section, or make one from its URL alone.

    Raises:
        ConfigurationError: this version cannot open such a URL.
    """
    if not isinstance(where, str):
        return where
    from auditord.config.model import StoreSection  # noqa: PLC0415 pydantic

    if not is_postgresql(where):
        _sqlite_path(where)
    return StoreSection(url=where)


def _sqlite_path(url: str) -> Path:
    try:
        return sqlite_path(url)
    except ValueError as error:
        raise ConfigurationError(f"store.url: {error}.") from error
