"""A plugin's context, opened: its turn, its records, its state."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from auditord.contexts.instances import StorePluginContext, Watching, environment_of, task_log
from auditord.contexts.sources import opened_records, remote_source
from auditord.database.memory import PluginMemory
from auditord.database.turns import Occasion
from auditord.store.reading import StoredRecords
from auditord_hookspecs import InstanceConfig


class Keeper(Protocol):
    """Where plugins keep their state: with the records if they are this daemon's, so that another daemon may take over.

    The record store does this; for plugins whose records are elsewhere, the spool.
    """

    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PluginMemory]:
        """See :meth:`auditord.store.protocol.RecordStore.memory`."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a plugin works.

    Args:
        keeper: of its state.
        local: this daemon's records, for plugins that work on them.
    """

    keeper: Keeper
    local: StoredRecords | None


@asynccontextmanager
async def opened_plugin(
    task: str,
    kind: str,
    config: InstanceConfig,
    place: Place,
    now: Callable[[], datetime],
    *,
    occasion: Occasion | None = None,
    dry_run: bool = False,
    watching: Watching | None = None,
) -> AsyncGenerator[StorePluginContext, None]:
    """The context of one run; until it is left nobody else runs this plugin, on any daemon of the same database.

    Args:
        task: the plugin.
        kind: its kind's name.
        config: its section of the configuration.
        place: where it works.
        now: the present instant.
        occasion: of a run; leaving without an error ends the run well, which other daemons heed.
        dry_run: nothing is to be done and no state saved; that needs no turn.
        watching: who sees what it logs and shows.

    Raises:
        RanElsewhere: another daemon has run it on the same occasion.
        TurnLost: another process took over.
    """
    waiting, occasion = (None, None) if dry_run else (_wait(task, kind), occasion)
    async with opened_records(config, place.local) as records, place.keeper.memory(task, waiting, occasion) as memory:
        yield StorePluginContext(
            task,
            kind,
            now,
            memory=memory,
            records=records,
            state=await memory.load(),
            redactor=place.local if remote_source(config) is None else None,
            dry_run=dry_run,
            watching=watching,
            environment=environment_of(config),
        )
        if occasion is not None:
            await memory.note_run(occasion)


def _wait(task: str, kind: str) -> Callable[[], None]:
    return lambda: task_log(task, kind).warning("waits: it runs elsewhere at the moment")
