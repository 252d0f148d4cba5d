"""A plugin's context, opened: its turn, its records, its state."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from auditord.contexts.lent import LentPluginContext, Watching, task_log
from auditord.contexts.sources import opened_records, remote_source
from auditord.spool import Spool
from auditord.store import RecordStore
from auditord.store.protocol import PluginMemory
from auditord.store.reading import StoredRecords
from auditord_hookspecs import InstanceConfig


@dataclass(frozen=True, slots=True)
class Places:
    """Where records and states are.

    Args:
        store: this daemon's records, and the states of plugins that work on them: another daemon may take over.
        spool: the states of plugins whose records are elsewhere.
        now: the present instant.
    """

    store: RecordStore
    spool: Spool
    now: Callable[[], datetime]


@asynccontextmanager
async def opened_plugin(
    task: str,
    kind: str,
    config: InstanceConfig,
    places: Places,
    *,
    dry_run: bool = False,
    watching: Watching | None = None,
) -> AsyncGenerator[LentPluginContext, None]:
    """The context of one run; until it is left nobody else runs this plugin, on any daemon of the same database.

    Args:
        task: the plugin.
        kind: its kind's name.
        config: its section of the configuration.
        places: where records and states are.
        dry_run: nothing is to be done and no state saved; that needs no turn.
        watching: who sees what it logs and shows.
    """
    waiting = None if dry_run else _wait(task, kind)
    async with (
        opened_records(remote_source(config), StoredRecords(places.store)) as records,
        _memory(task, config, places, waiting) as memory,
    ):
        yield LentPluginContext(
            task,
            kind,
            places.now,
            memory=memory,
            records=records,
            state=await memory.load(),
            dry_run=dry_run,
            watching=watching,
        )


def _memory(
    task: str, config: InstanceConfig, places: Places, waiting: Callable[[], None] | None
) -> AbstractAsyncContextManager[PluginMemory]:
    keeper = places.store if remote_source(config) is None else places.spool
    return keeper.memory(task, waiting)


def _wait(task: str, kind: str) -> Callable[[], None]:
    return lambda: task_log(task, kind).warning("waits: it runs elsewhere at the moment")
