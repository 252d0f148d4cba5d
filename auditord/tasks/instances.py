"""Collectors and plugins of the configuration, ready to run."""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import anyio.to_thread
from msgspec.structs import replace

from auditord.actions import Observer, RunRequest, Section
from auditord.backup.notes import InstanceBackups, collectors_behind, forget_restore
from auditord.config.kinds import InstalledKinds
from auditord.config.model import Configuration, kind_of
from auditord.contexts.instances import InstanceContext, SpoolCollectorContext, TaskLog, environment_of
from auditord.contexts.plugins import ObservedLog, open_plugin, remote_source
from auditord.database.memory import Occasion
from auditord.errors import ConfigurationError, RanElsewhere
from auditord.metrics import TaskMetrics
from auditord.spool import Enqueued
from auditord.spool.encoding import Operation, check_batch, printable
from auditord.storage import Storage
from auditord.store.reading import StoredRecords
from auditord.tasks.runs import RunCounts, Runnable, Turn, latest_tick
from auditord_hookspecs import (
    Batch,
    CollectorKind,
    InstanceConfig,
    InvalidRecord,
    PluginKind,
    Produced,
    Quarantined,
    Record,
    RunConfig,
    Transform,
)
from auditord_hookspecs.wire import encode_record

_TOLERANCE: Final = 0.1
"""The fraction of an interval by which a tick may be early, since clocks of daemons differ and runs take time."""


