"""An archive in a dictionary: what a record store needs of one, without a table."""

# ruff: noqa: ARG002 the signatures are the protocol's

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from auditord.store import RecordStore
from auditord.store.archived import ArchivedRecord, ArchiveState, Counted, Days, Removal
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery

SNAPSHOT: Final = 4_711


@dataclass
class MemoryArchive:
    """Implements the protocol as far as single rows go."""

    rows: dict[Removal, ArchivedRecord] = field(default_factory=dict[Removal, ArchivedRecord])

    async def find(self, state: ArchiveState, wanted: Collection[Removal]) -> Sequence[ArchivedRecord]:
        assert state.snapshot_id == SNAPSHOT
        return [self.rows[each] for each in wanted]

    async def aggregate(self, counted: Counted, query: AggregateQuery, days: Days | None) -> Aggregates:
        raise AssertionError("sums are tested with a table")

    async def page(self, counted: Counted, query: RecordQuery, after: Record | None) -> Sequence[bytes]:
        raise AssertionError("answers are tested with a table")

    def taken(self, copies: Sequence[ArchivedRecord], chunk: int) -> Sequence[ArchivedRecord]:
        """The copies as the archive gives them back."""
        taken = [msgspec.structs.replace(copy, chunk=chunk) for copy in copies]
        self.rows |= {Removal(copy.record.record_id, chunk): copy for copy in taken}
        return taken


async def archive(store: RecordStore, archive: MemoryArchive, before: datetime) -> int:
    """Move all records that stopped before an instant, as one chunk."""
    state = await store.begin_archive("an archive", "file:///archive")
    copies = archive.taken(await store.archivable(before, None, 10_000), state.chunk + 1)
    return await store.publish_chunk(copies, state.chunk, SNAPSHOT, state.sequence + 1)
