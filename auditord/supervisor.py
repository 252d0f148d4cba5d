"""The composition root: opens all parts of the daemon, runs them, and shuts them down in order."""

import gc
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskGroup

from auditord import __version__
from auditord.actions import Actions, Section
from auditord.backup.notes import read_restored_at
from auditord.config.files import certificate_files
from auditord.config.kinds import remarks
from auditord.config.loading import ConfigurationFiles
from auditord.config.merging import CONTROL_FILE
from auditord.config.model import WORKING_SECTIONS, Configuration, kind_of
from auditord.config.store_url import is_postgresql
from auditord.errors import plain_errors
from auditord.features import register_features
from auditord.health import TaskHealth
from auditord.hooks import Hooks
from auditord.lake.opening import lake_of
from auditord.runtime import RANDOM, Runtime
from auditord.spool import Spool, own
from auditord.storage import open_for_preview, open_storage
from auditord.store.opening import open_replica
from auditord.store.protocol import Reads
from auditord.store.replica import ReplicaMetrics, ReplicatedReads
from auditord.systemd import Notifier
from auditord.tasks.gauges import (
    Heartbeat,
    HostMetrics,
    SpoolMetrics,
    count_records,
    look_at_host,
    look_at_spool,
    record_gauges,
    run_intervals,
)
from auditord.tasks.loops import Loops, Reloading, reload_on_hangup
from auditord.tasks.runs import log_run
from auditord.watchdog import watch_process
from auditord.web.access.authorisation import open_authorisation
from auditord.web.api.handlers import make_daemon_handlers
from auditord.web.api.status import SiteReportHandlers, StatusHandlers
from auditord.web.page import Parts
from auditord.web.server import serve
from auditord_hookspecs.wording import counted

_log: Final = logging.getLogger(__name__)


async def run(
    configuration: Configuration,
    hooks: Hooks,
    *,
    ready: Callable[[Sequence[str]], None],
    now: Callable[[], datetime],
    stop: anyio.Event,
    notifier: Notifier | None = None,
    files: ConfigurationFiles | None = None,
) -> None:
    """Run the daemon until ``stop`` is set. Cancel the call to end at once; queued entries then stay queued.

    Args:
        configuration: the complete, checked configuration.
        hooks: the loaded hook modules.
        ready: called with the URLs once clients can connect.
        now: returns the current time, aware and in UTC.
        stop: ends the daemon in order: no more runs, no more requests, the queue drained within ``shutdown.grace``.
        notifier: systemd's notifier.
        files: the configuration's files; None disables reloading, as outside the main thread.

    Raises:
        StateInUse: another process owns the state folder.
        ConfigurationError: an address, a store or a sender cannot be used.
        StoreUnavailable: a database cannot be opened at the start.
        SchemaMismatch: a database is not one of ours, or newer.
        HookError: a hook module failed while the daemon started.
    """
    notifier = notifier or Notifier({}, 0)
    with plain_errors(), own(configuration.state_dir):
        async with AsyncExitStack() as stack:
            with notifier.starting():
                storage = await stack.enter_async_context(open_storage(configuration, hooks.kinds, now))
            runtime = Runtime(configuration, hooks, storage, now)
            stack.enter_context(watch_process(hooks.modules, runtime.health.running))
            runtime.register_hook_metrics()
            heartbeat = Heartbeat(storage.store, storage.spool, storage.pairing, now, now())
            async with runtime.sending() as grace, anyio.create_task_group() as working:
                views = _ReloadableViews(runtime)
                actions, loops = await _start_work(runtime, working, views)
                await _observe(runtime, working, notifier, views)
                reloading = None if files is None else _make_reloading(runtime, files, loops, views)
                if reloading is not None:
                    working.start_soon(reload_on_hangup, reloading)
                working.start_soon(heartbeat.beat)
                working.start_soon(runtime.clock.follow_host)
                async with _serving(runtime, working, actions, views, reloading) as urls, runtime.clock.running():
                    # Each collection would scan the objects of the start-up, which live as long as the daemon, and slow
                    # bulk decoding down. To collect them before would take a twentieth of the start and find little.
                    gc.freeze()
                    _log.info("auditord %s is ready: %s", __version__, " ".join(urls) or "no HTTP")
                    notifier.ready()
                    ready(urls)
                    await stop.wait()
                    grace.ends = anyio.current_time() + configuration.shutdown.grace.total_seconds()
                    notifier.stopping(configuration.shutdown.grace)
                working.cancel_scope.cancel()
            await heartbeat.end()
            await _warn_of_queued(storage.spool)
            _log.info("stopped")


