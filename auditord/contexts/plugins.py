"""A plugin's context, opened: its turn, its records, its state."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from auditord.contexts.instances import InstanceContext, PluginObserver, StorePluginContext
from auditord.contexts.sources import opened_records, remote_source
from auditord.database.memory import Occasion, PluginMemory
from auditord.store.reading import StoredRecords
from auditord_hookspecs import Backups, InstanceConfig


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
