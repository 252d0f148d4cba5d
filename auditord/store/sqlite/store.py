"""The record store in one SQLite file."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, closing
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from auditord.database import Database
from auditord.database.connections import open_for_reading
from auditord.database.memory import SqliteMemory, sqlite_memory
from auditord.database.migrations import load_migrations, require_current
from auditord.errors import SchemaMismatch
from auditord.store.aggregates import Folding, Row
from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.amendments import Amended, Amendment, Version
from auditord.store.prepared import prepare
from auditord.store.protocol import (
    Difference,
    Duplicates,
    HeldTurn,
    Occasion,
    OutboxEntry,
    Provenance,
    RecordCounts,
    Verdict,
    follows,
    is_forwarded,
)
from auditord.store.rows import PendingRecord, from_micros, make_pending, unfinished_copy
from auditord.store.sqlite import amending, changes, outbox, redacting
from auditord.store.sqlite.additions import Additions
from auditord.store.sqlite.counting import read_counts, set_counted_keys
from auditord.store.sqlite.dialect import SqliteDialect, compile_query, marked, take_rows
from auditord.store.sqlite.sources import QUERIES
from auditord.store.sqlite.sums import Arithmetic, Overflow, noticing_overflow
from auditord_hookspecs import AggregateQuery, Aggregates, InvalidRecord, Record, RecordQuery, RecordUpdate

MIGRATIONS: Final = "auditord.store.sqlite.migrations"

_PAGE_BYTES: Final = 128 * 1024
"""A page of an answer ends after this many bytes; together with the largest record it bounds an answer's memory."""

_ROWS_AT_ONCE: Final = 64
_RECORDS_BETWEEN_PAUSES: Final = 100  # about a millisecond


