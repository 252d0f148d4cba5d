"""Start over without a backup: create the lost record store or spool, and let collectors read their sources again.

A collector without a checkpoint reads its source from the beginning. Jobs that the source no longer has, or never lists
again (notes and files that were processed), stay lost; ``auditord restore`` names them. Collectors need a known start:
without ``earliest_datetime`` a collector would start now, and all earlier jobs would be missing without a message. So
nothing is changed if a collector would start later than before, and the error names the value to configure.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio.to_thread

from auditord.backup.notes import refuse_unfinished
from auditord.backup.reach import SourceReach, query_sources
from auditord.backup.restoring import (
    Behind,
    Restored,
    RestoreRefused,
    find_older,
    open_pair,
    pair_restored,
    refuse_pair,
)
from auditord.backup.spool_rollback import set_back
from auditord.config.kinds import InstalledKinds
from auditord.config.model import Configuration
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.database.postgres.address import address_of
from auditord.spool import Spool
from auditord.spool.spool import FILE as SPOOL
from auditord.store.opening import open_store
from auditord.store.postgres.administration import database_status, migrate_database
from auditord_hookspecs import AggregateQuery
from auditord_hookspecs.wire import format_time


async def start_over(configuration: Configuration, kinds: InstalledKinds, now: Callable[[], datetime]) -> Restored:
    """Create the missing part, and let collectors collect again everything that their sources have.

    After an interruption the call can be repeated. Until then, daemons refuse to start if the store is the older part.

    Raises:
        StoreMismatch: a restore from a backup was interrupted.
        RestoreRefused: both parts are missing, nothing is missing, or a collector would start later than before.
    """
    folder = configuration.state_dir
    refuse_unfinished(folder)
    has_spool = await _has_spool(folder, now)
    if is_postgresql(configuration.store.url):
        has_store = bool((await database_status(address_of(configuration.store))).applied)
    else:
        has_store = sqlite_path(configuration.store.url).exists()
    if not has_spool and not has_store:
        raise RestoreRefused("record store and spool.db are both missing: start the daemon, which creates both")
    behind = None
    if has_spool and has_store:
        async with open_pair(configuration, now) as (spool, store):
            behind = await find_older(spool, store) or refuse_pair()
    with TemporaryDirectory() as empty:  # a new file in the state folder would count as a new daemon's spool
        async with Spool.opened(folder if has_spool else Path(empty), now) as spool:
            sources = await query_sources(configuration, kinds, spool, now)
    if behind is not Behind.SPOOL:  # an older spool still has its checkpoints
        _refuse_late_beginnings(sources, await _last_stop(configuration) if has_store else None)
    behind = behind or (Behind.STORE if has_spool else Behind.SPOOL)
    if behind is Behind.STORE or (not has_spool and (folder / SPOOL).exists()):
        await anyio.to_thread.run_sync(set_back, folder / SPOOL, None)
    if not has_store and is_postgresql(configuration.store.url):
        await migrate_database(address_of(configuration.store), now)
    await pair_restored(configuration, now)
    return Restored(None, None, behind)


async def _has_spool(folder: Path, now: Callable[[], datetime]) -> bool:
    """Return whether there is a spool that was paired with a record store.

    A daemon may have created an unpaired one while the store was unavailable. Its queued entries are kept.
    """
    if not (folder / SPOOL).exists():
        return False
    async with Spool.opened(folder, now) as spool:
        return spool.generation.number > 0


async def _last_stop(configuration: Configuration) -> datetime | None:
    async with open_store(configuration.store, counted_keys=configuration.counted_keys) as store:
        groups, released = (await store.sums_here(AggregateQuery())).answer.groups, await store.lake_state()
    return max(filter(None, [*[group.last_stop for group in groups], released.last_stop]), default=None)


def _refuse_late_beginnings(sources: Sequence[SourceReach], until: datetime | None) -> None:
    late = {each.name: begins for each in sources if (begins := each.earliest_to_configure(until)) is not None}
    if late:
        lines = "".join(f"\n  collectors.{name}.earliest_datetime: {format_time(at)}" for name, at in late.items())
        raise RestoreRefused(
            "without a checkpoint these collectors would start later than before, and earlier jobs would not be "
            f"collected again. Configure these times, or earlier ones, and repeat the command:{lines}"
        )
