"""The archive as a record store asks it, in threads of its own."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from heapq import nlargest, nsmallest
from typing import Final, TypeAlias

from auditord.archive.pruning import rows_for, rows_for_sums
from auditord.archive.sums import COLUMNS, sums_over
from auditord.archive.table import ArchiveTable
from auditord.client.conditions import matches
from auditord.store.archived import ArchivedRecord, ArchiveState, Counted, Days, Removal
from auditord.store.rollups.scope import scope_within
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery
from auditord_hookspecs.query import Order, SortField

MOST: Final = 10_000
"""Records of a page, whatever its limit."""


_Place: TypeAlias = tuple[bool, datetime, int, bytes]
"""Sorts as the records do, in ascending order; descending is the exact reverse."""

_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ArchiveReader:
    """Implements :class:`auditord.store.archived.Archive` on the table."""

    def __init__(self, table: ArchiveTable) -> None:
        self._table = table

    async def find(self, state: ArchiveState, wanted: Collection[Removal]) -> Sequence[ArchivedRecord]:
        """See :class:`Archive`."""
        return await asyncio.to_thread(self._table.find, state.snapshot_id, set(wanted))

    async def aggregate(self, counted: Counted, query: AggregateQuery, days: Days | None) -> Aggregates:
        """See :class:`Archive`."""
        scope = None if days is None else scope_within(query, *days)
        rows = self._table.rows(counted.state.snapshot_id, rows_for_sums(query, counted.state, scope), COLUMNS)
        return await asyncio.to_thread(sums_over, rows, counted.removals, query, scope)

    async def page(self, counted: Counted, query: RecordQuery) -> Sequence[bytes]:
        """See :class:`Archive`."""
        return await asyncio.to_thread(self._page, counted, query)

    def _page(self, counted: Counted, query: RecordQuery) -> Sequence[bytes]:
        found = self._matching(counted, query)
        limit = MOST if query.limit is None else min(query.limit, MOST)
        if not query.order.descending:
            chosen = nsmallest(limit, found, key=lambda copy: _place(query.order, copy.record))
        else:
            chosen = nlargest(limit, found, key=lambda copy: _place(query.order, copy.record))
        return [copy.document.encode() for copy in chosen]

    def _matching(self, counted: Counted, query: RecordQuery) -> Iterator[ArchivedRecord]:
        for copy in self._table.records(counted.state.snapshot_id, rows_for(query.where, counted.state)):
            if Removal(copy.record.record_id, copy.chunk) not in counted.removals and matches(copy.record, query.where):
                yield copy


def _place(order: Order, record: Record) -> _Place:
    """The place of a record; ids compare by their bytes in UTF-8, and break ties."""
    record_id = record.record_id.encode()
    match order.field:
        case SortField.START:
            return False, record.start_time, 0, record_id
        case SortField.STOP:
            return record.stop_time is None, record.stop_time or _NEVER, 0, record_id
        case SortField.RUNTIME:
            return record.runtime is None, _NEVER, record.runtime or 0, record_id
        case SortField.ID:
            return False, _NEVER, 0, record_id
