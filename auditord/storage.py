"""Open the record store and the spool of a state folder as a pair; check the folder and its disks."""

import os
import shutil
import socket
import stat
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio
import msgspec
from anyio import to_thread

from auditord.backup.notes import refuse_unfinished
from auditord.checks import Places
from auditord.config.kinds import InstalledKinds, make_transform
from auditord.config.model import Configuration, SenderSource, forwarding_senders, kind_of, source_of
from auditord.config.store_url import is_postgresql, sqlite_path, sqlite_url
from auditord.errors import ConfigurationError, NoTables, SchemaMismatch, StoreMismatch, StoreUnavailable
from auditord.ingest import Pairing, missing_store, recognise, refuse_lost_spool
from auditord.lake.opening import ConfiguredLake, lake_of
from auditord.spool import Generation, Spool
from auditord.spool.spool import FILE as SPOOL
from auditord.store.opening import open_store, open_store_for_reading
from auditord.store.store import RecordStore
from auditord.store.work import Work
from auditord_hookspecs import AggregateQuery, InstanceConfig, SenderKind, Transform, hookimpl
from auditord_hookspecs.checks import Finding, Severity, check_folder
from auditord_hookspecs.folders import user_name
from auditord_hookspecs.query import Comparison, TimeCompares, TimeField
from auditord_hookspecs.wording import counted

LOCAL: Final = "local"
"""The name of the sender that exists without being configured, and of its kind."""

_BETWEEN_LOOKS: Final = 1.0
"""Seconds between attempts while the store is unavailable."""


class Storage(msgspec.Struct, frozen=True):
    """Record store and spool, their pairing, and the senders between them, each with its kind."""

    spool: Spool
    store: RecordStore
    pairing: Pairing
    transform: Transform | None
    senders: Mapping[str, tuple[SenderKind[Any], InstanceConfig]]  # Any: each kind has its own configuration model
    lake: ConfiguredLake

    def destinations(self, source: SenderSource) -> Sequence[str]:
        """Return the names of the senders that forward records of this source (collectors or clients)."""
        return [name for name, (_, config) in self.senders.items() if source_of(config) in {source, "all"}]

    @property
    def local_senders(self) -> Sequence[str]:
        """The names of the senders to the record store of this daemon."""
        return [name for name, (kind, _) in self.senders.items() if kind.name == LOCAL]

    async def pair_when_back(self) -> None:
        """Pair the store with the spool; retry while the store is unavailable.

        Raises:
            StoreMismatch: the store does not belong to the spool.
        """
        while True:
            try:
                return await self.pairing.advance_both()
            except StoreUnavailable:
                await anyio.sleep(_BETWEEN_LOOKS)


@asynccontextmanager
async def open_storage(
    configuration: Configuration, kinds: InstalledKinds, now: Callable[[], datetime]
) -> AsyncGenerator[Storage, None]:
    """Open spool and store of a state folder that the caller owns.

    A store that is unavailable now is checked before its first use. On exit, store and spool note again that they
    belong together, so that a copy made meanwhile is recognised as older.

    Raises:
        ConfigurationError: the configured store or a sender cannot be used.
        StoreUnavailable: a database cannot be opened.
        SchemaMismatch: a database is not one of ours, or newer.
        StoreMismatch: store and spool do not belong together, one is an older copy, or a restore was interrupted.
    """
    senders = _select_senders(configuration, kinds)
    outbox = bool(forwarding_senders(configuration))
    transform = make_transform(configuration, kinds)
    async with AsyncExitStack() as stack:
        refuse_unfinished(configuration.state_dir)
        if not (configuration.state_dir / SPOOL).exists():
            await refuse_to_make_spool(configuration, now())
        spool = await stack.enter_async_context(Spool.opened(configuration.state_dir, now, transform=transform))
        url, generation = configuration.store.url, spool.generation
        if not is_postgresql(url) and not (path := sqlite_path(url)).exists() and generation.number > 0:
            raise missing_store(f"There is no file {path}.")  # opening it would create a new one
        stack.enter_context(_explain_lost_tables(generation))

        async def is_ours() -> Work[None]:
            return recognise(spool.generation, socket.gethostname(), configuration.state_dir, now())

        opening = open_store(
            configuration.store,
            counted_keys=configuration.counted_keys,
            outbox=outbox,
            recognise=is_ours,
            rolled_keys=configuration.rolled_keys,
            rolled_by_user=configuration.rolled_by_user,
            zone=configuration.ui.timezone,
        )
        store = await stack.enter_async_context(opening)
        lake = stack.enter_context(lake_of(store, configuration))
        pairing = Pairing(store, spool)
        with suppress(StoreUnavailable):
            await pairing.advance_both()
        yield Storage(spool, store, pairing, transform, senders, lake)
        with suppress(StoreUnavailable, StoreMismatch):  # the next start reports it
            await pairing.advance_both()


