"""A lake in a dictionary: what a record store needs of one to release records, without a table."""

# ruff: noqa: ARG002 the signatures are the protocol's

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from auditord.store.lake import Days, LakeRecord, LakeSnapshot, LakeState, Released, ReleasedRow
from auditord.store.store import RecordStore
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery

LOCATION: Final = "file:///lake"


def snapshot(sequence: int) -> LakeSnapshot:
    """A snapshot of the table."""
    return LakeSnapshot("a-table", LOCATION, 4_000 + sequence, sequence)


@dataclass
class MemoryLake:
    """Implements the protocol as far as single rows go."""

    rows: dict[tuple[str, int], LakeRecord] = field(default_factory=dict[tuple[str, int], LakeRecord])

    async def find(self, state: LakeState, wanted: Collection[ReleasedRow]) -> Sequence[LakeRecord]:
        return [self.rows[each.record_id, each.release] for each in wanted]

    async def sum_released(self, released: Released, query: AggregateQuery, days: Days | None) -> Aggregates:
        raise AssertionError("sums are tested with a table")

    def stream_released(
        self, released: Released, query: RecordQuery
    ) -> AbstractAsyncContextManager[AsyncIterator[Sequence[bytes]]]:
        raise AssertionError("answers are tested with a table")

    def marked(self, copies: Sequence[LakeRecord], release: int) -> Sequence[LakeRecord]:
        """The copies as the lake gives them back."""
        marked = [msgspec.structs.replace(copy, release=release) for copy in copies]
        self.rows |= {(copy.record.record_id, release): copy for copy in marked}
        return marked


async def synced(store: RecordStore, record_ids: Sequence[str]) -> Sequence[LakeRecord]:
    """Records as a lake gets them."""
    copies = [await store.find_with_provenance(record_id) for record_id in record_ids]
    return [copy for copy in copies if copy is not None and not copy.release]


async def release(store: RecordStore, lake: MemoryLake, record_ids: Sequence[str], before: datetime) -> int:
    """Release those of the records that stopped before an instant, as one release."""
    await store.catch_up()
    state = await store.lake_state()
    copies = [
        copy
        for copy in await synced(store, record_ids)
        if copy.record.stop_time is not None and copy.record.stop_time < before
    ]
    if not copies:
        return 0
    return await store.release(lake.marked(copies, state.release + 1), state.release, snapshot(state.sequence + 1))