async def _warn_of_queued(spool: Spool) -> None:
    for sender, queue in (await spool.statistics()).queues.items():
        waiting = counted(queue.entries, f"entry for {sender} stays", f"entries for {sender} stay")
        _log.warning("%s queued until the next start", waiting)


@asynccontextmanager
async def acting(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]
) -> AsyncGenerator[Actions, None]:
    """Own the state folder for the context without running the daemon: only requested actions run.

    On exit, the queue is drained within ``shutdown.grace``. The rest is sent when the daemon runs again.

    Raises:
        StateInUse: another process owns the state folder.
        AuditordError: as :func:`run`.
    """
    with plain_errors(), own(configuration.state_dir):
        async with open_storage(configuration, hooks.kinds, now) as storage:
            runtime = Runtime(configuration, hooks, storage, now)
            async with runtime.sending():
                # The command prints the result of a run. A log line on the same terminal would repeat it.
                yield runtime.actions(await runtime.listeners(lambda _section, _report: None))


@asynccontextmanager
async def previewing(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime], *, reads_store: bool
) -> AsyncGenerator[Actions, None]:
    """Make dry runs by this configuration, even while a daemon runs by another. Nothing is changed or created.

    ``reads_store``: whether the runs read the record store, as those of plugins do.

    Raises:
        AuditordError: as :func:`auditord.storage.open_for_preview`.
    """
    with plain_errors():
        async with open_for_preview(configuration, hooks.kinds, now, reads_store=reads_store) as storage:
            yield Runtime(configuration, hooks, storage, now).actions({})


class _ReloadableViews:
    """Values derived from the configuration. A reload updates them in place, since other parts hold references."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.intervals: Final[dict[tuple[str, str, str], timedelta]] = {}
        self.not_enabled: Final[list[TaskHealth]] = []
        self.certificates: Final[list[Path]] = []
        self.configuration = runtime.configuration
        self.refresh(runtime.configuration)

    def refresh(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.intervals.clear()
        self.intervals.update(run_intervals(self._runtime.instances))
        self.not_enabled[:] = [
            TaskHealth(name, kind_of(config), section)
            for section in WORKING_SECTIONS
            for name, config in getattr(configuration, section).items()
            if not config.enabled
        ]
        self.certificates[:] = certificate_files(configuration)


async def _start_work(runtime: Runtime, working: TaskGroup, views: _ReloadableViews) -> tuple[Actions, Loops]:
    """Start every instance and the work of the features; return the operators' actions and the loops."""
    for remark in remarks(runtime.configuration, runtime.hooks.kinds):
        _log.warning("%s", remark)
    listeners = await runtime.listeners(log_run)
    restored = read_restored_at(runtime.configuration.state_dir)

    def last_success(section: Section, task: str) -> datetime | None:
        success = runtime.health.last_success(section, task)
        return None if success is None or (restored is not None and success < restored) else success

    loops = Loops(
        runtime.instances,
        working,
        runtime.clock,
        listeners,
        last_success=last_success,
        note_enabled=runtime.storage.spool.note_enabled,
        random=RANDOM.random,
    )
    await loops.begin_all()
    actions = runtime.actions(listeners)
    preparations = register_features(runtime.hooks).manager.hook.feature_work(
        configuration=runtime.configuration,
        current=lambda: views.configuration,
        hooks=runtime.hooks,
        storage=runtime.storage,
        store=runtime.storage.store,
        actions=actions,
        registry=runtime.registry,
        clock=runtime.clock,
        start_soon=working.start_soon,
        now=runtime.now,
    )
    for preparation in preparations:
        await preparation
    return actions, loops