@asynccontextmanager
async def open_for_preview(
    configuration: Configuration, kinds: InstalledKinds, now: Callable[[], datetime], *, reads_store: bool
) -> AsyncGenerator[Storage, None]:
    """Open the storage for a dry run, beside a daemon that may own it. Nothing in it is changed or created.

    A missing spool is replaced by an empty one in a temporary folder, as is the store unless the run reads it.

    Raises:
        ConfigurationError: the configured store cannot be used.
        StoreUnavailable: a database does not exist or cannot be opened.
        SchemaMismatch: a database has another version.
        StoreMismatch: the spool is lost.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="auditord-")))
        if (configuration.state_dir / SPOOL).exists():
            opening_spool = Spool.opened_read_only(configuration.state_dir, now)
        else:
            await refuse_to_make_spool(configuration, now())
            opening_spool = Spool.opened(folder, now)
        spool = await stack.enter_async_context(opening_spool)
        if reads_store:
            opening_store = open_store_for_reading(configuration.store)
        else:
            opening_store = open_store(sqlite_url(folder / "records.db"), counted_keys=())
        store = await stack.enter_async_context(opening_store)
        lake = stack.enter_context(lake_of(store, configuration))
        yield Storage(spool, store, Pairing(store, spool), make_transform(configuration, kinds), {}, lake)


async def refuse_to_make_spool(configuration: Configuration, now: datetime) -> None:
    """Refuse to create a spool if this host and folder already had one for this store.

    A store that cannot be read now (unavailable, not created yet, or with older tables) is not checked here. A new
    spool is refused later, when a daemon opens the store.

    Raises:
        StoreMismatch: the spool is lost.
    """
    with suppress(StoreUnavailable, SchemaMismatch):
        async with open_store_for_reading(configuration.store) as store:
            refuse_lost_spool(await store.daemons(now), socket.gethostname(), configuration.state_dir)


@contextmanager
def _explain_lost_tables(generation: Generation) -> Generator[None, None, None]:
    """Report missing tables as lost if the spool already knows a store, so that they are not created again."""
    try:
        yield
    except NoTables as error:
        if generation.number == 0:
            raise
        raise missing_store("The database no longer has any tables.") from error


def select_enabled(instances: Mapping[str, InstanceConfig]) -> Mapping[str, InstanceConfig]:
    """Return the enabled instances of a section."""
    return {name: config for name, config in instances.items() if config.enabled}


def _select_senders(
    configuration: Configuration, kinds: InstalledKinds
) -> Mapping[str, tuple[SenderKind[Any], InstanceConfig]]:
    configured = select_enabled(configuration.senders).items()
    senders = {name: (kinds.senders[kind_of(config)], config) for name, config in configured}
    if LOCAL not in configuration.senders and LOCAL in kinds.senders:
        senders[LOCAL] = (kinds.senders[LOCAL], kinds.senders[LOCAL].config())
    if select_enabled(configuration.collectors) and all(source_of(config) == "api" for _, config in senders.values()):
        raise ConfigurationError(
            "collectors are configured, but no sender forwards their records; "
            "enable senders.local or configure another sender (from: collectors or all)"
        )
    return senders


LEAST_FREE: Final = 0.05
"""The free share of a file system below which it counts as nearly full."""

LITTLE: Final = 512 * 1024**2
"""Free bytes below which a nearly full file system is a failure instead of a warning."""

MONTHS_LEFT: Final = timedelta(days=60)

_MANY_DAYS: Final = 3_652

_GROWTH: Final = timedelta(days=28)

_FREE_SPACE: Final = (
    "free some space, release old records (lake.keep_months), or move state_dir or store.url to a larger disk"
)


@hookimpl
def feature_checks(configuration: Configuration, now: Callable[[], datetime]) -> Places:
    """Yield the checks of the state folder, and of the disks of spool and records."""
    yield "state_dir", _check_state_folder(configuration.state_dir)
    yield "disk", _check_disk(configuration, now)


async def _check_state_folder(folder: Path) -> AsyncGenerator[Finding, None]:
    """Check the permissions of the state folder and the owners of its files."""
    for finding in await to_thread.run_sync(lambda: list(_state_folder(folder))):
        yield finding


def _state_folder(folder: Path) -> Iterator[Finding]:
    if not folder.exists():
        yield Finding(Severity.OK, str(folder), "it does not exist yet: the daemon creates it")
        return
    found = folder.stat()
    user = user_name(found.st_uid)
    yield check_folder(folder, f"run this, and the daemon, as user {user}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        text = f"users other than {user} may write to it (mode {stat.S_IMODE(found.st_mode):04o})"
        yield Finding(Severity.FAILURE, str(folder), text, f"chmod go-w {folder}, and check its files")
    files = dict[Path, os.stat_result]()
    for path in folder.rglob("*"):
        with suppress(OSError):  # deleted meanwhile
            files[path] = path.lstat()
    legible = [path for path, each in files.items() if stat.S_ISREG(each.st_mode) and each.st_mode & stat.S_IROTH]
    if found.st_mode & stat.S_IXOTH and legible:
        text = f"every user of this host can read {counted(len(legible), 'file')}, which may name users: {legible[0]}"
        yield Finding(Severity.WARNING, "privacy", text, f"chmod -R o-rwx {folder}")
    foreign = [path for path, each in files.items() if each.st_uid != found.st_uid]
    if foreign:
        count = counted(len(foreign), "file does", "files do")
        text = f"{count} not belong to {user}, and may be unusable for the daemon: {foreign[0]}"
        yield Finding(Severity.FAILURE, "owners", text, f"chown -R {user} {folder}")
    else:
        yield Finding(Severity.OK, "owners", f"all files belong to {user}")


async def _check_disk(configuration: Configuration, now: Callable[[], datetime]) -> AsyncGenerator[Finding, None]:
    """Report the free space for spool and records, and when the disk will be full."""
    growth = await _growth_per_day(configuration, now)
    for place in sorted(configuration.data_folders):
        folder = next(each for each in (place, *place.parents) if each.exists())
        usage = shutil.disk_usage(folder)
        text = f"{usage.free / 1024**3:.1f} of {usage.total / 1024**3:.1f} GiB are free"
        days = usage.free / growth if growth else None
        if days is not None:
            left = counted(round(days), "day") if days < _MANY_DAYS else "more than 10 years"
            text += f"; records take {(growth or 0) / 1024**2:.2f} MiB a day, so the disk will be full in {left}"
        severity = Severity.OK
        if usage.free < min(usage.total * LEAST_FREE, LITTLE) or usage.free == 0:
            severity = Severity.FAILURE
        elif usage.free < usage.total * LEAST_FREE or (days is not None and days < MONTHS_LEFT.days):
            severity = Severity.WARNING
        yield Finding(severity, str(folder), text, "" if severity is Severity.OK else _FREE_SPACE)


async def _growth_per_day(configuration: Configuration, now: Callable[[], datetime]) -> float | None:
    """Return the bytes that records add to this host's disk per day, over four weeks; None if unknown."""
    if is_postgresql(configuration.store.url) or not (path := sqlite_path(configuration.store.url)).exists():
        return None
    try:
        async with open_store_for_reading(configuration.store) as store:
            total = (await store.counts()).total
            recent = TimeCompares(TimeField.STOP, Comparison.GTE, now() - _GROWTH)
            groups = (await store.sums_here(AggregateQuery(recent))).answer.groups
    except (StoreUnavailable, SchemaMismatch):
        return None  # the store's own checks report it
    size = (await to_thread.run_sync(path.stat)).st_size
    return size / total * sum(each.records for each in groups) / _GROWTH.days if total else None