class SqliteRecordStore:
    """Implements :class:`auditord.store.protocol.RecordStore` on one file. Make one with :meth:`open`."""

    def __init__(self, database: Database, *, outbox: bool = False) -> None:
        """Use :meth:`open`."""
        self._database = database
        self._has_outbox = outbox
        self._additions = Additions(database)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        counted_keys: Sequence[str] = (),
        outbox: bool = False,
        max_page_count: int | None = None,
    ) -> "SqliteRecordStore":
        """Open the file, or make it; migrates it, and counts what is stored if other keys were counted before.

        Args:
            path: the file; its folder must exist.
            counted_keys: meta keys whose values :meth:`counts` tells.
            outbox: whether changes are kept for senders.
            max_page_count: pages that the file may have at most: a test's way to fill a disk.

        Raises:
            SchemaMismatch: the file is another program's, or newer than this version.
            StoreUnavailable: it cannot be opened, or not be written.
        """
        database = Database.open(path, MIGRATIONS, max_page_count=max_page_count)
        store = cls(database, outbox=outbox)
        try:
            await database.read(lambda connection: refuse_unfinished_copy(connection, path))
            await database.write(lambda connection: set_counted_keys(connection, counted_keys))
        except BaseException:
            await store.close()
            raise
        return store

    @classmethod
    def open_read_only(cls, path: Path) -> "SqliteRecordStore":
        """Open a file for reading, beside a daemon that may be writing it.

        Raises:
            SchemaMismatch: the file is another program's, newer, or older and not migrated yet.
            StoreUnavailable: it is not there or cannot be opened.
        """
        with closing(open_for_reading(path)) as connection:
            require_current(connection, load_migrations(MIGRATIONS), path)
            refuse_unfinished_copy(connection, path)
        return cls(Database.open_read_only(path, MIGRATIONS))

    @classmethod
    async def open_beside(cls, path: Path) -> "SqliteRecordStore":
        """Open a file that is another process's, to read it and to keep what plugins remember; migrates nothing.

        Raises:
            SchemaMismatch: the file is another program's, newer, or older and not migrated yet.
            StoreUnavailable: it is not there, cannot be opened, or not be written.
        """
        await cls.open_read_only(path).close()
        return cls(Database.open(path, MIGRATIONS))

    async def add(self, record: Record, provenance: Provenance, duplicates: Duplicates) -> Verdict:
        """See :class:`RecordStore`."""
        return await self._additions.add(self._pending(record, provenance, duplicates))

    async def add_all(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates, *, atomic: bool
    ) -> Sequence[Verdict]:
        """See :class:`RecordStore`."""
        pending_records = await self._pending_records(records, provenance, duplicates)
        try:
            return await self._database.write(
                lambda connection: _add_together(connection, pending_records, atomic=atomic)
            )
        except _Undone as undone:
            return undone.verdicts

    async def stop(self, update: RecordUpdate, provenance: Provenance) -> bool:
        """See :class:`RecordStore`."""
        record_id, stop_time, forwarded = update.record_id, update.stop_time, self._is_forwarded(provenance)
        return await self._database.write(
            lambda connection: changes.stop(connection, record_id, stop_time, provenance, forwarded=forwarded)
        )

    async def replace(self, record: Record, provenance: Provenance, alternate_id: str | None = None) -> Verdict:
        """See :class:`RecordStore`."""
        pending = self._pending(record, provenance, Duplicates.SAME_RUN)
        if alternate_id is None:
            return await self._database.write(lambda connection: changes.replace(connection, pending))
        other = msgspec.structs.replace(record, record_id=alternate_id)
        alternate = self._pending(other, provenance, Duplicates.SAME_RUN)
        return await self._database.write(lambda connection: changes.replace_run(connection, pending, alternate))

    async def amend(self, amendments: Sequence[Amendment], provenance: Provenance) -> Sequence[Amended]:
        """See :class:`RecordStore`."""
        prepared = prepare(amendments, provenance, forwarded=self._is_forwarded(provenance))
        return await self._database.write(lambda connection: amending.amend(connection, prepared, provenance))

    async def history(self, record_id: str) -> Sequence[Version]:
        """See :class:`RecordStore`."""
        return await self._database.read(lambda connection: amending.history(connection, record_id))

    async def redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """See :class:`RecordStore`."""
        return await self._database.write(lambda connection: redacting.redact(connection, record_ids, keys))

    async def redact_leftovers(self, before: datetime, keys: Collection[str]) -> int:
        """See :class:`RecordStore`."""
        return await self._database.write(lambda connection: redacting.redact_leftovers(connection, before, keys))

    async def get(self, record_id: str) -> bytes | None:
        """See :class:`RecordStore`."""
        return await self._database.read(lambda connection: _get(connection, record_id))

    async def documents(self, record_ids: Sequence[str]) -> Mapping[str, bytes]:
        """See :class:`RecordStore`."""
        wanted = msgspec.json.encode(record_ids).decode()
        return await self._database.read(
            lambda connection: dict(connection.execute(QUERIES["get_documents"], (wanted,)))
        )

    async def deleted(self, record_ids: Sequence[str]) -> Collection[str]:
        """See :class:`RecordStore`."""
        wanted = msgspec.json.encode(record_ids).decode()
        return await self._database.read(
            lambda connection: {name for (name,) in connection.execute(QUERIES["find_deleted"], (wanted,))}
        )

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """See :class:`RecordStore`. The answer is as of the moment when the context is entered."""
        compiled = compile_query(query)
        async with self._database.stream(marked(compiled), compiled.parameters, _take_documents) as pages:
            yield pages

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """See :class:`RecordStore`."""
        try:
            with noticing_overflow():
                return await self._sums(query, Arithmetic.LIKELY)
        except Overflow:
            return await self._sums(query, Arithmetic.SPLIT)

    async def counts(self) -> RecordCounts:
        """See :class:`RecordStore`."""
        return await self._database.read(read_counts)

    @asynccontextmanager
    async def differences(self) -> AsyncGenerator[AsyncIterator[Difference], None]:
        """See :class:`RecordStore`."""
        async with (
            self._database.stream(QUERIES["list_differences"], (), _take_differences) as pages,
            aclosing(_one_by_one(pages)) as differences,
        ):
            yield differences

    async def outbox(self, limit: int) -> Sequence[OutboxEntry]:
        """See :class:`RecordStore`."""
        return await self._database.read(lambda connection: outbox.oldest(connection, limit))

    async def forget_outbox(self, numbers: Collection[int]) -> None:
        """See :class:`RecordStore`."""
        await self._database.write(lambda connection: outbox.forget(connection, numbers))

    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[SqliteMemory]:
        """See :class:`RecordStore`."""
        del occasion  # one daemon uses the file
        return sqlite_memory(self._database, task, waiting)

    async def turns(self) -> Sequence[HeldTurn]:
        """See :class:`RecordStore`."""
        return ()

    async def advance(self, spool_id: str, generation: int, *, adopt: bool = False) -> int:
        """See :class:`RecordStore`."""
        return await self._database.write(lambda connection: _advance(connection, spool_id, generation, adopt=adopt))

    async def check(self) -> None:
        """See :class:`RecordStore`."""
        await self._database.write(changes.probe)

    async def close(self) -> None:
        """See :class:`RecordStore`."""
        await self._database.close()

    def _pending(self, record: Record, provenance: Provenance, duplicates: Duplicates) -> PendingRecord:
        return make_pending(record, provenance, duplicates, forwarded=self._is_forwarded(provenance))

    def _is_forwarded(self, provenance: Provenance) -> bool:
        return self._has_outbox and is_forwarded(provenance)

    async def _sums(self, query: AggregateQuery, arithmetic: Arithmetic) -> Aggregates:
        compiled = compile_aggregate(query, SqliteDialect(arithmetic, windowed=query.window is not None))
        folding = Folding(query, compiled.parts)

        def fold(cursor: sqlite3.Cursor) -> list[Row]:  # in a reader's thread: thousands of groups take their time
            rows = take_rows(cursor)
            folding.add(rows)
            return rows

        statement = compiled.statement
        async with self._database.stream(marked(statement), statement.parameters, fold) as pages:
            async for _ in pages:
                pass
        return await asyncio.to_thread(folding.result)

    async def _pending_records(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates
    ) -> Sequence[PendingRecord]:
        # Encoding thousands of records must not hold up everybody else's requests.
        forwarded = self._is_forwarded(provenance)
        pending_records: list[PendingRecord] = []
        for first in range(0, len(records), _RECORDS_BETWEEN_PAUSES):
            part = records[first : first + _RECORDS_BETWEEN_PAUSES]
            pending_records += [make_pending(record, provenance, duplicates, forwarded=forwarded) for record in part]
            await asyncio.sleep(0)
        return pending_records


