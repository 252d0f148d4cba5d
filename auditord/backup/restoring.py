"""Restore the record store and the spool from a backup, or create a lost one anew.

A part that exists is kept, and a missing part comes from the backup. Three rules keep every job, once:

1. If the record store is the older part, the spool is set back to the backup (:mod:`auditord.backup.spool_rollback`),
   so that collectors collect again what the store lacks. So is a spool that was created after the loss.
2. If the spool is the older part, nothing is set back: its collectors read some jobs again, whose ids the store knows.
3. Afterwards store and spool get a generation that no copy of either has. If both come from the backup, the spool also
   gets a new id. Otherwise a file of the lost pair could be taken for one of the restored pair.
"""

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NoReturn

import anyio.to_thread
import msgspec

from auditord.backup.manifest import BackupDamaged, Manifest, find_backup, read_manifest, verify_files
from auditord.backup.notes import Unfinished, begin, end, note_restore, read_unfinished, refuse_unfinished
from auditord.backup.reach import query_sources
from auditord.backup.spool_rollback import SetBack, set_back
from auditord.backup.targets import Target, restore_tokens, spool_target, store_target
from auditord.config.kinds import InstalledKinds
from auditord.config.model import Configuration, kind_of
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.database.connections import open_for_writing, translate_errors
from auditord.database.postgres.address import address_of
from auditord.database.sql_files import load_scripts
from auditord.ingest import Pairing, is_pair
from auditord.spool import Spool
from auditord.spool.spool import FILE as SPOOL
from auditord.spool.spool import MIGRATIONS as SPOOL_MIGRATIONS
from auditord.store.copying import Progress
from auditord.store.opening import open_configured_store
from auditord.store.postgres.administration import database_status, migrate_database
from auditord.store.postgres.store import MIGRATIONS as POSTGRES_MIGRATIONS
from auditord.store.sqlite.store import MIGRATIONS as SQLITE_MIGRATIONS
from auditord.store.store import RecordStore
from auditord_hookspecs import AggregateQuery, AuditordError
from auditord_hookspecs.wire import format_time

_LOCAL: Final = "local"
"""The kind of senders to the record store, and the name of the one that exists without being configured."""


class RestoreRefused(AuditordError):
    """A restore would harm existing data, or is impossible; nothing was touched.

    Remedy:
        do what the text says; nothing was touched.
    """


class Behind(Enum):
    """The part of a pair of store and spool that is missing or older."""

    STORE = "the record store"
    SPOOL = "the spool"


class Restored(msgspec.Struct, frozen=True):
    """A completed restore.

    Args:
        backup: None if there was none.
        manifest: of the backup.
        behind: the part that was missing or older; None if both come from the backup.
        aside: where the former files are.
        set_back: how the spool was set back, if it was.
        has_tokens: whether the API's tokens were restored.
    """

    backup: Path | None
    manifest: Manifest | None
    behind: Behind | None = None
    aside: Sequence[str] = ()
    set_back: SetBack | None = None
    has_tokens: bool = False


