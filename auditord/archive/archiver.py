"""Records on their way into the archive: written, committed, read back, and only then deleted from the store.

Killed at any moment, the next run goes on: what has been committed and does not count yet is read back and compared
with the store once more; what has not been committed is written again.
"""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from auditord.archive.table import ArchiveTable, Head
from auditord.archive.writing import NewRows
from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.store import RecordStore
from auditord.store.archived import ArchivedRecord, ArchiveState, Removal

CHUNK_RECORDS: Final = 500
"""Records that one transaction of the store deletes."""
COMMIT_RECORDS: Final = 25_000
"""Records of one commit, which are in memory as Arrow's columns."""
PAGE_RECORDS: Final = 1_000
"""Records that are in memory as such, on their way into the table."""
REMOVALS_AT_ONCE: Final = 1_000
"""Rows that one commit takes out of the table."""


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of a run.

    Args:
        moved: records that moved into the archive.
        kept: records that were changed meanwhile, and stay for the next run.
        removed: rows that counted no more and are not in the table now.
        compacted: how many fewer files there are, since small ones were put together.
        deleted: files that no snapshot needs any more, or were never committed.
    """

    moved: int
    kept: int
    removed: int
    compacted: int
    deleted: int


class Archiver:
    """Moves old records into the archive; one at a time for a store.

    Args:
        store: has the records.
        table: of the archive.
        progressed: receives the fraction of the period of stop times that has moved, 0 to 1.
    """

    def __init__(
        self, store: RecordStore, table: ArchiveTable, progressed: Callable[[float], None] = lambda _: None
    ) -> None:
        self._store = store
        self._table = table
        self._progressed = progressed
        self._moved = 0
        self._kept = 0
        self._period: tuple[datetime, datetime] | None = None
        """The first stop time of those that move now, and the end of those that may; None while older chunks count."""

    async def run(self, before: datetime, sites: Mapping[str, datetime] | None = None) -> Archived:
        """Archive the records that stopped before an instant, and finish what an earlier run has begun.

        Args:
            before: the instant.
            sites: other instants, for records whose first site is one of these.

        Raises:
            ConfigurationError: the table is another store's archive.
            StoreUnavailable: store or table cannot be used now; all that has been done stays.
        """
        state, head = await self._begun(), await asyncio.to_thread(self._table.head)
        await self._take_back(state, head)
        await self._publish(head, state.chunk, None)
        await self._move_all(before, sites or {})
        self._progressed(1.0)
        return Archived(self._moved, self._kept, await self._remove(), await self._compact(), await self._clean())

    async def _begun(self) -> ArchiveState:
        """The state of the archive, whose table is there."""
        state, there = await self._store.archive_state(), await asyncio.to_thread(self._table.archive_id)
        if there is None and state.archive_id:
            raise ConfigurationError(
                f"archive: there is no table at {self._table.location}; the archive of this record store is at "
                f"{state.location}: restore it, or mend archive.folder and archive.catalog."
            )
        if there is None:
            there = uuid.uuid4().hex
            await asyncio.to_thread(self._table.create, there)
        state = await self._store.begin_archive(there, self._table.location)
        if state.archive_id != there:
            raise ConfigurationError(
                f"archive: {self._table.location} is the archive of another record store; this one's is at "
                f"{state.location}: mend archive.folder and archive.catalog."
            )
        await asyncio.to_thread(self._table.require, state.snapshot_id)
        return state

    async def _take_back(self, state: ArchiveState, head: Head) -> None:
        """Take records back that count, and that the newest snapshot does not have.

        The store was restored from a backup then, and the archive's rows were changed after that: the newest snapshot,
        from which the next chunks are to count, has the records as they were later, or not at all.
        """
        if head.snapshot_id != state.snapshot_id:
            gone = await asyncio.to_thread(self._table.gone, state.snapshot_id, head.snapshot_id)
            counted = {each for each in gone if each.chunk <= state.chunk}.difference(
                await self._store.archive_removals()
            )
            await self._store.recall([each.record_id for each in counted])

    async def _move_all(self, before: datetime, sites: Mapping[str, datetime]) -> None:
        """Move what is to move, in the order of stop times, a commit at a time."""
        last: ArchivedRecord | None = None
        end = max([before, *sites.values()])
        while True:
            state, head = await self._store.archive_state(), await asyncio.to_thread(self._table.head)
            rows, written = await asyncio.to_thread(self._table.new_rows), dict[int, set[int]]()
            while (left := COMMIT_RECORDS - rows.records) and (
                found := await self._store.archivable(before, last, min(PAGE_RECORDS, left), sites)
            ):
                self._period = self._period or (found[0].stop_time, end)
                last = found[-1]
                await asyncio.to_thread(_add, rows, found, max(state.chunk, head.chunk) + 1, written)
            if not rows.records:
                return
            head = await asyncio.to_thread(self._table.append, rows, head)
            del rows
            await self._publish(head, state.chunk, written)

    async def _publish(self, head: Head, previous: int, written: dict[int, set[int]] | None) -> None:
        """Read the chunks back that do not count yet, and let them count.

        Those of this run are one commit, of others as many are read at a time as a commit has. Numbers may have no row.

        Args:
            head: the snapshot that has them.
            previous: the last chunk that counts.
            written: by number what tells that it is as this run has written it; what was read is taken out.

        Raises:
            StoreUnavailable: one is not as it was written; its records stay in the store.
        """
        behind = head.chunk + 1
        at_once = COMMIT_RECORDS // CHUNK_RECORDS if written is None else behind
        for first in range(previous + 1, behind, at_once):
            chunks = self._table.chunks(head.snapshot_id, range(first, first + at_once))
            while chunk := await asyncio.to_thread(next, chunks, ()):
                if written is not None:
                    digests = written.pop(chunk[0].chunk, set())
                    if len(chunk) != len(digests) or not digests.issuperset(map(_digest, chunk)):
                        raise self._damaged()
                previous = await self._count(chunk, previous, head)
        if written:
            raise self._damaged()

    def _damaged(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"The archive {self._table.location} does not give back what was written to it: look at its disk. Nothing "
            "that it does not give back has been deleted; `auditord archive verify` says more."
        )

    async def _count(self, chunk: Sequence[ArchivedRecord], previous: int, head: Head) -> int:
        """Let a chunk count; returns its number."""
        moved = await self._store.publish_chunk(chunk, previous, head.snapshot_id, head.sequence)
        self._moved += moved
        self._kept += len(chunk) - moved
        if self._period is not None:  # records move in the order of their stops
            begin, end = self._period
            self._progressed((max(each.stop_time for each in chunk) - begin) / (end - begin))
        return chunk[0].chunk

    async def _remove(self) -> int:
        """Take rows that count no more out of the table."""
        removed, state = 0, await self._store.archive_state()
        removals = [each for each in await self._store.archive_removals() if each.chunk <= state.chunk]
        for first in range(0, len(removals), REMOVALS_AT_ONCE):
            some = set(removals[first : first + REMOVALS_AT_ONCE])
            head = await asyncio.to_thread(self._table.head)
            if await asyncio.to_thread(self._table.find, head.snapshot_id, some):
                head = await asyncio.to_thread(self._table.remove, some, head)
            await self._store.forget_removals(sorted(some, key=_removal), head.snapshot_id, head.sequence)
            removed += len(some)
        return removed

    async def _compact(self) -> int:
        """Put small files together, as late records leave them; returns how many fewer there are."""
        head = await asyncio.to_thread(self._table.head)
        compacted = await asyncio.to_thread(self._table.compact, head)
        if compacted == head:
            return 0
        await self._store.forget_removals((), compacted.snapshot_id, compacted.sequence)
        before, after = [await asyncio.to_thread(self._table.files, each.snapshot_id) for each in (head, compacted)]
        return len(before) - len(after)

    async def _clean(self) -> int:
        """Delete files that no snapshot needs, once the store reads none but the newest; returns how many."""
        left = await asyncio.to_thread(self._table.leftovers)
        if not left.is_any:
            return 0
        head = await asyncio.to_thread(self._table.head)
        sealed = await asyncio.to_thread(self._table.seal, head)
        await self._store.forget_removals((), sealed.snapshot_id, sealed.sequence)
        return await asyncio.to_thread(self._table.clean, left.files)


def _add(rows: NewRows, found: Sequence[ArchivedRecord], first: int, written: dict[int, set[int]]) -> None:
    """Put records into the rows of a commit with the numbers of their chunks, of which the first one is given."""
    copies = [
        msgspec.structs.replace(copy, chunk=first + place // CHUNK_RECORDS)
        for place, copy in enumerate(found, rows.records)
    ]
    for copy in copies:
        written.setdefault(copy.chunk, set()).add(_digest(copy))
    rows.add(copies)


def _digest(copy: ArchivedRecord) -> int:
    return hash((copy.document, copy.received_at, copy.updated_at, copy.principal, copy.agent, copy.chunk))


def _removal(removal: Removal) -> tuple[int, str]:
    return removal.chunk, removal.record_id
