"""The archive as a record store asks it, in threads of its own."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from heapq import nlargest, nsmallest
from itertools import chain
from typing import Final

from pyiceberg.expressions import And

from auditord.archive.ordering import is_behind
from auditord.archive.pruning import rows_for, rows_for_sums, rows_from
from auditord.archive.sums import COLUMNS, sums_over
from auditord.archive.table import ArchiveTable
from auditord.client.query_string import matches
from auditord.store.archived import ArchivedRecord, ArchiveState, Counted, Days, Removal
from auditord.store.merging import place_of, precedes
from auditord.store.rollups.scope import Scope, scope_within
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery

MOST: Final = 10_000
"""Records of a page, whatever its limit."""


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
        return await asyncio.to_thread(self._sums, counted, query, scope)

    async def page(self, counted: Counted, query: RecordQuery, after: Record | None) -> Sequence[bytes]:
        """See :class:`Archive`."""
        limit = MOST if query.limit is None else min(query.limit, MOST)
        return await asyncio.to_thread(self._page, counted, replace(query, limit=limit), after)

    def _sums(self, counted: Counted, query: AggregateQuery, scope: Scope | None) -> Aggregates:
        rows = self._table.rows(counted.state.snapshot_id, rows_for_sums(query, counted.state, scope), COLUMNS)
        return sums_over(rows, counted.removals, query, scope)

    def _page(self, counted: Counted, query: RecordQuery, after: Record | None) -> Sequence[bytes]:
        """Files are read in the order of the least that they hold, until none can hold what belongs on the page."""
        order, limit, chosen = query.order, query.limit or 0, list[ArchivedRecord]()
        choose = nlargest if order.descending else nsmallest
        rows = rows_for(query.where, counted.state)
        rows = rows if after is None else And(rows, rows_from(order, after))
        files = self._table.records_by(counted.state.snapshot_id, rows, order)
        for bound, copies in files if limit else ():
            if len(chosen) == limit and is_behind(bound, chosen[-1].record, order):
                break
            found = (copy for copy in copies if _belongs(copy, counted, query, after))
            chosen = choose(limit, chain(chosen, found), key=lambda copy: place_of(copy.record, order))
        return [copy.document.encode() for copy in chosen]


def _belongs(copy: ArchivedRecord, counted: Counted, query: RecordQuery, after: Record | None) -> bool:
    return (
        Removal(copy.record.record_id, copy.chunk) not in counted.removals
        and (after is None or precedes(after, copy.record, query.order))
        and matches(copy.record, query.where)
    )