class Restoration(msgspec.Struct, frozen=True):
    """A verified backup that is being restored.

    Args:
        backup: the folder of the backup.
        configuration: the caller holds the lock of its ``state_dir``.
        store: where the record store is restored to.
        spool: where the spool is restored to.
    """

    backup: Path
    manifest: Manifest
    configuration: Configuration
    now: Callable[[], datetime]
    store: Target
    spool: Target

    @classmethod
    def verify(
        cls, place: Path, configuration: Configuration, now: Callable[[], datetime], progress: Progress
    ) -> "Restoration":
        """Return ``place`` or the newest complete backup in it, after verifying all its files.

        Raises:
            NoBackup: there is no complete backup.
            BackupDamaged: the backup does not match its manifest, or is of a later version.
            RestoreRefused: the backup's store is in another kind of database.
        """
        backup, section = find_backup(place), configuration.store
        manifest = read_manifest(backup)
        migrations = SQLITE_MIGRATIONS if manifest.store.database == "sqlite" else POSTGRES_MIGRATIONS
        for part, schema, known in (
            ("record store", manifest.store.schema, len(load_scripts(migrations))),
            ("spool", manifest.spool.schema, len(load_scripts(SPOOL_MIGRATIONS))),
        ):
            if schema > known:
                raise BackupDamaged(
                    f"{backup} was made by auditord {manifest.auditord}: its {part} has schema {schema}, this version "
                    f"knows up to {known}; install that version to restore it"
                )
        if is_postgresql(section.url) is (manifest.store.database == "sqlite"):
            raise RestoreRefused(
                f"{backup} has a record store in {manifest.store.database}, but store.url is of another kind: set "
                "store.url to one of that kind, restore, and then copy the records with `auditord database copy`"
            )
        progress.note_progress("verifying", 0, 1)
        verify_files(backup, manifest)
        store = store_target(backup, manifest, section, now, progress)
        return cls(backup, manifest, configuration, now, store, spool_target(backup, configuration.state_dir))

    async def restore(self, *, force: bool = False) -> Restored:
        """Restore the missing part or parts, and pair store and spool. ``force`` moves both aside first.

        After an interruption, daemons refuse to start, and the call can be repeated.

        Raises:
            RestoreRefused: nothing is missing or older, the store is older than the backup, the store is missing but
                not in the backup, or the restore of another backup was interrupted.
        """
        note = read_unfinished(self.configuration.state_dir)
        if note is not None and note.backup != str(self.backup):
            raise RestoreRefused(f"the restore of {note.backup} was interrupted: complete that one first")
        if force or note is not None:
            return await self._replace_both(note)
        made, has_spool = self.manifest.spool, await self.spool.is_present()
        has_store = await self.store.is_present()
        if has_store:  # an empty one that was created after the loss counts as missing
            async with open_configured_store(self.configuration) as store:
                has_store = await store.generation(made.spool_id) > 0 or (await store.counts()).total > 0
        if not has_store and not has_spool:
            return await self._replace_both(note)
        if not has_store:
            self._refuse_without_store()
            await self.store.put_aside(self._aside())  # an empty one
            await _prepare_and_put_in_place(self.store)
        if not has_spool:
            await _prepare_and_put_in_place(self.spool)
        async with _open_pair(self.configuration, self.now) as (spool, store):
            known_then = await store.generation(made.spool_id)
            # A spool is new if it was created while the loss of the old one could not be detected.
            is_new = has_spool and spool.generation.number == 0
            older = None if is_new else await _find_older(spool, store)
        # A part that was missing counts as behind, even if nothing has been delivered since the backup.
        missing = Behind.STORE if not has_store else Behind.SPOOL if not has_spool else None
        behind = missing or (Behind.SPOOL if is_new else older or _refuse_pair())
        done = None
        if is_new or behind is Behind.STORE:
            if known_then < made.generation:
                raise RestoreRefused(
                    f"the record store is older than {self.backup} (generation {known_then} of {made.generation}), or "
                    "belongs to another site: records delivered before that backup would be missing for good. Name an "
                    "older backup"
                )
            done = await self._set_back(is_new=is_new)
        return Restored(self.backup, self.manifest, behind, set_back=done, has_tokens=await self._finish())

    async def _replace_both(self, note: Unfinished | None) -> Restored:
        self._refuse_without_store()
        targets, folder = (self.store, self.spool), self.configuration.state_dir
        aside = note.aside if note else self._aside()
        present = note.present if note else (await self.store.is_present(), await self.spool.is_present())
        try:
            for target in targets:
                await target.prepare()
            begin(folder, Unfinished(str(self.backup), aside, present))
            moved = [await each.put_aside(aside) for each, is_there in zip(targets, present, strict=True) if is_there]
            for target in targets:
                await target.put_in_place()
            with closing(open_for_writing(folder / SPOOL)) as connection, translate_errors(folder / SPOOL):
                connection.execute("UPDATE generation SET spool_id = ?", (secrets.token_hex(16),))
            has_tokens = await self._finish()
            end(folder)
        finally:
            for target in targets:
                await target.discard()
        return Restored(self.backup, self.manifest, aside=moved, has_tokens=has_tokens)

    def _aside(self) -> str:
        """Return the name under which existing files are moved aside."""
        return f"before-restore-{self.now():%Y%m%dT%H%M%SZ}"

    def _refuse_without_store(self) -> None:
        if self.manifest.store.file is None:
            raise RestoreRefused(
                f"{self.backup} has only the spool: restore the database with its own tools, to a point in time after "
                f"{self.manifest.made_at:%Y-%m-%d %H:%M:%SZ}, and then run this command"
            )

    async def _set_back(self, *, is_new: bool) -> SetBack:
        """Set the spool back to the backup. Entries that a new spool has received stay, after those of the backup."""
        folder, senders = self.configuration.state_dir, self.configuration.senders
        copy = spool_target(self.backup, folder)
        try:
            await copy.prepare()
            names = {name for name, config in senders.items() if is_new or kind_of(config) == _LOCAL}
            work = partial(set_back, folder / SPOOL, copy.draft, names | {_LOCAL}, plugins=is_new)
            return await anyio.to_thread.run_sync(work)
        finally:
            await copy.discard()

    async def _finish(self) -> bool:
        """Pair store and spool; return whether tokens were restored."""
        await _pair_restored(self.configuration, self.now)
        return restore_tokens(self.backup, self.manifest, self.configuration.state_dir)