class Instances:
    """The collectors and plugins of the configuration.

    Attributes:
        collectors: kind and section of each by name, enabled or not.
        plugins: the same.
        turns: the turns of enabled instances by name.
    """

    def __init__(
        self,
        configuration: Configuration,
        kinds: InstalledKinds,
        storage: Storage,
        metrics: TaskMetrics,
        now: Callable[[], datetime],
        *,
        own: Mapping[str, tuple[PluginKind[Any], InstanceConfig]],
    ) -> None:
        if used := own.keys() & configuration.plugins.keys():
            raise ConfigurationError(
                f"plugins.{min(used)}: this name is reserved for the section {min(used)}: rename the plugin"
            )
        # Any: each kind has its own configuration model
        self.collectors: Final[dict[str, tuple[CollectorKind[Any], InstanceConfig]]] = {
            name: (kinds.collectors[kind_of(config)], config) for name, config in configuration.collectors.items()
        }
        self.plugins: Final[dict[str, tuple[PluginKind[Any], InstanceConfig]]] = {
            name: (kinds.plugins[kind_of(config)], config) for name, config in configuration.plugins.items()
        } | dict(own)
        sections = (self.collectors, self.plugins)
        self.turns: Final = {name: Turn() for each in sections for name, (_, config) in each.items() if config.enabled}
        self.now: Final = now
        self._kinds = kinds
        self._configuration = configuration
        self._storage = storage
        self._destinations = storage.destinations("collectors")
        self._metrics = metrics
        self._collected: Final[list[tuple[str, set[str]]]] = []

    def select_enabled(
        self, section: Section
    ) -> Mapping[str, tuple[CollectorKind[Any] | PluginKind[Any], InstanceConfig]]:
        """Return kind and configuration of the enabled instances of a section."""
        instances = self.collectors if section == "collectors" else self.plugins
        return {name: (kind, config) for name, (kind, config) in instances.items() if config.enabled}

    def exchange(self, configuration: Configuration, names: Sequence[tuple[Section, str]]) -> None:
        """Replace instances by those of another configuration; removed ones are kept, but disabled."""
        for section, name in names:
            instances: dict[str, Any] = self.collectors if section == "collectors" else self.plugins
            config: InstanceConfig | None = getattr(configuration, section).get(name)
            if config is None:
                kind, former = instances[name]
                instances[name] = kind, former.model_copy(update={"enabled": False})
            else:
                instances[name] = self.kind_of(section, config), config
                self.turns.setdefault(name, Turn())

    def kind_of(self, section: Section, config: InstanceConfig) -> CollectorKind[Any] | PluginKind[Any]:
        return (self._kinds.collectors if section == "collectors" else self._kinds.plugins)[kind_of(config)]

    def skip_tick(self, name: str, kind: str) -> None:
        self._metrics.skipped_ticks.labels(name, kind).inc()

    def collector(
        self,
        name: str,
        request: RunRequest | None = None,
        observer: Observer | None = None,
        timeout: timedelta | None = None,
    ) -> Runnable:
        """Return a collector whose batches go to the spool.

        Args:
            name: the name of the instance.
            request: a run on demand; None for a scheduled run.
            observer: watches the run; batches of a dry run go only to it.
            timeout: overrides the configured time limit.
        """
        (kind, config), wanted = self.collectors[name], request or RunRequest(name)
        show = partial(_show, name, observer, self._storage.transform)
        operation: Operation = "replace" if wanted.replace else "insert"
        keep = show if wanted.dry_run else partial(self.keep, name, operation=operation, again=wanted.again)

        async def execute(counts: RunCounts) -> None:
            context = await self.collector_context(wanted, observer)
            log = context.log if observer is None else ObservedLog(context.log, observer)
            await collect(kind.collect(config, context), keep, counts, log)

        limit = timeout or (None if kind.continuous else _timeout(config, kind.timeout))
        return Runnable(name, kind.name, execute, limit)

    async def collector_context(self, request: RunRequest, observer: Observer | None) -> SpoolCollectorContext:
        """Return the context of a collector's run, after noting the prefix of its ids unless it is a dry run."""
        (kind, config), spool = self.collectors[request.instance], self._storage.spool
        if kind.prefix is not None and not request.dry_run:
            await spool.use_prefix(request.instance, kind.prefix(config))
        checkpoint = await spool.checkpoint(request.instance)
        return SpoolCollectorContext(
            request.instance,
            kind.name,
            self.now,
            environment_of(config),
            spool=spool,
            checkpoint=checkpoint,
            window=request.window,
            job=request.job,
            dry_run=request.dry_run,
            on_progress=None if observer is None else observer.show_progress,
        )

    async def keep(self, name: str, batch: Batch, *, operation: Operation = "insert", again: bool) -> Enqueued:
        """Store a collector's batch in the spool, without its checkpoint if it was collected ``again``.

        Raises:
            TypeError: the batch has wrong types.
        """
        for collector, ids in self._collected:  # before the store can have the records
            if collector == name:
                check_batch(name, batch)
                for each in batch.records:
                    produced = each if isinstance(each, Produced) else Produced(each)
                    ids.update(filter(None, (produced.record.record_id, produced.alternate_id)))
        batch = replace(batch, checkpoint=None) if again else batch
        kept = await self._storage.spool.enqueue(name, batch, self._destinations, operation)
        kind, _ = self.collectors[name]
        self._metrics.oversized_records.labels(name, kind.name).inc(kept.oversized)
        if batch.left_out:
            self._metrics.count_left_out(name, batch.left_out)
        return kept

    @contextmanager
    def noting_collected(self, name: str) -> Generator[Collection[str], None, None]:
        """Yield a live collection of the ids that a collector stores within the context."""
        ids = set[str]()
        self._collected.append((name, ids))
        try:
            yield ids
        finally:
            self._collected[:] = [each for each in self._collected if each[1] is not ids]

    def plugin(
        self, name: str, observer: Observer | None = None, *, by_clock: bool = False, dry_run: bool = False
    ) -> Runnable:
        """Return a plugin that acts or, in a dry run, only shows what it would do.

        A scheduled run is skipped, and counted as such, if another daemon has run the plugin for the same tick.
        """
        (kind, config), store = self.plugins[name], self._storage.store

        async def execute(counts: RunCounts) -> None:
            spool, times = self._storage.spool, when(config, kind.interval)
            states = store if remote_source(config) is None else spool
            occasion = Occasion(spool.generation.spool_id)
            if by_clock and states is store:
                # The store's sums are incomplete until all collectors have run, except continuous ones.
                enabled = [each for each, (of, its) in self.collectors.items() if its.enabled and not of.continuous]
                if behind := await collectors_behind(spool, enabled):
                    self.skip_tick(name, kind.name)
                    counts.skipped[f"after the restore, {', '.join(behind)} must run successfully first"] += 1
                    counts.waits = True
                    return
                forget_restore(spool.state_dir)
            if by_clock and isinstance(times, timedelta):
                occasion = replace(occasion, within=max(times * (1 - _TOLERANCE) - jitter(config), timedelta(0)))
            elif by_clock:
                occasion = replace(occasion, tick=latest_tick(str(times), self.now()))
            instance = InstanceContext(name, kind.name, self.now, environment_of(config))
            backups = InstanceBackups(name, self._configuration, self.now)
            opened = partial(open_plugin, occasion=occasion, dry_run=dry_run, observer=observer)
            try:
                async with opened(instance, config, states, StoredRecords(store), backups) as context:
                    await kind.run(config, context)
            except RanElsewhere:
                self.skip_tick(name, kind.name)
                counts.skipped["another daemon has run it"] += 1

        return Runnable(name, kind.name, execute, _timeout(config, kind.timeout))


