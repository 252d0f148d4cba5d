"""The records that a plugin works on, wherever its option ``source`` says they are."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from auditord.client import AsyncClient
from auditord.client.conditions import flattened, matches
from auditord.client.query_string import has_words
from auditord_hookspecs import AggregateQuery, Aggregates, InstanceConfig, PluginConfig, Record, RecordQuery, Records
from auditord_hookspecs.query import AllOf, Condition
from auditord_hookspecs.sources import RemoteSource


class RemoteRecords:
    """Implements :class:`auditord_hookspecs.Records` on a server elsewhere; whatever is cut or refused raises."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Record], None]:
        """The matching records in the query's order; what the wire contract has no words for is looked at here."""
        where = tuple(filter(has_words, flattened(query.where)))
        # A limit would count records that are left out here: then the client says that it cannot ask for this.
        asked = query if query.limit is not None else replace(query, where=AllOf(where))
        async with self._client.stream(asked) as records, aclosing(_chosen(records, query.where)) as chosen:
            yield chosen

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Sums over the matching records: an auditord's own, of an AUDITOR added up from its stream."""
        return await self._client.aggregate(query)


async def _chosen(records: AsyncIterator[Record], where: Condition) -> AsyncGenerator[Record, None]:
    async for record in records:
        if matches(record, where):
            yield record


def remote_source(config: InstanceConfig) -> RemoteSource | None:
    """The server that a plugin's records are on, or None if they are this daemon's."""
    source = config.source if isinstance(config, PluginConfig) else "local"
    return None if source == "local" else source


@asynccontextmanager
async def opened_records(config: InstanceConfig, local: Records | None) -> AsyncGenerator[Records, None]:
    """The records that a plugin works on; ``local``, this daemon's, are only needed if it works on them.

    Raises:
        ClientError: a TLS file cannot be used.
    """
    source = remote_source(config)
    if source is None:
        if local is None:
            raise AssertionError("a plugin that works on this daemon's records was opened without them")
        yield local
        return
    client = AsyncClient(
        source.url,
        tls=source.tls,
        token=None if source.token is None else source.token.get_secret_value(),
        timeout=source.timeout.total_seconds(),
    )
    async with client:
        yield RemoteRecords(client)
