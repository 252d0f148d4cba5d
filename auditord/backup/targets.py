"""The targets of a restore: a file or a schema for the record store, and a file for the spool."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, LiteralString

import anyio.to_thread
import psycopg
from psycopg import sql

from auditord.backup import postgres
from auditord.backup.manifest import TOKENS, BackupDamaged, Manifest, StorePart
from auditord.backup.snapshots import contents_of
from auditord.config.model import StoreSection
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.database.connections import open_for_writing, translate_errors
from auditord.database.durable_files import make_private, make_private_folder, sync, write_durably
from auditord.database.migrations import find_schema_faults, load_migrations, migrate
from auditord.database.postgres.address import Address, address_of
from auditord.database.postgres.faults import translate_errors as translate_server_errors
from auditord.database.sql_files import load_scripts
from auditord.spool.spool import FILE as SPOOL
from auditord.spool.spool import MIGRATIONS as SPOOL_MIGRATIONS
from auditord.store.copying import Contents, Progress, contents
from auditord.store.copying.postgres import postgres_source
from auditord.store.postgres.administration import migrate_database, refuse_daemons
from auditord.store.postgres.store import MIGRATIONS as POSTGRES_MIGRATIONS
from auditord.store.sqlite.store import MIGRATIONS as SQLITE_MIGRATIONS
from auditord_hookspecs.wording import counted

_HAS_SCHEMA: Final = "SELECT count(*) FROM pg_namespace WHERE nspname = %s"
_PARTS: Final = ("", "-wal", "-shm")
"""Endings of the files of an SQLite database. A log left behind would corrupt the file that replaces the database."""


class Target(ABC):
    """A file or a schema to which a part of a backup is restored. Every step can be repeated after an interruption."""

    @abstractmethod
    async def is_present(self) -> bool:
        """Return whether there is data already."""

    @abstractmethod
    async def prepare(self) -> None:
        """Do everything that can be done and verified without touching existing data."""

    @abstractmethod
    async def put_aside(self, aside: str) -> str:
        """Move existing data aside under a name, unless that was done before, and return where it is now."""

    @abstractmethod
    async def put_in_place(self) -> None:
        """Put the backup in place."""

    @abstractmethod
    async def discard(self) -> None:
        """Remove the prepared files."""


@dataclass(frozen=True, slots=True)
class FileTarget(Target):
    """An SQLite file.

    Args:
        source: the copy in the backup.
        path: where it is restored to.
        migrations: of its schema.
        verify: raises if the migrated copy does not match the manifest.
    """

    source: Path
    path: Path
    migrations: str
    verify: Callable[[Path], None]

    async def is_present(self) -> bool:
        """Return whether the file or its log exists."""
        return any(_with_ending(self.path, part).exists() for part in _PARTS)

    async def prepare(self) -> None:
        """Copy the file next to the one that it replaces, migrate and verify it."""
        await self.discard()
        await anyio.to_thread.run_sync(self._prepare)

    def _prepare(self) -> None:
        make_private_folder(self.path.parent)
        make_private(self.draft)
        shutil.copyfile(self.source, self.draft)
        migrations = load_migrations(self.migrations)
        with closing(open_for_writing(self.draft)) as connection, translate_errors(self.draft):
            if faults := find_schema_faults(connection, migrations):
                raise BackupDamaged(
                    f"{self.source} was changed by another program: {'; '.join(faults[:10])}; use another backup"
                )
            migrate(connection, migrations, self.draft)
        self.verify(self.draft)

    async def put_aside(self, aside: str) -> str:
        """Move the file with its log into a folder next to it."""
        folder = self.path.with_name(aside)
        parts = [_with_ending(self.path, part) for part in _PARTS]
        if not (folder / self.path.name).exists() and any(path.exists() for path in parts):
            folder.mkdir(mode=0o700, exist_ok=True)
            for path in reversed(parts):  # the database file last: it shows that all files were moved
                with suppress(FileNotFoundError):
                    path.rename(folder / path.name)
            sync(folder)
            sync(folder.parent)
        return str(folder / self.path.name)

    async def put_in_place(self) -> None:
        """Rename the prepared copy into place."""
        sync(self.draft)
        self.draft.replace(self.path)
        sync(self.path.parent)

    async def discard(self) -> None:
        for part in (*_PARTS, "-journal"):
            _with_ending(self.draft, part).unlink(missing_ok=True)

    @property
    def draft(self) -> Path:
        return self.path.with_name(f".restoring-{self.path.name}")


@dataclass(frozen=True, slots=True)
class ServerTarget(Target):
    """The schema in a PostgreSQL database.

    Args:
        source: the dump in the backup.
        address: of the database.
        part: its entry in the manifest.
        now: for the note of when tables were made.
    """

    source: Path
    address: Address
    part: StorePart
    now: Callable[[], datetime]
    progress: Progress

    async def is_present(self) -> bool:
        """Return whether the schema exists."""
        return await self._has("auditord")

    async def prepare(self) -> None:
        """Make sure that no daemon uses the database. Nothing is prepared, since pg_restore is atomic."""
        await refuse_daemons(self.address)

    async def put_aside(self, aside: str) -> str:
        name = aside.replace("-", "_").lower()
        if not await self._has(name) and await self._has("auditord"):
            await self._do(sql.SQL("ALTER SCHEMA auditord RENAME TO {}").format(sql.Identifier(name)))
        return f"schema {name} of {self.address.where}"

    async def put_in_place(self) -> None:
        """Restore the schema from the dump, unless an interrupted restore has done so, then migrate and verify it."""
        if not await self._has("auditord"):
            self.progress.note_progress("pg_restore", 0, 1)
            await postgres.load_dump(self.address, self.source)
        await migrate_database(self.address, self.now)
        async with postgres_source(self.address) as end:
            found = await contents(end, self.progress)
        refuse_different(found, self.part, self.address.where, len(load_scripts(POSTGRES_MIGRATIONS)))

    async def discard(self) -> None:
        """Do nothing, since nothing was prepared."""

    async def _has(self, schema: str) -> bool:
        return bool(await self._do(_HAS_SCHEMA, (schema,)))

    async def _do(self, statement: LiteralString | sql.Composed, values: Sequence[object] = ()) -> int:
        with translate_server_errors(self.address.where):
            async with await psycopg.AsyncConnection.connect(
                autocommit=True, **self.address.parameters()
            ) as connection:
                cursor = await connection.execute(statement, values)
                return (await cursor.fetchone() or (0,))[0] if cursor.description else 0


def restore_tokens(backup: Path, manifest: Manifest, state_dir: Path) -> bool:
    """Copy the tokens of a backup to the state folder, unless it has tokens: those may have been revoked since.

    Returns:
        Whether they were copied.
    """
    if TOKENS not in manifest.files or (state_dir / TOKENS).exists():
        return False
    write_durably(state_dir / TOKENS, (backup / TOKENS).read_bytes())
    return True


def spool_target(backup: Path, state_dir: Path) -> FileTarget:
    return FileTarget(backup / SPOOL, state_dir / SPOOL, SPOOL_MIGRATIONS, lambda _: None)


def store_target(
    backup: Path, manifest: Manifest, section: StoreSection, now: Callable[[], datetime], progress: Progress
) -> Target:
    """Return the target for the record store, which must be in the backup."""
    part = manifest.store
    if is_postgresql(section.url):
        return ServerTarget(backup / str(part.file), address_of(section), part, now, progress)

    def verify(draft: Path) -> None:
        refuse_different(contents_of(draft, progress), part, backup, len(load_scripts(SQLITE_MIGRATIONS)))

    return FileTarget(backup / str(part.file), sqlite_path(section.url), SQLITE_MIGRATIONS, verify)


def refuse_different(found: Contents, part: StorePart, where: object, schema: int) -> None:
    """Raise BackupDamaged unless a store has the records of its manifest. Digests depend on the schema version."""
    if found.records != part.records or (part.schema == schema and found.digest != part.digest):
        raise BackupDamaged(
            f"{where} has {counted(found.records, 'record')} with digest {found.digest}, "
            f"but the manifest says {part.records:,} with {part.digest}: use another backup"
        )


def _with_ending(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)
