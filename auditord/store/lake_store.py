"""The part of a record store that gives its changes to the lake, and releases records to it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Final, TypeVar

from msgspec.structs import replace
from typing_extensions import override

from auditord.database.instants import from_micros
from auditord.errors import StoreUnavailable
from auditord.store.aggregates import merged
from auditord.store.changes import has_any, redact
from auditord.store.lake import (
    LakeBatch,
    LakeOvertaken,
    LakeRecord,
    LakeSnapshot,
    LakeState,
    Released,
    ReleasedRecords,
    ReleasedRow,
)
from auditord.store.merging import may_be_between, merged_pages
from auditord.store.protocol import Reads
from auditord.store.releasing import (
    Pair,
    begin_lake,
    count_unread,
    fill_lake,
    find_released,
    forget_recalled,
    read_lake,
    read_released,
    recalled_and_kept,
    release,
    restore,
    take_slice,
)
from auditord.store.rollups.scope import Scope
from auditord.store.rollups.upkeep import Upkeep
from auditord.store.sources import Sources
from auditord.store.work import Rows, Work, atomic
from auditord_hookspecs import AggregateQuery, Aggregates, Provenance, RecordQuery
from auditord_hookspecs.wire import decode_record
from auditord_hookspecs.wording import counted

T = TypeVar("T")

_AT_ONCE: Final = 1_000
"""Records that one transaction takes back."""


class LakeStore(Reads, ABC):
    """Records that can be read, synced to a lake and released to it."""

    lake: ReleasedRecords | None = None
    """The lake that this process can read."""
    rollups: Upkeep
    _sources: Sources

    @abstractmethod
    async def _write(self, make: Callable[[], Work[T]], *, is_long: bool = False) -> T:
        """Do work, outside a transaction unless it begins one."""

    @abstractmethod
    async def _read(self, work: Work[T]) -> T:
        """Do short work that only reads."""

    @abstractmethod
    def _stream(
        self, query: RecordQuery
    ) -> AbstractAsyncContextManager[tuple[AsyncIterator[Sequence[bytes]], Released]]:
        """The answer of the database; a query for released records also gets the state of releases at that moment."""

    @asynccontextmanager
    @override
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Sequence[bytes]], None]:
        """Pages of the query, as of the moment when the context is entered."""
        async with self._stream(query) as (pages, released):
            if not released.state.records:
                yield pages
                return
            async with (
                self._opened(released.state).stream_released(released, query) as gone,
                aclosing(merged_pages([pages, gone], query)) as merged,
            ):
                await anext(merged)
                yield merged

    async def lake_state(self) -> LakeState:
        """The store's side of the lake."""
        return await self._read(read_lake())

    async def begin_lake(self) -> LakeState:
        """Note that nothing is synced, and keep nothing for the lake until it is filled; returns the state."""
        return await self._write(lambda: atomic(begin_lake))

    async def fill_lake(self, lake_id: str) -> None:
        """Let the lake, which has none of the store's records, get all of them and all changes from now on."""
        await self._write(lambda: atomic(lambda: fill_lake(lake_id)), is_long=True)

    async def lake_waiting(self) -> int:
        """The number of versions of records that the lake may not have."""
        return await self._read(count_unread())

    async def lake_batch(self, position: int, limit: int) -> LakeBatch:
        """The records of the next slice of the feed, under the position at its end; ``position`` if there are none.

        Args:
            position: the number of the last batch that the lake has; what it had is forgotten.
            limit: the most records, unless one transaction stored more.

        Raises:
            LakeDiverged: the store has not given this number, or has forgotten the batches behind it.
        """
        batch, rows = await self._write(lambda: atomic(lambda: take_slice(position, limit)), is_long=True)
        return replace(batch, records=await asyncio.to_thread(copies_of, rows))

    async def catch_up(self) -> None:
        """Let the consumers in the database read the whole final part of the feed."""
        await self.rollups.fold()

    async def released(self) -> Released:
        """The rows of the lake that are released records; releasing waits meanwhile."""
        return await self._read(read_released())

    async def find_released(self, record_ids: Collection[str]) -> Sequence[ReleasedRow]:
        """Those of the records that are released."""
        return await self._read(find_released(record_ids))

    async def release(self, rows: Sequence[LakeRecord], previous: int, snapshot: LakeSnapshot) -> int:
        """Delete records that the lake has, in one transaction; returns how many.

        A record that is not what the lake has stays, and its row does not count; so does one that a consumer of the
        feed has yet to read. Ids stay known: a released record gets the verdicts that it would get here, and comes back
        when it is changed.

        Args:
            rows: of one release, as read back from the lake.
            previous: the last release before it that counts.
            snapshot: that they were read from.

        Raises:
            LakeOvertaken: another process has released records.
        """
        return await self._write(lambda: atomic(lambda: release(rows, previous, snapshot)), is_long=True)

    async def recalled_and_kept(self, position: int) -> Sequence[ReleasedRow]:
        """Rows that do not count, whose records are in the store as the lake has them.

        Args:
            position: the number of the last batch that the lake has.
        """
        return await self._read(recalled_and_kept(position))

    async def forget_recalled(self, rows: Sequence[ReleasedRow], release: int, snapshot: LakeSnapshot) -> None:
        """Note a snapshot in which these rows, which did not count, are there no more.

        Args:
            rows: that are gone.
            release: no row that does not count has a number up to this one.
            snapshot: the snapshot.
        """
        await self._write(lambda: atomic(lambda: forget_recalled(rows, release, snapshot)), is_long=True)

    async def recall(self, record_ids: Collection[str]) -> int:
        """Put those of the records that are released back into the database; returns how many."""
        wanted, back = await self._read(find_released(record_ids)), 0
        for first in range(0, len(wanted), _AT_ONCE):
            back += await self._recall(await self._read_released(wanted[first : first + _AT_ONCE]))
        return back

    async def _recall(self, copies: Sequence[LakeRecord]) -> int:
        pairs = [await self._pending_copy(copy) for copy in copies]
        return await self._write(lambda: atomic(lambda: restore(pairs)), is_long=True)

    async def _redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """Redact records, released ones as well.

        Raises:
            IsReleased: a record has been released meanwhile.
        """
        seen = await self._read(find_released(record_ids))
        copies = [copy for copy in await self._read_released(seen) if has_any(copy.record, keys)]
        pairs = [await self._pending_copy(copy) for copy in copies]
        return await self._write(lambda: atomic(lambda: redact(record_ids, keys, pairs, seen)), is_long=True)

    async def _read_released(self, wanted: Sequence[ReleasedRow]) -> Sequence[LakeRecord]:
        """Released records.

        Raises:
            StoreUnavailable: the lake is not configured here, or cannot be read.
        """
        if not wanted:
            return ()
        state = await self.lake_state()
        found = await self._opened(state).find(state, wanted)
        if len(found) < len(wanted):
            missing = {each.record_id for each in wanted} - {each.record.record_id for each in found}
            raise LakeOvertaken(
                f"{counted(len(missing), 'released record is', 'released records are')} not in the lake at "
                f"{state.location} any more, {min(missing, default='')!r} is one: try again, and if it stays so, see "
                "`auditord lake verify`."
            )
        return found

    async def _with_released(
        self, query: AggregateQuery, stored: Aggregates, released: Released, scope: Scope | None
    ) -> Aggregates:
        """Sums over the database, and over the records that were released at the same moment.

        The lake is not opened if its records stopped at other times, or if roll-ups have answered for them.
        """
        state, days = released.state, None if scope is None else scope.days
        unanswered = [query] if scope is None or state.beside_rollups else scope.edges()
        if not state.records or not any(may_be_between(each, state.first_stop, state.last_stop) for each in unanswered):
            return stored
        return merged(query, [stored, await self._opened(state).sum_released(released, query, days)])

    def _opened(self, state: LakeState) -> ReleasedRecords:
        if self.lake is None:
            raise StoreUnavailable(
                f"{counted(state.records, 'record is', 'records are')} released to the lake at {state.location}, "
                "and the configuration has none: write lake.name, and lake.catalog and lake.warehouse if they were."
            )
        return self.lake

    async def _pending_copy(self, copy: LakeRecord) -> Pair:
        provenance = Provenance(copy.received_at, copy.principal or None, copy.agent or None)
        return copy, await self._sources.pending(copy.record, copy.document, provenance)


def copies_of(rows: Rows) -> Sequence[LakeRecord]:
    """Records with all that a store knows of them, of rows of ``read_records_by_id``."""
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
