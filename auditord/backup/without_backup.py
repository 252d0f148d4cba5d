"""Continue without any backup: create the missing part, and let collectors read their sources from the beginning.

A collector without a checkpoint reads its source again. Jobs that the source no longer has, or never lists again (notes
and files that were processed), stay lost; ``auditord restore`` names them. Collectors need a known start: without
``earliest_datetime`` a collector would start now, and all earlier jobs would be missing without a message. Such a
collector is refused, and the error names the value to configure.
"""

import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio.to_thread
import msgspec

from auditord.backup.continuation import Behind
from auditord.backup.notes import note_restore, refuse_unfinished
from auditord.backup.restoring import RestoreRefused
from auditord.backup.spool_rollback import forget_sources
from auditord.config.kinds import InstalledKinds
from auditord.config.model import Configuration, kind_of
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.contexts.instances import SpoolCollectorContext, environment_of
from auditord.database.postgres.address import address_of
from auditord.ingest import Pairing
from auditord.spool import Spool
from auditord.spool.spool import FILE as SPOOL
from auditord.store.daemons import follows
from auditord.store.opening import open_store
from auditord.store.postgres.administration import database_status, migrate_database
from auditord_hookspecs import AggregateQuery, AuditordError, CollectorKind, InstanceConfig, Reach
from auditord_hookspecs.wire import format_time


class Looked(msgspec.Struct, frozen=True):
    """A collector's reach into its source.

    Args:
        name: of the instance.
        anew: the reach without a checkpoint; None if the kind does not know it.
        before: the reach with the current checkpoint; None without one, or if the kind does not know it.
        fault: why the source could not be queried.
    """

    name: str
    anew: Reach | None = None
    before: Reach | None = None
    fault: str | None = None

    def warning(self, since: datetime | None) -> str | None:
        """Return a warning about data after ``since`` (None for all data) that cannot be collected again, or None."""
        if self.fault is not None:
            return f"{self.name}: its source does not answer, so its lost records may be lost for good: {self.fault}"
        if self.anew is None:
            return f"{self.name}: its source cannot be read a second time; notes and files already collected are lost"
        remembers = self.anew.remembers
        if remembers is None or (since is not None and remembers <= since):
            return None
        return (
            f"{self.name}: its source no longer has jobs that ended before {format_time(remembers)}; they are lost for "
            "good"
        )

    def late_beginning(self, until: datetime | None) -> datetime | None:
        """Return the ``earliest_datetime`` to configure so that the collector does not start later than before.

        Returns None if this is not needed. ``until`` is the stop time of the last record in the store.
        """
        begins = None if self.anew is None else self.anew.collects
        wanted = until if self.before is None or self.before.collects is None else self.before.collects
        return wanted if begins is not None and wanted is not None and begins > wanted else None


async def look_at_sources(
    configuration: Configuration, kinds: InstalledKinds, spool: Spool, now: Callable[[], datetime]
) -> Sequence[Looked]:
    """Query the sources of all enabled collectors for their reach."""
    found: list[Looked] = []
    for name, config in sorted(configuration.collectors.items()):
        if config.enabled:
            kind, checkpoint = kinds.collectors[kind_of(config)], await spool.checkpoint(name)
            context = SpoolCollectorContext(
                name, kind.name, now, environment_of(config), spool=spool, checkpoint=checkpoint, dry_run=True
            )
            found.append(await _look(kind, config, context))
    return found


async def _look(
    kind: CollectorKind[Any],  # Any: each kind has its own configuration model
    config: InstanceConfig,
    context: SpoolCollectorContext,
) -> Looked:
    if kind.reach is None:
        return Looked(context.instance)
    try:
        anew = await kind.reach(config, dataclasses.replace(context, checkpoint=None))
        before = None if context.checkpoint is None else await kind.reach(config, context)
    except AuditordError as error:
        return Looked(context.instance, fault=str(error))
    return Looked(context.instance, anew, before)


class StartedOver(msgspec.Struct, frozen=True):
    """A pair of store and spool, in which one part is new or older than the other."""

    behind: Behind
    sources: Sequence[Looked]


