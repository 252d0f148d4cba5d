"""The principal of a request, and the records that it may see: its restriction is part of every query."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeAlias

from aiohttp import web

from auditord.store import Provenance, RecordStore
from auditord_hookspecs import AggregateQuery, Aggregates, Principal, RecordQuery
from auditord_hookspecs.query import AllOf, Condition, IdEquals

_PRINCIPAL: Final = web.RequestKey("principal", Principal)


def remember(request: web.BaseRequest, principal: Principal) -> None:
    """Say whose request it is."""
    request[_PRINCIPAL] = principal


def principal_of(request: web.BaseRequest) -> Principal | None:
    """The principal of a request; None without authenticators, and on the control socket."""
    # To look for what is not there raises in aiohttp: 1.4 µs, in each POST of a daemon without authenticators.
    return request.get(_PRINCIPAL) if len(request) else None


def sender_of(request: web.BaseRequest, received_at: datetime) -> tuple[Principal | None, Provenance]:
    """The principal that sends records, and their provenance."""
    principal = principal_of(request)
    name = None if principal is None else principal.name
    return principal, Provenance(received_at, name, request.headers.get("User-Agent"))


def principal_name(request: web.BaseRequest) -> str | None:
    """The name of the principal, as provenance keeps it."""
    principal = principal_of(request)
    return None if principal is None else principal.name


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
