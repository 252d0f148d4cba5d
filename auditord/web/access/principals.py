"""The records that a principal may see: its restriction is part of every query."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias

from aiohttp import web

from auditord.store import RecordStore
from auditord.web.requests import principal_of
from auditord_hookspecs import AggregateQuery, Aggregates, RecordQuery
from auditord_hookspecs.query import AllOf, Condition, IdEquals

VisibleRecords: TypeAlias = "RecordStore | RestrictedRecords"
RecordsFor: TypeAlias = Callable[[web.BaseRequest], VisibleRecords]
"""The records that the sender of a request may see. Handlers that read have this and no store, so none can forget."""


@dataclass(frozen=True, slots=True)
class RestrictedRecords:
    """Some of a store's records.

    Args:
        store: all of them.
        restriction: what is true of those that are seen; the others do not exist.
    """

    store: RecordStore
    restriction: Condition

    async def get(self, record_id: str) -> bytes | None:
        """The wire text of one record, if it is seen."""
        async with self.stream(RecordQuery(IdEquals(record_id), limit=1)) as pages:
            return next((document for document in [each async for page in pages for each in page]), None)

    def stream(self, query: RecordQuery) -> AbstractAsyncContextManager[AsyncIterator[Sequence[bytes]]]:
        """Pages of wire texts of those that are seen."""
        return self.store.stream(replace(query, where=AllOf((query.where, self.restriction))))

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Sums over those that are seen."""
        return await self.store.aggregate(replace(query, where=AllOf((query.where, self.restriction))))


def visible_records(store: RecordStore) -> RecordsFor:
    """The records that each caller sees; without authenticators, the store itself."""

    def records(request: web.BaseRequest) -> VisibleRecords:
        principal = principal_of(request)
        restriction = None if principal is None else principal.visible()
        return store if restriction is None else RestrictedRecords(store, restriction)

    return records