async def start_over(configuration: Configuration, kinds: InstalledKinds, now: Callable[[], datetime]) -> StartedOver:
    """Create the missing part, and let collectors collect again everything that their sources have.

    After an interruption the call can be repeated. If the store is behind, daemons still refuse to start.

    Raises:
        RestoreRefused: both parts are missing, nothing is missing, or a collector would start later than before.
    """
    folder, keys = configuration.state_dir, configuration.metrics.database.counted_keys
    refuse_unfinished(folder)
    has_spool, has_store = await _has_spool(folder, now), await _has_store(configuration)
    if not has_spool and not has_store:
        raise RestoreRefused("record store and spool.db are both missing: start the daemon, which creates both")
    async with _spool_to_look_into(folder if has_spool else None, now) as spool:
        behind = await _behind(configuration, spool) if has_spool and has_store else None
        sources = await look_at_sources(configuration, kinds, spool, now)
    if behind is not Behind.SPOOL:  # an older spool has checkpoints
        _refuse_late_beginnings(sources, await _last_stop(configuration) if has_store else None)
    behind = behind or (Behind.STORE if has_spool else Behind.SPOOL)
    if behind is Behind.STORE or (not has_spool and (folder / SPOOL).exists()):
        await anyio.to_thread.run_sync(forget_sources, folder / SPOOL)
    note_restore(folder, now())
    if not has_store and is_postgresql(configuration.store.url):
        await migrate_database(address_of(configuration.store), now)
    async with Spool.opened(folder, now) as spool, open_store(configuration.store, counted_keys=keys) as store:
        await Pairing(store, spool).adopt()
    return StartedOver(behind, sources)


@asynccontextmanager
async def _spool_to_look_into(folder: Path | None, now: Callable[[], datetime]) -> AsyncGenerator[Spool, None]:
    """Open the spool, or an empty temporary one. A new file in the state folder would count as a new daemon's spool."""
    with TemporaryDirectory() as empty:
        async with Spool.opened(folder or Path(empty), now) as spool:
            yield spool


async def _has_spool(folder: Path, now: Callable[[], datetime]) -> bool:
    """Return whether there is a spool that was paired with a record store.

    An unpaired spool was created while the loss of the old one could not be detected. Its queued entries are kept.
    """
    if not (folder / SPOOL).exists():
        return False
    async with Spool.opened(folder, now) as spool:
        return (await spool.generation()).number > 0


async def _behind(configuration: Configuration, spool: Spool) -> Behind:
    own = await spool.generation()
    async with open_store(configuration.store, counted_keys=configuration.metrics.database.counted_keys) as store:
        known = await store.generation(own.spool_id)
    if follows(known, own.number + 1):
        raise RestoreRefused("record store and spool.db belong together: nothing is missing, and nothing was changed")
    return Behind.SPOOL if known > own.number else Behind.STORE


async def _has_store(configuration: Configuration) -> bool:
    if is_postgresql(configuration.store.url):
        return bool((await database_status(address_of(configuration.store))).applied)
    return sqlite_path(configuration.store.url).exists()


async def _last_stop(configuration: Configuration) -> datetime | None:
    async with open_store(configuration.store, counted_keys=configuration.metrics.database.counted_keys) as store:
        groups, released = (await store.sums_here(AggregateQuery())).answer.groups, await store.lake_state()
    return max(filter(None, [*[group.last_stop for group in groups], released.last_stop]), default=None)


def _refuse_late_beginnings(sources: Sequence[Looked], until: datetime | None) -> None:
    late = {each.name: begins for each in sources if (begins := each.late_beginning(until)) is not None}
    if late:
        lines = "".join(f"\n  collectors.{name}.earliest_datetime: {format_time(at)}" for name, at in late.items())
        raise RestoreRefused(
            "without a checkpoint these collectors would start later than before, and earlier jobs would not be "
            f"collected again. Configure these times, or earlier ones, and repeat the command:{lines}"
        )
