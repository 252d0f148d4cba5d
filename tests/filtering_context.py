"""A plugin's context whose records are filtered as a store filters them."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from auditord.client.query_string import matches
from auditord.testing import FakePluginContext
from auditord_hookspecs import Record, RecordQuery


class FilteringContext(FakePluginContext):
    """Streams the records that a query asks for."""

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Record]]:
        """Those of ``stored`` that match."""
        self.asked.append(query)

        async def each() -> AsyncIterator[Record]:
            for record in self.stored:
                if matches(record, query.where):
                    yield record

        yield each()
