"""The record store in a PostgreSQL database."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import datetime
from typing import Final

import msgspec
from psycopg import AsyncServerCursor
from psycopg.errors import NumericValueOutOfRange
from psycopg.rows import TupleRow

from auditord.database.postgres import Connection, Server
from auditord.database.postgres.address import Address
from auditord.database.postgres.faults import translated
from auditord.database.postgres.server import PREPARE_WITHIN
from auditord.database.postgres.silence import WRITE_WITHIN
from auditord.database.postgres.sockets import limited
from auditord.database.postgres.streaming import copied
from auditord.database.scripts import load_scripts
from auditord.errors import SchemaMismatch
from auditord.store.aggregates import folded
from auditord.store.aggregates_sql import compile_aggregate
from auditord.store.amendments import Amended, Amendment, Version
from auditord.store.conditions import compile_query
from auditord.store.ledger import Addition, Bulk, Change, Outcome, Replacement, Stop
from auditord.store.postgres import amending, outbox, redacting, turns
from auditord.store.postgres.batches import Batches
from auditord.store.postgres.changes import Transactions
from auditord.store.postgres.counting import QUERIES as COUNTING
from auditord.store.postgres.counting import CountChanges, add_up, read_counts, set_counted_keys
from auditord.store.postgres.dialect import PostgresDialect, Products, follows_an_index
from auditord.store.postgres.memory import PostgresMemory, memory
from auditord.store.postgres.rows import as_json
from auditord.store.postgres.sources import QUERIES, Sources
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
from auditord.store.rows import PendingRecord, make_pending, unfinished_copy
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery, RecordUpdate

MIGRATIONS: Final = "auditord.store.postgres.migrations"

_AT_ONCE: Final = 2
"""Transactions of gathered changes at a time: while one waits for the disk, another is being put together."""

_BETWEEN_SUMS: Final = 500
"""Transactions after which the counts that they appended are added up."""

_ROWS_AT_ONCE: Final = 64
_RECORDS_BETWEEN_PAUSES: Final = 100  # about a millisecond
_CHECK_WITHIN: Final = 4.0  # shorter than whoever asks has patience
_BULK_WITHIN: Final = 120.0
_WRITTEN_WITHIN: Final = 1_000
"""Records that a server writes within the time for one write, however busy it is."""


class PostgresRecordStore:
    """Implements :class:`auditord.store.protocol.RecordStore` on a database that several daemons may share.

    Args:
        address: the database.
        counted_keys: meta keys whose values :meth:`counts` tells; None tells all that anybody counts.
        outbox: whether changes are kept for senders.
        read_only: only reading works.
    """

    def __init__(
        self,
        address: Address,
        counted_keys: Sequence[str] | None,
        *,
        outbox: bool = False,
        read_only: bool = False,
    ) -> None:
        self._shown = counted_keys
        self._counted: Sequence[str] = ()
        self._server = Server(address, load_scripts(MIGRATIONS), self._prepare, self._probe, read_only=read_only)
        self._read_only = read_only
        self._has_outbox = outbox
        self._sources = Sources()
        self._transactions = Transactions(self._sources, lambda: self._counted)
        self._batches = Batches(lambda: self._server.connection(None), self._make, _AT_ONCE)
        self._appended = 0

    async def open(self) -> None:
        """Connect.

        Raises:
            SchemaMismatch: the schema is not this version's.
            StoreUnavailable: the server does not answer now; the store may be used, and works once it does.
        """
        await self._server.open()

    async def refused(self) -> SchemaMismatch:
        """Wait until a connection finds that the schema is not this version's, be it after hours."""
        await self._server.refusal.wait()
        if self._server.refused is None:
            raise AssertionError("the event is set after the reason")
        return self._server.refused

    async def add(self, record: Record, provenance: Provenance, duplicates: Duplicates) -> Verdict:
        """See :class:`RecordStore`."""
        return _verdict(await self._batches.submit(Addition(self._pending(record, provenance, duplicates))))

    async def add_all(
        self, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates, *, atomic: bool
    ) -> Sequence[Verdict]:
        """See :class:`RecordStore`."""
        if not records:
            return []
        pending_records = await self._pending_records(records, provenance, duplicates)
        return await self._batches.submit_bulk(Bulk(pending_records, atomic))

    async def stop(self, update: RecordUpdate, provenance: Provenance) -> bool:
        """See :class:`RecordStore`."""
        return bool(
            await self._batches.submit(
                Stop(update.record_id, update.stop_time, provenance, self._is_forwarded(provenance))
            )
        )

    async def replace(self, record: Record, provenance: Provenance, alternate_id: str | None = None) -> Verdict:
        """See :class:`RecordStore`."""
        pending = self._pending(record, provenance, Duplicates.SAME_RUN)
        return _verdict(await self._batches.submit(Replacement(pending, _renamed(pending, alternate_id))))

    async def amend(self, amendments: Sequence[Amendment], provenance: Provenance) -> Sequence[Amended]:
        """See :class:`RecordStore`."""
        prepared = prepare(amendments, provenance, forwarded=self._is_forwarded(provenance))
        async with self._server.connection(_BULK_WITHIN) as connection:
            return await amending.amend(connection, prepared, provenance, self._sources, self._counted)

    async def history(self, record_id: str) -> Sequence[Version]:
        """See :class:`RecordStore`."""
        async with self._server.connection() as connection:
            return await amending.history(connection, record_id)

    async def redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """See :class:`RecordStore`."""
        async with self._server.connection(_BULK_WITHIN) as connection:
            return await redacting.redact(connection, record_ids, keys, self._counted)

    async def redact_leftovers(self, before: datetime, keys: Collection[str]) -> int:
        """See :class:`RecordStore`."""
        async with self._server.connection(_BULK_WITHIN) as connection:
            return await redacting.redact_leftovers(connection, before, keys)

    async def get(self, record_id: str) -> bytes | None:
        """See :class:`RecordStore`."""
        return (await self.documents([record_id])).get(record_id)

    async def documents(self, record_ids: Sequence[str]) -> Mapping[str, bytes]:
        """See :class:`RecordStore`."""
        async with self._server.connection() as connection:
            rows = await (await connection.execute(QUERIES["get_documents"], (as_json(record_ids),))).fetchall()
        return {record_id: document.encode() for record_id, document in rows}

    async def deleted(self, record_ids: Sequence[str]) -> Collection[str]:
        """See :class:`RecordStore`."""
        async with self._server.connection() as connection:
            rows = await (await connection.execute(QUERIES["find_deleted"], (as_json(record_ids),))).fetchall()
        return {name for (name,) in rows}

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """See :class:`RecordStore`. The answer is as of the moment when the context is entered."""
        compiled = compile_query(query, PostgresDialect())
        sort = "off" if follows_an_index(query) else "on"
        async with self._server.reader() as connection:
            await connection.execute("SELECT set_config('enable_sort', %s, false)", (sort,))
            async with copied(connection, compiled.sql, compiled.parameters) as pages:
                yield pages

    async def counts(self) -> RecordCounts:
        """See :class:`RecordStore`."""
        async with self._server.connection(PREPARE_WITHIN) as connection:
            if not self._read_only:
                await add_up(connection)
                await self._prepare(connection)  # some daemon may not have counted what this one shows
            return await read_counts(connection, self._shown)

    @asynccontextmanager
    async def differences(self) -> AsyncGenerator[AsyncIterator[Difference], None]:
        """See :class:`RecordStore`."""
        async with (
            self._server.reader() as connection,
            connection.transaction(),
            AsyncServerCursor(connection, "differences") as cursor,
            aclosing(_differences(cursor)) as differences,
        ):
            cursor.itersize = _ROWS_AT_ONCE
            await cursor.execute(QUERIES["list_differences"])
            yield differences

    async def outbox(self, limit: int) -> Sequence[OutboxEntry]:
        """See :class:`RecordStore`."""
        async with self._server.connection() as connection:
            return await outbox.oldest(connection, limit)

    async def forget_outbox(self, numbers: Collection[int]) -> None:
        """See :class:`RecordStore`."""
        async with self._server.connection() as connection:
            await outbox.forget(connection, numbers)

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """See :class:`RecordStore`."""
        try:
            return await self._sums(query, Products.LIKELY)
        except NumericValueOutOfRange:
            return await self._sums(query, Products.LARGE)

    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PostgresMemory]:
        """See :class:`RecordStore`."""
        return memory(self._server, task, waiting, occasion)

    async def turns(self) -> Sequence[HeldTurn]:
        """See :class:`RecordStore`."""
        async with self._server.connection(_CHECK_WITHIN) as connection:
            return await turns.held(connection)

    async def advance(self, spool_id: str, generation: int, *, adopt: bool = False) -> int:
        """See :class:`RecordStore`."""
        async with self._server.connection() as connection, connection.transaction():
            row = await (await connection.execute(QUERIES["find_generation"], (spool_id,))).fetchone()
            before: int = 0 if row is None else row[0]
            if adopt or follows(before, generation):
                await connection.execute(QUERIES["set_generation"], (spool_id, generation))
        return before

    async def check(self) -> None:
        """See :class:`RecordStore`. It commits a row as every addition does."""
        async with self._server.connection(_CHECK_WITHIN) as connection:
            await self._probe(connection)

    async def _probe(self, connection: Connection) -> None:
        await connection.execute(COUNTING["note_changes"], (CountChanges(self._counted).as_json(),))

    async def close(self) -> None:
        """See :class:`RecordStore`."""
        await self._batches.close()
        await self._server.close()

    async def _sums(self, query: AggregateQuery, products: Products) -> Aggregates:
        compiled = compile_aggregate(query, PostgresDialect(products, windowed=query.window is not None))
        async with self._server.reader() as connection:
            await connection.execute(QUERIES["prepare_sums"])
            rows = await (await connection.execute(compiled.statement.sql, compiled.statement.parameters)).fetchall()
        return await asyncio.to_thread(folded, query, compiled.parts, rows)

    def _pending(self, record: Record, provenance: Provenance, duplicates: Duplicates) -> PendingRecord:
        return make_pending(record, provenance, duplicates, forwarded=self._is_forwarded(provenance))

    def _is_forwarded(self, provenance: Provenance) -> bool:
        return self._has_outbox and is_forwarded(provenance)

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

    async def _prepare(self, connection: Connection) -> None:
        await refuse_unfinished_copy(connection, self._server.where)
        if not self._read_only:
            self._counted = await set_counted_keys(connection, self._shown or ())

    async def _make(self, connection: Connection, changes: Sequence[Change] | Bulk) -> Sequence[Outcome]:
        size = len(changes.pending_records) if isinstance(changes, Bulk) else len(changes)
        within = WRITE_WITHIN * -(-size // _WRITTEN_WITHIN)
        with translated(self._server.where), limited(connection, within, self._server.silence.notice):
            await self._add_up_sometimes(connection)
            if isinstance(changes, Bulk):
                return await self._transactions.add_all(connection, changes.pending_records, atomic=changes.atomic)
            return await self._transactions.change_each(connection, changes)

    async def _add_up_sometimes(self, connection: Connection) -> None:
        self._appended += 1
        if self._appended >= _BETWEEN_SUMS:
            self._appended = 0
            self._counted = await add_up(connection)


async def refuse_unfinished_copy(connection: Connection, where: str) -> None:
    """Return unless only a part of another store's records is there.

    Raises:
        SchemaMismatch: a copy was interrupted.
    """
    row = await (await connection.execute(QUERIES["unfinished_copy"])).fetchone()
    if row is not None:
        raise SchemaMismatch(unfinished_copy(where, row[0]))


def _verdict(outcome: Verdict | bool) -> Verdict:  # noqa: FBT001 as it comes
    if not isinstance(outcome, Verdict):
        raise TypeError(f"an addition has a verdict, not {outcome}")
    return outcome


def _renamed(pending: PendingRecord, record_id: str | None) -> PendingRecord | None:
    if record_id is None:
        return None
    record = msgspec.structs.replace(pending.record, record_id=record_id)
    return make_pending(record, pending.provenance, pending.duplicates, forwarded=pending.forwarded)


async def _differences(cursor: AsyncServerCursor[TupleRow]) -> AsyncGenerator[Difference, None]:
    async for record_id, seen_at, principal, stored, offered in cursor:
        yield Difference(record_id, seen_at, principal, stored.encode(), offered.encode())
