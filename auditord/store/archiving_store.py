"""The part of a record store that moves records into the archive and back."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from auditord.database.instants import from_micros
from auditord.duplicates import Duplicates
from auditord.errors import StoreUnavailable
from auditord.store.aggregates import merged
from auditord.store.archived import Archive, ArchivedRecord, ArchiveOvertaken, ArchiveState, Counted, Removal
from auditord.store.archiving import (
    Pair,
    begin,
    find_archived,
    forget_removals,
    list_archivable,
    publish,
    read_counted,
    read_removals,
    read_state,
    restore,
)
from auditord.store.merging import archived_pages, merged_pages
from auditord.store.periods import may_be_between
from auditord.store.protocol import Provenance
from auditord.store.redacting import has_any, redact
from auditord.store.rollups.scope import Scope
from auditord.store.rollups.upkeep import Upkeep
from auditord.store.rows import amounts_of, make_pending
from auditord.store.sources import Sources
from auditord.store.work import Rows, Work, atomic
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery
from auditord_hookspecs.wire import decode_record
from auditord_hookspecs.wording import counted

T = TypeVar("T")

_AT_ONCE: Final = 1_000
"""Records that one transaction takes back."""
_ALL_ALIKE: Final[Mapping[str, datetime]] = {}


class ArchivingStore(ABC):
    """Implements what :class:`auditord.store.protocol.RecordStore` says about the archive."""

    _sources: Sources
    rollups: Upkeep

    def __init__(self) -> None:
        self._archive: Archive | None = None

    @property
    def archive(self) -> Archive | None:
        """See :class:`RecordStore`."""
        return self._archive

    @archive.setter
    def archive(self, archive: Archive | None) -> None:
        self._archive = archive

    @abstractmethod
    async def _write(self, make: Callable[[], Work[T]], *, is_long: bool = False) -> T:
        """Do work, outside a transaction unless it begins one."""

    @abstractmethod
    async def _read(self, work: Work[T]) -> T:
        """Do short work that only reads."""

    @abstractmethod
    def _stream(
        self, query: RecordQuery
    ) -> AbstractAsyncContextManager[tuple[AsyncIterator[Sequence[bytes]], Counted]]:
        """The answer of the database; of a query for archived records also what counted of them at that moment."""

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """See :class:`RecordStore`. The answer is as of the moment when the context is entered."""
        async with self._stream(query) as (pages, counted):
            if not counted.state.records:
                yield pages
                return
            archived = archived_pages(self._opened(counted.state), counted, query)
            async with aclosing(archived), aclosing(merged_pages([pages, archived], query)) as merged:
                await anext(merged)
                yield merged

    async def archive_state(self) -> ArchiveState:
        """See :class:`RecordStore`."""
        return await self._read(read_state())

    async def archive_removals(self) -> Sequence[Removal]:
        """See :class:`RecordStore`."""
        return await self._read(read_removals())

    async def archive_counted(self) -> Counted:
        """See :class:`RecordStore`."""
        return await self._read(read_counted())

    async def archived(self, record_ids: Collection[str]) -> Sequence[Removal]:
        """See :class:`RecordStore`."""
        return await self._read(find_archived(record_ids))

    async def begin_archive(self, archive_id: str, location: str) -> ArchiveState:
        """See :class:`RecordStore`."""
        return await self._write(lambda: atomic(lambda: begin(archive_id, location)))

    async def archivable(
        self, before: datetime, after: ArchivedRecord | None, limit: int, sites: Mapping[str, datetime] = _ALL_ALIKE
    ) -> Sequence[ArchivedRecord]:
        """See :class:`RecordStore`."""
        place = None if after is None else (after.stop_time, after.record.record_id)
        rows = await self._write(lambda: list_archivable(before, sites, place, limit), is_long=True)
        return await asyncio.to_thread(copies_of, rows)  # thousands of records take a second

    async def publish_chunk(
        self, chunk: Sequence[ArchivedRecord], previous: int, snapshot_id: int, sequence: int
    ) -> int:
        """See :class:`RecordStore`."""
        return await self._write(lambda: atomic(lambda: publish(chunk, previous, snapshot_id, sequence)), is_long=True)

    async def forget_removals(self, removals: Sequence[Removal], snapshot_id: int, sequence: int) -> None:
        """See :class:`RecordStore`."""
        await self._write(lambda: atomic(lambda: forget_removals(removals, snapshot_id, sequence)), is_long=True)

    async def recall(self, record_ids: Collection[str]) -> int:
        """See :class:`RecordStore`."""
        wanted, back = await self._read(find_archived(record_ids)), 0
        for first in range(0, len(wanted), _AT_ONCE):
            back += await self._recall(wanted[first : first + _AT_ONCE])
        return back

    async def _recall(self, wanted: Sequence[Removal]) -> int:
        pairs = [await self._pending_copy(copy) for copy in await self._archived(wanted)]
        return await self._write(lambda: atomic(lambda: restore(pairs)), is_long=True)

    async def _redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """Redact records, those of the archive as well.

        Raises:
            InArchive: a record has moved there meanwhile.
        """
        seen = await self._read(find_archived(record_ids))
        copies = [copy for copy in await self._archived(seen) if has_any(copy.record, keys)]
        pairs = [await self._pending_copy(copy) for copy in copies]
        return await self._write(lambda: atomic(lambda: redact(record_ids, keys, pairs, seen)), is_long=True)

    async def _archived(self, wanted: Sequence[Removal]) -> Sequence[ArchivedRecord]:
        """Records of the archive.

        Raises:
            StoreUnavailable: it is not configured here, or cannot be read.
        """
        if not wanted:
            return ()
        state = await self.archive_state()
        found = await self._opened(state).find(state, wanted)
        if len(found) < len(wanted):
            missing = {each.record_id for each in wanted} - {each.record.record_id for each in found}
            raise ArchiveOvertaken(
                f"{counted(len(missing), 'record is', 'records are')} not in the archive at {state.location} any more, "
                f"{min(missing)!r} is one: try again, and if it stays so, see `auditord archive verify`."
            )
        return found

    async def _with_archive(
        self, query: AggregateQuery, stored: Aggregates, counted: Counted, scope: Scope | None
    ) -> Aggregates:
        """Sums over the database, and over what of the archive counted at the same moment.

        The archive is not opened for what stopped at other times, nor for what roll-ups have answered.
        """
        state, days = counted.state, None if scope is None else scope.days
        unanswered = [query] if scope is None or state.beside_rollups else scope.edges()
        if not state.records or not any(may_be_between(each, state.first_stop, state.last_stop) for each in unanswered):
            return stored
        return merged(query, [stored, await self._opened(state).aggregate(counted, query, days)])

    def _opened(self, state: ArchiveState) -> Archive:
        if self.archive is None:
            raise StoreUnavailable(
                f"{counted(state.records, 'record is', 'records are')} in the archive at {state.location}, and the "
                "configuration has none: write the section `archive`."
            )
        return self.archive

    async def _pending_copy(self, copy: ArchivedRecord) -> Pair:
        """The record as a row; its wire text stays as it is, byte for byte."""
        provenance = Provenance(copy.received_at, copy.principal or None, copy.agent or None)
        source, (score_set,) = await self._sources.numbers(provenance, [amounts_of(copy.record.components).scores])
        pending = make_pending(copy.record, provenance, Duplicates.SAME_RUN, source=source, score_set=score_set)
        row = msgspec.structs.replace(pending.row, document=copy.document)
        return copy, msgspec.structs.replace(pending, row=row)


def copies_of(rows: Rows) -> Sequence[ArchivedRecord]:
    """Records with all that a store knows of them, of rows of ``list_archivable``."""
    return [
        ArchivedRecord(
            decode_record(document.encode()),
            document,
            from_micros(received_at),
            None if updated_at is None else from_micros(updated_at),
            principal or "",
            agent or "",
        )
        for document, received_at, updated_at, principal, agent in rows
    ]
