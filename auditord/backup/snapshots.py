"""Snapshots of the record store for a backup."""

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import anyio.to_thread

from auditord.backup import postgres
from auditord.backup.manifest import StoreFile, StorePart
from auditord.backup.sqlite import Pacing, copy_snapshot, snapshot
from auditord.config.model import StoreSection
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.database.postgres.address import Address, address_of
from auditord.database.sql_files import load_scripts
from auditord.store.copying import Contents, Progress, contents
from auditord.store.copying.postgres import PostgresEnd, postgres_source
from auditord.store.copying.sqlite import sqlite_source
from auditord.store.postgres.store import MIGRATIONS as POSTGRES_MIGRATIONS
from auditord.store.sqlite.store import MIGRATIONS as SQLITE_MIGRATIONS

STORE: Final = "records.db"


class StoreSnapshot(ABC):
    @abstractmethod
    async def save(self, folder: Path, pacing: Pacing) -> StorePart:
        """Write the snapshot to a folder."""

    @abstractmethod
    async def lake_snapshot(self) -> int | None:
        """Return the id of the lake's snapshot with the released records, or None if no records are released."""

    def advice(self, folder: Path, made_at: datetime) -> str | None:
        """Return the steps left to the operator, if any."""
        del folder, made_at
        return None


@asynccontextmanager
async def open_snapshot(section: StoreSection, *, dump: bool) -> AsyncGenerator[StoreSnapshot, None]:
    """Open a snapshot of a configured store, unaffected by concurrent writes.

    Raises:
        SchemaMismatch: the store belongs to another program or version.
        StoreUnavailable: the store cannot be read.
    """
    if is_postgresql(section.url):
        address = address_of(section)
        async with postgres_source(address) as end:
            yield _Server(address, end, postgres.DUMP if dump else None)
    else:
        with snapshot(sqlite_path(section.url), SQLITE_MIGRATIONS) as connection:
            yield _File(connection)


class _File(StoreSnapshot):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def save(self, folder: Path, pacing: Pacing) -> StorePart:
        target = folder / STORE
        await anyio.to_thread.run_sync(copy_snapshot, self._connection, target, pacing("records"))
        self._connection.close()  # ends its transaction, so that the log stops growing
        found = await anyio.to_thread.run_sync(contents_of, target, pacing.checking(target.stat().st_size))
        schema = len(load_scripts(SQLITE_MIGRATIONS))
        return StorePart("sqlite", schema, STORE, found.records, found.digest, found.tables, found.lake)

    async def lake_snapshot(self) -> int | None:
        row = self._connection.execute("SELECT snapshot_id FROM lake WHERE records > 0").fetchone()
        return None if row is None else int(row[0])


def contents_of(path: Path, progress: Progress) -> Contents:
    """Return the contents of a store in an SQLite file. Blocks, so it must be called in a thread."""

    async def read() -> Contents:
        async with sqlite_source(path) as end:
            return await contents(end, progress)

    return asyncio.run(read())


@dataclass(frozen=True, slots=True)
class _Server(StoreSnapshot):
    address: Address
    end: PostgresEnd
    file: StoreFile | None

    async def save(self, folder: Path, pacing: Pacing) -> StorePart:
        if self.file is not None:
            pacing.progress.note_progress("pg_dump", 0, 1)
            await postgres.dump(self.address, await self.end.export_snapshot(), folder / self.file)
        found = await contents(self.end, pacing.progress)
        schema = len(load_scripts(POSTGRES_MIGRATIONS))
        return StorePart("postgresql", schema, self.file, found.records, found.digest, found.tables, found.lake)

    async def lake_snapshot(self) -> int | None:
        part = await self.end.lake()
        return None if part is None else part.snapshot

    def advice(self, folder: Path, made_at: datetime) -> str | None:
        when = f"{made_at:%Y-%m-%d %H:%M:%SZ}"
        return None if self.file else postgres.RECIPE.format(where=self.address.where, folder=folder, made_at=when)
