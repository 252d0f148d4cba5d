"""Restore of a backup: verify it, move the current files aside, and put store and spool in place as a pair."""

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import compress
from pathlib import Path

import msgspec

from auditord.backup.manifest import BackupDamaged, Manifest, find_backup, read_manifest, verify_files
from auditord.backup.notes import Unfinished, begin, end, note_restore, unfinished
from auditord.backup.targets import Target, restore_tokens, spool_target, store_target
from auditord.config.model import StoreSection
from auditord.config.store_url import is_postgresql
from auditord.database.migrations import load_migrations
from auditord.database.sql_files import load_scripts
from auditord.spool import Generation
from auditord.spool.spool import MIGRATIONS as SPOOL_MIGRATIONS
from auditord.store.copying import Progress
from auditord.store.postgres.store import MIGRATIONS as POSTGRES_MIGRATIONS
from auditord.store.sqlite.store import MIGRATIONS as SQLITE_MIGRATIONS
from auditord_hookspecs import AuditordError


class RestoreRefused(AuditordError):
    """A restore would harm existing data, or is impossible; nothing was touched.

    Remedy:
        do what the text says; nothing was touched.
    """


class Restored(msgspec.Struct, frozen=True):
    """A completed restore."""

    backup: Path
    manifest: Manifest
    aside: Sequence[str] = ()
    has_tokens: bool = False
    """Whether the API's tokens were restored."""


class Restoration(msgspec.Struct, frozen=True):
    """A verified backup that is being restored.

    Args:
        backup: the folder of the backup.
        state_dir: the folder of the spool; the caller holds its lock.
        section: the configured store.
        store: where the record store is restored to.
        spool: where the spool is restored to.
    """

    backup: Path
    manifest: Manifest
    state_dir: Path
    section: StoreSection
    now: Callable[[], datetime]
    store: Target
    spool: Target

    @classmethod
    def verified(
        cls, place: Path, state_dir: Path, section: StoreSection, now: Callable[[], datetime], progress: Progress
    ) -> "Restoration":
        """Return ``place`` or the newest complete backup in it, after verifying all its files.

        Raises:
            NoBackup: there is no complete backup.
            BackupDamaged: the backup does not match its manifest, or is of a later version.
            RestoreRefused: the backup's store is in another kind of database.
        """
        backup = find_backup(place)
        manifest = read_manifest(backup)
        _refuse_newer(backup, manifest)
        if is_postgresql(section.url) is (manifest.store.database == "sqlite"):
            raise RestoreRefused(
                f"{backup} has a record store in {manifest.store.database}, but store.url is of another kind: set "
                "store.url to one of that kind, restore, and then copy the records with `auditord database copy`"
            )
        progress.progressed("verifying", 0, 1)
        verify_files(backup, manifest)
        store = store_target(backup, manifest, section, now, progress)
        return cls(backup, manifest, state_dir, section, now, store, spool_target(backup, state_dir))

    async def replace_both(self, *, force: bool) -> Restored:
        """Put store and spool of the backup in place, under a new spool id. ``force`` moves existing files aside.

        Raises:
            RestoreRefused: the backup has only the spool, something exists and ``force`` is not set, or the restore of
                another backup was interrupted.
        """
        self.refuse_without_store()
        targets, note = (self.store, self.spool), unfinished(self.state_dir)
        if note is not None and note.backup != str(self.backup):
            raise RestoreRefused(f"the restore of {note.backup} was interrupted: complete that one first")
        present = note.present if note else (await targets[0].is_present(), await targets[1].is_present())
        if note is None and not force:
            _refuse_present(*present)
        aside = note.aside if note else self.aside()
        try:
            for target in targets:
                await target.prepare()
            begin(self.state_dir, Unfinished(str(self.backup), aside, present))
            return await self._move(targets, list(compress(targets, present)), aside)
        finally:
            for target in targets:
                await target.discard()

    def aside(self) -> str:
        """Return the name under which the current files are moved aside."""
        return f"before-restore-{self.now():%Y%m%dT%H%M%SZ}"

    def refuse_without_store(self) -> None:
        """Raise RestoreRefused if the backup has only the spool."""
        if self.manifest.store.file is None:
            raise RestoreRefused(
                f"{self.backup} has only the spool: restore the database with its own tools, to a point in time after "
                f"{self.manifest.made_at:%Y-%m-%d %H:%M:%SZ}, and then run this command with --continue"
            )

    async def _move(self, targets: tuple[Target, Target], present: Sequence[Target], aside: str) -> Restored:
        places = [await target.put_aside(aside) for target in present]
        generation = Generation(secrets.token_hex(16), 1)
        for target in targets:
            await target.place(generation)
        has_tokens = restore_tokens(self.backup, self.manifest, self.state_dir)
        note_restore(self.state_dir, self.now())
        end(self.state_dir)
        return Restored(self.backup, self.manifest, places, has_tokens)


def _refuse_present(store: bool, spool: bool) -> None:  # noqa: FBT001 two facts
    names = [*(["the record store"] if store else []), *(["spool.db"] if spool else [])]
    if names:
        raise RestoreRefused(
            f"{' and '.join(names)} already {'exist' if store and spool else 'exists'}: --continue keeps an existing "
            "part, restores the missing one, and makes collectors collect the lost records again; --force moves "
            "existing parts aside and restores both"
        )


def _refuse_newer(backup: Path, manifest: Manifest) -> None:
    store = SQLITE_MIGRATIONS if manifest.store.database == "sqlite" else POSTGRES_MIGRATIONS
    known = {"record store": len(load_scripts(store)), "spool": len(load_migrations(SPOOL_MIGRATIONS).scripts)}
    for part, schema in (("record store", manifest.store.schema), ("spool", manifest.spool.schema)):
        if schema > known[part]:
            raise BackupDamaged(
                f"{backup} was made by auditord {manifest.auditord}: its {part} has schema {schema}, this version "
                f"knows up to {known[part]}; install that version to restore it"
            )
