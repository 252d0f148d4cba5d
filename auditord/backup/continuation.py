"""Restore a missing store or spool, keep the other, and make collectors collect the lost records again."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from typing import Final

import anyio.to_thread
import msgspec

from auditord.backup.notes import note_restore, refuse_unfinished
from auditord.backup.restoring import Restoration, RestoreRefused
from auditord.backup.spool_rollback import SetBack, set_back
from auditord.backup.targets import Target, restore_tokens, spool_target
from auditord.config.model import Configuration, kind_of
from auditord.ingest import Pairing
from auditord.spool import Spool
from auditord.spool.spool import FILE as SPOOL
from auditord.store.daemons import follows
from auditord.store.opening import open_store
from auditord.store.store import RecordStore

_LOCAL: Final = "local"
"""The kind of senders to the record store, and the name of the one that exists without being configured."""


class Behind(Enum):
    """The older part of a pair of store and spool."""

    STORE = "the record store"
    SPOOL = "the spool"


class Continued(msgspec.Struct, frozen=True):
    """A pair of store and spool, one from the backup and the other kept.

    Args:
        restoration: the backup.
        behind: the older part.
        set_back: how the spool was set back, if the store was older or the spool is new.
        has_tokens: whether the API's tokens were restored.
    """

    restoration: Restoration
    behind: Behind
    set_back: SetBack | None = None
    has_tokens: bool = False


async def continue_from(restoration: Restoration, configuration: Configuration) -> Continued:
    """Restore the missing part from a backup and pair store and spool; collectors collect the lost records again.

    After an interruption, daemons still refuse to start, and the call can be repeated.

    Raises:
        RestoreRefused: both parts are missing, nothing needs to be done, or the store is older than the backup.
    """
    refuse_unfinished(restoration.state_dir)
    has_store, has_spool = await restoration.store.is_present(), await restoration.spool.is_present()
    if not has_spool and not has_store:
        raise RestoreRefused("record store and spool.db are both missing: leave out --continue to restore both")
    if lost_store := not has_store or await _is_blank(restoration, configuration):
        restoration.refuse_without_store()
        await restoration.store.put_aside(restoration.aside())
        await _place(restoration.store)
    if not has_spool:
        await _place(restoration.spool)
    placed = Behind.STORE if lost_store else Behind.SPOOL if not has_spool else None
    behind, is_new = await _behind(restoration, configuration, placed)
    done = await _set_back(restoration, configuration, is_new=is_new) if is_new or behind is Behind.STORE else None
    has_tokens = restore_tokens(restoration.backup, restoration.manifest, restoration.state_dir)
    note_restore(restoration.state_dir, restoration.now())
    async with _opened(restoration, configuration) as (spool, store):
        await Pairing(store, spool).adopt()
    return Continued(restoration, behind, done, has_tokens)


async def _is_blank(restoration: Restoration, configuration: Configuration) -> bool:
    """Return whether the store was created after the loss and has received nothing yet."""
    async with open_store(restoration.section, counted_keys=configuration.metrics.database.counted_keys) as store:
        known = await store.generation(restoration.manifest.spool.spool_id)
        return known == 0 and (await store.counts()).total == 0


async def _place(target: Target) -> None:
    try:
        await target.prepare()
        await target.place(None)
    finally:
        await target.discard()


async def _behind(restoration: Restoration, configuration: Configuration, placed: Behind | None) -> tuple[Behind, bool]:
    """Return the part that is behind, and whether the spool is new. Changes neither part.

    A spool is new if it was created while the loss of the old one could not be detected. A part that was just placed
    counts as behind, even if nothing has been delivered since the backup.

    Raises:
        RestoreRefused: neither part is behind, or the store is older than the backup's spool.
    """
    made = restoration.manifest.spool
    async with _opened(restoration, configuration) as (spool, store):
        own = await spool.generation()
        known = await store.generation(own.spool_id)
        known_then = await store.generation(made.spool_id)
    is_new = own.number == 0
    if not is_new and follows(known, own.number + 1):
        if placed is not None:
            return placed, False
        raise RestoreRefused("record store and spool.db belong together: nothing is missing, and nothing was changed")
    if not is_new and known > own.number:
        return Behind.SPOOL, False
    if known_then < made.generation:
        raise RestoreRefused(
            f"the record store is older than {restoration.backup} (generation {known_then} of {made.generation}), or "
            "belongs to another site: records delivered before that backup would be missing for good. Name an older "
            "backup"
        )
    return (Behind.SPOOL if is_new else Behind.STORE), is_new


async def _set_back(restoration: Restoration, configuration: Configuration, *, is_new: bool) -> SetBack:
    """Set the spool back to the backup. Entries that a new spool has received stay, after those of the backup."""
    copy = spool_target(restoration.backup, restoration.state_dir)
    try:
        await copy.prepare()
        found = {name for name, config in configuration.senders.items() if is_new or kind_of(config) == _LOCAL}
        work = partial(set_back, restoration.state_dir / SPOOL, copy.draft, found | {_LOCAL}, plugins=is_new)
        return await anyio.to_thread.run_sync(work)
    finally:
        await copy.discard()


@asynccontextmanager
async def _opened(
    restoration: Restoration, configuration: Configuration
) -> AsyncGenerator[tuple[Spool, RecordStore], None]:
    keys = configuration.metrics.database.counted_keys
    async with (
        Spool.opened(restoration.state_dir, restoration.now) as spool,
        open_store(restoration.section, counted_keys=keys) as store,
    ):
        yield spool, store