async def _observe(runtime: Runtime, working: TaskGroup, notifier: Notifier, views: _ReloadableViews) -> None:
    spool, interval = runtime.storage.spool, runtime.configuration.metrics.database.interval
    kinds = {name: kind.name for name, (kind, _) in runtime.storage.senders.items()}
    spool_metrics, database_metrics = SpoolMetrics(kinds, runtime.now), record_gauges(runtime.configuration)
    spool_metrics.statistics = await spool.statistics()  # so that not even the first scrape shows an empty queue
    runtime.registry.register(spool_metrics)
    runtime.registry.register(database_metrics)
    runtime.registry.register(runtime.site_reports)
    host = HostMetrics(views.intervals, runtime.health, runtime.now)
    runtime.registry.register(host)
    store = runtime.storage.store
    working.start_soon(look_at_host, runtime.configuration, views.certificates, store, host, runtime.health)
    working.start_soon(look_at_spool, spool, spool_metrics, notifier)
    working.start_soon(count_records, store, database_metrics, interval, runtime.now)
    working.start_soon(notifier.feed_watchdog, runtime.health.alive)


def _make_reloading(runtime: Runtime, files: ConfigurationFiles, loops: Loops, views: _ReloadableViews) -> Reloading:
    return Reloading(
        runtime.configuration,
        files=files,
        patience=runtime.configuration.shutdown.grace,
        instances=runtime.instances,
        loops=loops,
        senders=runtime.send_loops,
        watch=runtime.watch_again,
        exchanged=views.refresh,
    )


@asynccontextmanager
async def _serving(
    runtime: Runtime, working: TaskGroup, actions: Actions, views: _ReloadableViews, reloading: Reloading | None
) -> AsyncGenerator[Sequence[str], None]:
    """Serve requests: on every address of ``api.listen`` if the API is enabled, and always on the control socket."""
    configuration = runtime.configuration
    status = StatusHandlers(runtime.health, runtime.storage.spool, runtime.ingest, views.not_enabled)
    page = None
    if configuration.ui.enabled:
        start_soon, panels = working.start_soon, runtime.panels()
        page = Parts(configuration, status, actions, start_soon, panels, runtime.site_reports)
    long_reads = configuration.api.max_long_reads
    if is_postgresql(configuration.store.url):  # leave plugins some connections to the store
        long_reads = min(long_reads, max(1, configuration.store.pool_size - 2))
    disabled: dict[str, object] = {} if configuration.api.enabled else {"listen": ()}
    async with (
        open_authorisation(configuration, runtime.hooks, runtime.now) as authorisation,
        _reads(runtime) as reads,
        serve(
            configuration.api.model_copy(update={"max_long_reads": long_reads} | disabled),
            runtime.ingest,
            registry=runtime.registry,
            now=runtime.now,
            grace=configuration.shutdown.grace,
            authorisation=authorisation,
            control=configuration.state_dir / CONTROL_FILE,
            page=page,
            reads=reads,
            lake=runtime.storage.lake if configuration.lake.is_there else None,
            refused_hosts=runtime.health.refused_hosts,
            labels=configuration.labels.model_dump(),
            daemon=make_daemon_handlers(
                actions,
                status,
                SiteReportHandlers(runtime.site_reports, reads, runtime.now),
                None if reloading is None else reloading.reload,
            ),
        ) as urls,
    ):
        yield urls


@asynccontextmanager
async def _reads(runtime: Runtime) -> AsyncGenerator[Reads, None]:
    """Yield the store's reads, from the replica if one is configured."""
    configuration, store = runtime.configuration, runtime.storage.store
    if configuration.store.replica is None:
        yield store
        return
    async with open_replica(configuration.store, store) as replica, anyio.create_task_group() as group:
        with lake_of(replica.store, configuration):
            runtime.registry.register(ReplicaMetrics(replica))
            group.start_soon(replica.watch)
            yield ReplicatedReads(store, replica)
            group.cancel_scope.cancel()