async def start_over(configuration: Configuration, kinds: InstalledKinds, now: Callable[[], datetime]) -> Restored:
    """Create the lost record store or spool without a backup, and let collectors read their sources again.

    A collector without a checkpoint reads its source from the beginning. Jobs that the source no longer has, or never
    lists again (notes and files that were processed), stay lost; ``auditord restore`` names them. Collectors need a
    known start: without ``earliest_datetime`` a collector would start now, and all earlier jobs would be missing
    without a message. So nothing is changed if a collector would start later than before, and the error names the value
    to configure.

    After an interruption the call can be repeated. Until then, daemons refuse to start if the store is the older part.

    Raises:
        StoreMismatch: a restore from a backup was interrupted.
        RestoreRefused: both parts are missing, nothing is missing, or a collector would start later than before.
    """
    folder = configuration.state_dir
    refuse_unfinished(folder)
    has_spool = (folder / SPOOL).exists()
    if has_spool:  # one that was never paired counts as missing; its queued entries are kept
        async with Spool.opened(folder, now) as spool:
            has_spool = spool.generation.number > 0
    if is_postgresql(configuration.store.url):
        has_store = bool((await database_status(address_of(configuration.store))).applied)
    else:
        has_store = sqlite_path(configuration.store.url).exists()
    if not has_spool and not has_store:
        raise RestoreRefused("record store and spool.db are both missing: start the daemon, which creates both")
    behind = None
    if has_spool and has_store:
        async with _open_pair(configuration, now) as (spool, store):
            behind = await _find_older(spool, store) or _refuse_pair()
    with TemporaryDirectory() as empty:  # a new file in the state folder would count as a new daemon's spool
        async with Spool.opened(folder if has_spool else Path(empty), now) as spool:
            sources = await query_sources(configuration, kinds, spool, now)
    if behind is not Behind.SPOOL:  # an older spool still has its checkpoints
        until = None
        if has_store:
            async with open_configured_store(configuration) as store:
                groups, released = (await store.sums_here(AggregateQuery())).answer.groups, await store.lake_state()
            until = max(filter(None, [*[group.last_stop for group in groups], released.last_stop]), default=None)
        late = {each.name: begins for each in sources if (begins := each.earliest_to_configure(until)) is not None}
        if late:
            lines = "".join(f"\n  collectors.{name}.earliest_datetime: {format_time(at)}" for name, at in late.items())
            raise RestoreRefused(
                "without a checkpoint these collectors would start later than before, and earlier jobs would not be "
                f"collected again. Configure these times, or earlier ones, and repeat the command:{lines}"
            )
    behind = behind or (Behind.STORE if has_spool else Behind.SPOOL)
    if behind is Behind.STORE or (not has_spool and (folder / SPOOL).exists()):
        await anyio.to_thread.run_sync(set_back, folder / SPOOL, None)
    if not has_store and is_postgresql(configuration.store.url):
        await migrate_database(address_of(configuration.store), now)
    await _pair_restored(configuration, now)
    return Restored(None, None, behind)


@asynccontextmanager
async def _open_pair(
    configuration: Configuration, now: Callable[[], datetime]
) -> AsyncGenerator[tuple[Spool, RecordStore], None]:
    """Open spool and store, whether or not they belong together."""
    async with Spool.opened(configuration.state_dir, now) as spool, open_configured_store(configuration) as store:
        yield spool, store


async def _find_older(spool: Spool, store: RecordStore) -> Behind | None:
    """Return the older part, or None if both belong together."""
    own = spool.generation
    known = await store.generation(own.spool_id)
    if is_pair(own.number, known):
        return None
    return Behind.SPOOL if known > own.number else Behind.STORE


def _refuse_pair() -> NoReturn:
    """Refuse to restore a part of a store and a spool that belong together.

    Raises:
        RestoreRefused: always.
    """
    raise RestoreRefused(
        "record store and spool.db belong together: nothing is missing, and nothing was changed. --force moves both "
        "aside and restores both from a backup"
    )


async def _pair_restored(configuration: Configuration, now: Callable[[], datetime]) -> None:
    """Pair store and spool after a restore. Then all instances are due, and plugins wait for collectors."""
    note_restore(configuration.state_dir, now())
    async with _open_pair(configuration, now) as (spool, store):
        await Pairing(store, spool).adopt()


async def _prepare_and_put_in_place(target: Target) -> None:
    try:
        await target.prepare()
        await target.put_in_place()
    finally:
        await target.discard()
