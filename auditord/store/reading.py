"""The interface by which plugins read a store's records."""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime

from auditord.store.store import RecordStore
from auditord_hookspecs import AggregateQuery, Aggregates, Record, RecordQuery
from auditord_hookspecs.wire import decode_record


class StoredRecords:
    """Implements :class:`auditord_hookspecs.Records` on a record store."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Record], None]:
        """Stream matching records in the query's order, with bounded memory. A fault raises instead of ending early."""
        async with self._store.stream(query) as pages, aclosing(decode_pages(pages)) as records:
            yield records

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums over the matching records, computed by the store."""
        return await self._store.aggregate(query)

    async def redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """Permanently remove meta keys from records; see :meth:`RecordStore.redact`."""
        return await self._store.redact(record_ids, keys)

    async def redact_leftovers(self, before: datetime, keys: Collection[str]) -> int:
        """Redact former versions and differences; see :meth:`RecordStore.redact_leftovers`."""
        return await self._store.redact_leftovers(before, keys)


async def decode_pages(pages: AsyncIterator[Sequence[bytes]]) -> AsyncGenerator[Record, None]:
    """Decode the records in pages of wire texts."""
    async for page in pages:
        for document in page:
            yield decode_record(document)
