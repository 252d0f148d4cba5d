"""The part of a record store that syncs changes to the lake and releases records to it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace
from typing_extensions import override

from auditord.database.instants import from_micros
from auditord.store.aggregates import merge_answers
from auditord.store.changes import has_any, redact
from auditord.store.feed import BEHIND_ALL, end_of_feed, read_by_all
from auditord.store.lake import (
    LakeBatch,
    LakeOvertaken,
    LakeRecord,
    LakeSnapshot,
    LakeState,
    LakeUnavailable,
    Released,
    ReleasedRecords,
    ReleasedRow,
)
from auditord.store.merging import may_be_between, merge_pages
from auditord.store.origins import Origins
from auditord.store.protocol import Reads
from auditord.store.releasing import (
    Pair,
    begin_lake,
    count_unread,
    fill_lake,
    find_released,
    forget_recalled,
    list_recalled_and_kept,
    read_lake,
    read_released,
    release,
    restore,
    take_slice,
)
from auditord.store.rollups.scope import Scope
from auditord.store.rollups.upkeep import Upkeep
from auditord.store.work import Rows, Work, atomic
from auditord_hookspecs import AggregateQuery, Aggregates, Provenance, RecordQuery
from auditord_hookspecs.wire import decode_record
from auditord_hookspecs.wording import counted

T = TypeVar("T")

_AT_ONCE: Final = 1_000
"""The number of records that are recalled in one transaction."""


class LakeStore(Reads, ABC):
    """Records that can be read, synced to a lake and released to it."""

    lake: ReleasedRecords | None = None
    """The lake that this process can read."""
    rollups: Upkeep
    _origins: Origins

    @abstractmethod
    async def _write(self, work: Work[T], *, is_long: bool = False) -> T:
        """Do work, which begins its own transaction if it needs one."""

    @abstractmethod
    async def _read(self, work: Work[T]) -> T:
        """Do short work that only reads."""

    @abstractmethod
    def _stream(
        self, query: RecordQuery
    ) -> AbstractAsyncContextManager[tuple[AsyncIterator[Sequence[bytes]], Released]]:
        """Stream the database's part of the answer. If the query includes released records, also return their state."""

    @asynccontextmanager
    @override
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """Stream pages of the query, as of the moment when the context is entered."""
        async with self._stream(query) as (pages, released):
            if not released.state.records:
                yield pages
                return
            async with (
                self._require_lake(released.state).stream_released(released, query) as released_pages,
                aclosing(merge_pages([pages, released_pages], query)) as merged,
            ):
                await anext(merged)
                yield merged

    async def lake_state(self) -> LakeState:
        """Return the store's side of the lake."""
        return await self._read(read_lake())

    async def begin_lake(self) -> LakeState:
        """Note that nothing is synced, and stop following the feed until the lake is filled. Return the state."""
        return await self._write(atomic(begin_lake))

    async def fill_lake(self, lake_id: str) -> None:
        """Sync the whole feed, from its beginning, to a lake that has none of the store's records."""
        await self._write(atomic(lambda: fill_lake(lake_id)), is_long=True)

    async def lake_waiting(self) -> int:
        """Return the number of versions of records that the lake may lack."""
        return await self._read(count_unread())

    async def end_of_feed(self) -> int:
        """Return the position up to which the feed is final."""
        return await self._read(end_of_feed())

    async def lake_batch(self, position: int, limit: int, last: int = BEHIND_ALL) -> LakeBatch:
        """Return the next batch: the records of the next slice of the feed. Its number is ``position`` if it is empty.

        Args:
            position: the number of the last batch that the lake has. The store forgets batches up to this number.
            limit: the maximum number of records, unless one transaction stored more.
            last: the position after which records are left to a later run.

        Raises:
            LakeDiverged: the store never gave this number, or has forgotten later batches.
        """
        batch, rows = await self._write(atomic(lambda: take_slice(position, limit, last)), is_long=True)
        return replace(batch, records=await asyncio.to_thread(copies_of, rows))

    async def catch_up(self) -> None:
        """Let the consumers inside the database read the whole final part of the feed."""
        await self.rollups.fold()

    async def read_by_all(self) -> int:
        """Return the position up to which every consumer of the feed has read all records."""
        return await self._read(read_by_all())

    async def list_released(self) -> Released:
        """Return which rows of the lake are released records."""
        return await self._read(read_released())

    async def find_released(self, record_ids: Collection[str]) -> Sequence[ReleasedRow]:
        return await self._read(find_released(record_ids))

    async def release(self, rows: Sequence[LakeRecord], previous: int, snapshot: LakeSnapshot) -> int:
        """Delete records that the lake has, in one transaction, and return how many were deleted.

        A record stays, and its row in the lake does not count, if it differs from the row or a consumer of the feed has
        yet to read it. The store keeps the ids of released records, so they get the same verdicts as stored ones. They
        are recalled when they are changed.

        Args:
            rows: the rows of one release, as read back from the lake.
            previous: the last valid release before it.
            snapshot: the snapshot that the rows were read from.

        Raises:
            LakeOvertaken: another process has released records.
        """
        return await self._write(atomic(lambda: release(rows, previous, snapshot)), is_long=True)

    async def list_recalled_and_kept(self, position: int) -> Sequence[ReleasedRow]:
        """Return rows that do not count, whose records are in the store exactly as in the lake.

        Args:
            position: the number of the last batch that the lake has.
        """
        return await self._read(list_recalled_and_kept(position))

    async def forget_recalled(self, rows: Sequence[ReleasedRow], release: int, snapshot: LakeSnapshot) -> None:
        """Forget rows that did not count, because a new snapshot no longer has them.

        Args:
            rows: the rows that were deleted.
            release: all remaining rows that do not count have a higher number.
            snapshot: the new snapshot.
        """
        await self._write(atomic(lambda: forget_recalled(rows, release, snapshot)), is_long=True)

    async def recall(self, record_ids: Collection[str]) -> int:
        """Move released records back into the database. Return how many were recalled."""
        wanted, back = await self._read(find_released(record_ids)), 0
        for first in range(0, len(wanted), _AT_ONCE):
            copies = await self._read_released(wanted[first : first + _AT_ONCE])
            pairs = [await self._pending_copy(copy) for copy in copies]
            back += await self._write(atomic(partial(restore, pairs)), is_long=True)
        return back

    async def _redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """Redact records, including released ones.

        Raises:
            IsReleased: a record was released at the same time: try again.
        """
        seen = await self._read(find_released(record_ids))
        copies = [copy for copy in await self._read_released(seen) if has_any(copy.record, keys)]
        pairs = [await self._pending_copy(copy) for copy in copies]
        return await self._write(atomic(lambda: redact(record_ids, keys, pairs, seen)), is_long=True)

    async def _read_released(self, wanted: Sequence[ReleasedRow]) -> Sequence[LakeRecord]:
        """Read released records from the lake.

        Raises:
            StoreUnavailable: the lake is not configured here, or cannot be read.
        """
        if not wanted:
            return ()
        state = await self.lake_state()
        found = await self._require_lake(state).find(state, wanted)
        if len(found) < len(wanted):
            missing = {each.record_id for each in wanted} - {each.record.record_id for each in found}
            raise LakeOvertaken(
                f"{counted(len(missing), 'released record is', 'released records are')} no longer in the lake "
                f"at {state.location}, for example {min(missing, default='')!r}: try again; if that does not help, run "
                "`auditord lake verify`."
            )
        return found

    async def _with_released(
        self, query: AggregateQuery, stored: Aggregates, released: Released, scope: Scope | None
    ) -> Aggregates:
        """Add the sums over released records to those over the database, both as of the same moment.

        The lake is not opened if its records stopped at other times, or if roll-ups have answered for them.
        """
        if not (state := released.state).records:
            return stored
        unanswered = [query] if scope is None or state.beside_rollups else scope.edges()
        if not any(may_be_between(each, state.first_stop, state.last_stop) for each in unanswered):
            return stored
        days = None if scope is None else scope.days
        return merge_answers(query, [stored, await self._require_lake(state).sum_released(released, query, days)])

    def _require_lake(self, state: LakeState) -> ReleasedRecords:
        if self.lake is None:
            raise LakeUnavailable(
                f"{counted(state.records, 'record is', 'records are')} released to the lake at {state.location}, "
                "but no lake is configured: set lake.name, and lake.catalog and lake.warehouse if they were set."
            )
        return self.lake

    async def _pending_copy(self, copy: LakeRecord) -> Pair:
        provenance = Provenance(copy.received_at, copy.principal or None, copy.agent or None)
        return copy, await self._origins.pending(copy.record, copy.document, provenance)


def copies_of(rows: Rows) -> Sequence[LakeRecord]:
    """Make records, with everything that a store knows about them, from rows of ``read_records_by_id``."""
    return [
        LakeRecord(
            decode_record(document.encode()),
            document,
            from_micros(received_at),
            None if updated_at is None else from_micros(updated_at),
            principal or "",
            agent or "",
        )
        for document, received_at, updated_at, principal, agent in rows
    ]
