"""From sections of the configuration to instances that can run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from auditord.contexts.instances import SpoolCollectorContext, Watching, environment_of
from auditord.contexts.plugins import Place, opened_plugin
from auditord.contexts.sources import remote_source
from auditord.database.turns import Occasion
from auditord.errors import RanElsewhere
from auditord.metrics import TaskMetrics
from auditord.spool import Enqueued, Spool
from auditord.store import RecordStore
from auditord.store.reading import StoredRecords
from auditord.tasks.clock import latest_tick
from auditord.tasks.collecting import collect
from auditord.tasks.running import Runnable, Tally
from auditord_hookspecs import Batch, CollectorKind, InstanceConfig, PluginKind, RunConfig

_TOLERANCE: Final = 0.1
"""By which part of their interval the ticks of daemons may come early: their clocks differ, and runs take time."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every instance works with.

    Args:
        spool: where batches and states are kept.
        store: what plugins work on.
        destinations: the senders that forward what collectors make.
        metrics: where it is counted.
        now: the present instant.
    """

    spool: Spool
    store: RecordStore
    destinations: Sequence[str]
    metrics: TaskMetrics
    now: Callable[[], datetime]


def collector(task: str, kind: CollectorKind[Any], config: InstanceConfig, around: Surroundings) -> Runnable:
    """A collector whose batches go to the spool."""

    async def keep(batch: Batch) -> Enqueued:
        kept = await around.spool.enqueue(task, batch, around.destinations)
        around.metrics.oversized_records.labels(task, kind.name).inc(kept.oversized)
        return kept

    async def execute(tally: Tally) -> None:
        checkpoint = await around.spool.checkpoint(task)
        context = SpoolCollectorContext(
            task,
            kind.name,
            around.now,
            spool=around.spool,
            checkpoint=checkpoint,
            environment=environment_of(config),
        )
        await collect(kind, config, context, keep, tally)

    return Runnable(task, kind.name, execute, None if kind.continuous else _timeout(config, kind.timeout))


def plugin(
    task: str,
    kind: PluginKind[Any],
    config: InstanceConfig,
    around: Surroundings,
    *,
    by_clock: bool = True,
    dry_run: bool = False,
    watching: Watching | None = None,
) -> Runnable:
    """A plugin that acts in earnest or, in a dry run, only says what it would do.

    A run by the clock is left out, and counted as skipped, if another daemon has run the plugin for the same tick.
    """

    async def execute(tally: Tally) -> None:
        place = Place(around.store if remote_source(config) is None else around.spool, StoredRecords(around.store))
        occasion = await _occasion(config, kind.interval, around, by_clock=by_clock)
        try:
            async with opened_plugin(
                task, kind.name, config, place, around.now, occasion=occasion, dry_run=dry_run, watching=watching
            ) as context:
                await kind.run(config, context)
        except RanElsewhere:
            around.metrics.skipped_ticks.labels(task, kind.name).inc()
            tally.skipped["another daemon has run it"] += 1

    return Runnable(task, kind.name, execute, _timeout(config, kind.timeout))


async def _occasion(config: InstanceConfig, interval: timedelta, around: Surroundings, *, by_clock: bool) -> Occasion:
    daemon, times = (await around.spool.generation()).spool_id, when(config, interval)
    if not by_clock:
        return Occasion(daemon)
    if isinstance(times, str):
        return Occasion(daemon, tick=latest_tick(times, around.now()))
    return Occasion(daemon, within=max(times * (1 - _TOLERANCE) - jitter(config), timedelta(0)))


def when(config: InstanceConfig, interval: timedelta) -> timedelta | str:
    """When an instance runs: its cron line, its interval, or the kind's interval."""
    if not isinstance(config, RunConfig):
        return interval
    return config.schedule or config.interval or interval


def jitter(config: InstanceConfig) -> timedelta:
    """By how much its starts are spread."""
    return config.jitter if isinstance(config, RunConfig) else timedelta(0)


def _timeout(config: InstanceConfig, limit: timedelta) -> timedelta:
    return (config.timeout if isinstance(config, RunConfig) else None) or limit