async def collect(
    batches: AsyncIterator[Batch], keep: Callable[[Batch], Awaitable[Enqueued]], counts: RunCounts, log: TaskLog
) -> None:
    """Store a collector's batches. A batch is requested only after the previous one is stored.

    The first record of a run that lacks a component or label is logged; every record may lack it.
    """
    warned = set[tuple[bool, bool, str]]()
    async with closing(batches):
        async for batch in batches:
            kept = await keep(batch)
            counts.records += kept.records
            counts.quarantined += kept.quarantined
            for reason, count in batch.skipped.items():
                counts.skipped[printable(reason)] += count
            for each in batch.left_out:
                if (each.label, each.rounded, each.name) in warned:
                    continue
                warned.add((each.label, each.rounded, each.name))
                wanting = f"{'label' if each.label else 'component'} {each.name}"
                if each.rounded:
                    text = f"{each.record_id} is not exact, and other records may not be either: {each.reason}"
                elif each.record_id:
                    text = f"{each.record_id} has no {wanting}, and other records may lack it too: {each.reason}"
                else:
                    text = f"no record has {wanting}: {each.reason}"
                log.warning("%s", text)
                counts.remarks.append(text)


@asynccontextmanager
async def closing(batches: AsyncIterator[Batch]) -> AsyncGenerator[AsyncIterator[Batch], None]:
    """Yield the batches, and let their collector clean up on exit, even after an error or a cancellation."""
    try:
        yield batches
    finally:
        aclose: Callable[[], Awaitable[None]] | None = getattr(batches, "aclose", None)
        if aclose is not None:  # an async generator
            await aclose()


async def _show(name: str, observer: Observer | None, transform: Transform | None, batch: Batch) -> Enqueued:
    """Show a batch to the observer, with its records after the transform."""
    check_batch(name, batch)
    shown = batch if transform is None else await anyio.to_thread.run_sync(_transform_records, batch, transform)
    if observer is not None:
        await observer.show_batch(shown)
    return Enqueued(len(shown.records), len(shown.quarantined))


def _transform_records(batch: Batch, transform: Transform) -> Batch:
    records, refused = list[Record | Produced](), list[Quarantined]()
    for each in batch.records:
        produced = each if isinstance(each, Produced) else Produced(each)
        try:
            records.append(replace(produced, record=transform(produced.record)))
        except InvalidRecord as error:
            refused.append(Quarantined(produced.record.record_id, encode_record(produced.record).decode(), str(error)))
    return replace(batch, records=records, quarantined=[*batch.quarantined, *refused])


def when(config: InstanceConfig, interval: timedelta) -> timedelta | str:
    """Return when an instance runs: by its cron line, its interval, or the kind's interval."""
    if not isinstance(config, RunConfig):
        return interval
    return config.schedule or config.interval or interval


def jitter(config: InstanceConfig) -> timedelta:
    """Return the maximum random delay of each start."""
    return config.jitter if isinstance(config, RunConfig) else timedelta(0)


def _timeout(config: InstanceConfig, limit: timedelta) -> timedelta:
    return (config.timeout if isinstance(config, RunConfig) else None) or limit
