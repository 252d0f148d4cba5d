"""A plugin's context, opened: its turn, its state, and its records wherever its option ``source`` says they are."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Protocol

from auditord.client import AsyncClient
from auditord.client.query_string import flattened, has_words, matches
from auditord.contexts.instances import InstanceContext, PluginObserver, StorePluginContext
from auditord.database.memory import Occasion, PluginMemory
from auditord.store.reading import StoredRecords
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    Backups,
    InstanceConfig,
    PluginConfig,
    Record,
    RecordQuery,
    Records,
)
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


class StateStore(Protocol):
    """The place of a plugin's state: the record store, so that another daemon may take over.

    For a plugin whose records are elsewhere it is the spool.
    """

    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PluginMemory]:
        """See :meth:`auditord.store.protocol.RecordStore.memory`."""
        ...


@asynccontextmanager
async def opened_plugin(
    instance: InstanceContext,
    config: InstanceConfig,
    states: StateStore,
    local: StoredRecords | None,
    backups: Backups,
    *,
    occasion: Occasion | None = None,
    dry_run: bool = False,
    observer: PluginObserver | None = None,
) -> AsyncGenerator[StorePluginContext, None]:
    """The context of one run; until it is left nobody else runs this plugin, on any daemon of the same database.

    Args:
        instance: the part of the context that every instance has.
        config: its section of the configuration.
        states: keeps its state.
        local: this daemon's records, for a plugin that works on them.
        backups: makes backups of this daemon.
        occasion: of a run; leaving without an error ends the run well, which other daemons heed.
        dry_run: nothing is to be done and no state saved; that needs no turn.
        observer: receives what it logs and shows.

    Raises:
        RanElsewhere: another daemon has run it on the same occasion.
        TurnLost: another process took over.
    """
    waiting, occasion = (None, None) if dry_run else (_wait(instance), occasion)
    async with opened_records(config, local) as records, states.memory(instance.instance, waiting, occasion) as memory:
        yield StorePluginContext(
            instance.instance,
            instance.kind,
            instance.clock,
            instance.environment,
            memory=memory,
            records=records,
            state=await memory.load(),
            own_records=local if remote_source(config) is None else None,
            backups=backups,
            dry_run=dry_run,
            observer=observer,
        )
        if occasion is not None:
            await memory.note_run(occasion)


def _wait(instance: InstanceContext) -> Callable[[], None]:
    return lambda: instance.log.warning("waits: it runs elsewhere at the moment")