def refuse_unfinished_copy(connection: sqlite3.Connection, path: Path) -> None:
    """Return unless only a part of another store's records is there.

    Raises:
        SchemaMismatch: a copy was interrupted.
    """
    row = connection.execute(QUERIES["unfinished_copy"]).fetchone()
    if row is not None:
        raise SchemaMismatch(unfinished_copy(str(path), row[0]))


class _Undone(Exception):
    """An atomic addition met a record that belongs to another run."""

    def __init__(self, verdicts: Sequence[Verdict]) -> None:
        self.verdicts = verdicts


def _add_together(
    connection: sqlite3.Connection, pending_records: Sequence[PendingRecord], *, atomic: bool
) -> Sequence[Verdict]:
    verdicts: list[Verdict] = []
    for outcome in changes.add_all(connection, pending_records):
        if isinstance(outcome, InvalidRecord):
            raise outcome
        verdicts.append(outcome)
    if atomic and Verdict.EXISTS in verdicts:
        raise _Undone(verdicts)
    return verdicts


def _get(connection: sqlite3.Connection, record_id: str) -> bytes | None:
    row = connection.execute(QUERIES["get_document"], (record_id,)).fetchone()
    return None if row is None else row[0]


def _advance(connection: sqlite3.Connection, spool_id: str, generation: int, *, adopt: bool) -> int:
    row = connection.execute(QUERIES["find_generation"], (spool_id,)).fetchone()
    before: int = 0 if row is None else row[0]
    if adopt or follows(before, generation):
        connection.execute(QUERIES["set_generation"], (spool_id, generation))
    return before


def _take_documents(cursor: sqlite3.Cursor) -> list[bytes]:
    page: list[bytes] = []
    size = 0
    while size < _PAGE_BYTES and (rows := cursor.fetchmany(_ROWS_AT_ONCE)):
        documents = [document for (document,) in rows]
        size += sum(map(len, documents))
        page += documents
    return page


async def _one_by_one(pages: AsyncIterator[Sequence[Difference]]) -> AsyncGenerator[Difference, None]:
    async for page in pages:
        for difference in page:
            yield difference


def _take_differences(cursor: sqlite3.Cursor) -> list[Difference]:
    return [
        Difference(record_id, from_micros(seen_at), principal, stored, offered)
        for record_id, seen_at, principal, stored, offered in cursor.fetchmany(_ROWS_AT_ONCE)
    ]
