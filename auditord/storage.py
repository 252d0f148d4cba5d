"""Record store and spool of a state folder, open and paired."""

import socket
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Any, Final

import anyio
import msgspec

from auditord.backup.unfinished import refuse_unfinished
from auditord.config.kinds import InstalledKinds, configured_transform
from auditord.config.model import Configuration, SenderSource, kind_of, source_of
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.errors import ConfigurationError, NoTables, SchemaMismatch, StoreMismatch, StoreUnavailable
from auditord.ingest import Pairing, missing_store, recognise, refuse_lost_spool
from auditord.lake.opening import ConfiguredLake, lake_of
from auditord.spool import Generation, Spool
from auditord.spool.spool import FILE as SPOOL
from auditord.store import RecordStore
from auditord.store.opening import open_store, open_store_for_reading
from auditord.store.work import Work
from auditord_hookspecs import InstanceConfig, SenderKind, Transform

LOCAL: Final = "local"
"""The sender that exists without being configured, and its kind."""

_BETWEEN_LOOKS: Final = 1.0
"""Seconds, while the store is away."""


class Storage(msgspec.Struct, frozen=True):
    """Record store and spool, their pairing, and the senders between them, each with its kind."""

    spool: Spool
    store: RecordStore
    pairing: Pairing
    transform: Transform | None
    senders: Mapping[str, tuple[SenderKind[Any], InstanceConfig]]  # Any: each kind has its own configuration model
    lake: ConfiguredLake

    def destinations(self, source: SenderSource) -> Sequence[str]:
        """The senders of what collectors make, or of what clients write."""
        return [name for name, (_, config) in self.senders.items() if source_of(config) in {source, "all"}]

    @property
    def local_senders(self) -> Sequence[str]:
        """The senders to the record store of this daemon."""
        return [name for name, (kind, _) in self.senders.items() if kind.name == LOCAL]

    async def pair_when_back(self) -> None:
        """Return once the store could be asked and is the spool's.

        Raises:
            StoreMismatch: it is not.
        """
        while True:
            try:
                return await self.pairing.advance_both()
            except StoreUnavailable:
                await anyio.sleep(_BETWEEN_LOOKS)


@asynccontextmanager
async def opened_storage(
    configuration: Configuration, kinds: InstalledKinds, now: Callable[[], datetime]
) -> AsyncGenerator[Storage, None]:
    """Open spool and store of a state folder that the caller owns.

    A store that is away now is looked at before anything else is done with it. On leaving both note that they belong
    together, so that a copy made meanwhile is recognised as older.

    Raises:
        ConfigurationError: a store or a sender cannot be had.
        StoreUnavailable: a database cannot be opened.
        SchemaMismatch: a database is not one of ours, or newer.
        StoreMismatch: store and spool do not belong together, one is an older copy, or a restore was interrupted.
    """
    senders = _senders(configuration, kinds)
    outbox = any(source_of(config) != "collectors" for _, config in senders.values())
    transform = configured_transform(configuration, kinds)
    async with AsyncExitStack() as stack:
        refuse_unfinished(configuration.state_dir)
        if not (configuration.state_dir / SPOOL).exists():
            await refuse_to_make_spool(configuration, now())
        spool = await stack.enter_async_context(Spool.opened(configuration.state_dir, now, transform=transform))
        url, generation = configuration.store.url, await spool.generation()
        if not is_postgresql(url) and not (path := sqlite_path(url)).exists() and generation.number > 0:
            raise missing_store(f"There is no file {path}.")  # to open it would make a new one
        stack.enter_context(_explaining_lost_tables(generation))
        keys = configuration.metrics.database.counted_keys

        async def is_ours() -> Work[None]:
            return recognise(await spool.generation(), socket.gethostname(), configuration.state_dir, now())

        opening = open_store(
            configuration.store,
            counted_keys=keys,
            outbox=outbox,
            recognise=is_ours,
            rolled_keys=configuration.ui.labels,
            zone=configuration.ui.timezone,
        )
        store = await stack.enter_async_context(opening)
        lake = stack.enter_context(lake_of(store, configuration))
        pairing = Pairing(store, spool)
        with suppress(StoreUnavailable):
            await pairing.advance_both()
        yield Storage(spool, store, pairing, transform, senders, lake)
        with suppress(StoreUnavailable, StoreMismatch):  # the next start says so
            await pairing.advance_both()


async def refuse_to_make_spool(configuration: Configuration, now: datetime) -> None:
    """Return unless a daemon of this host and folder has had a spool beside this store: to open one would make it anew.

    A store that cannot be read now (it is away, or not there yet, or its tables are older) is not looked at: once a
    daemon opens it, a new spool is refused beside it.

    Raises:
        StoreMismatch: the spool is lost.
    """
    with suppress(StoreUnavailable, SchemaMismatch):
        async with open_store_for_reading(configuration.store) as store:
            refuse_lost_spool(await store.daemons(now), socket.gethostname(), configuration.state_dir)


@contextmanager
def _explaining_lost_tables(generation: Generation) -> Generator[None, None, None]:
    """Raise about lost tables where the spool knows a store, instead of having them made anew."""
    try:
        yield
    except NoTables as error:
        if generation.number == 0:
            raise
        raise missing_store("The database has no tables any more.") from error


def enabled(instances: Mapping[str, InstanceConfig]) -> Mapping[str, InstanceConfig]:
    """The enabled instances of a section."""
    return {name: config for name, config in instances.items() if config.enabled}


def _senders(
    configuration: Configuration, kinds: InstalledKinds
) -> Mapping[str, tuple[SenderKind[Any], InstanceConfig]]:
    configured = enabled(configuration.senders).items()
    senders = {name: (kinds.senders[kind_of(config)], config) for name, config in configured}
    if LOCAL not in configuration.senders and LOCAL in kinds.senders:
        senders[LOCAL] = (kinds.senders[LOCAL], kinds.senders[LOCAL].config())
    if enabled(configuration.collectors) and all(source_of(config) == "api" for _, config in senders.values()):
        raise ConfigurationError(
            "collectors are configured and no sender takes what they make: their records would go nowhere; "
            "enable senders.local or configure another sender (from: collectors or all)"
        )
    return senders
