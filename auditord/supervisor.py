"""The composition root: opens everything, lets it run, and takes it down in order."""

import gc
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from auditord import __version__
from auditord.actions import Actions, Section
from auditord.config.model import WORKING_SECTIONS, Configuration, kind_of
from auditord.config.remarks import remarks
from auditord.config.store_url import is_postgresql
from auditord.errors import HookError, plain_errors
from auditord.health import TaskHealth
from auditord.hooks import Hooks
from auditord.metrics import DatabaseMetrics
from auditord.runtime import RANDOM, Runtime, enabled, opened, sending
from auditord.spool import own
from auditord.spool.exposition import SpoolMetrics
from auditord.systemd import Notifier
from auditord.tasks.backoff import Backoff
from auditord.tasks.instances import Surroundings, collector, jitter, plugin, when
from auditord.tasks.observing import count_records, counted_keys, look_at_spool
from auditord.tasks.running import Listener, Runnable, run_by_the_clock, run_continuously
from auditord.tasks.watching import RunWatch, log_run
from auditord.watchdog import watched_process
from auditord.web import serve
from auditord.web.access import Gate, opened_gate
from auditord.web.api.inside import Inside
from auditord.web.control import FILE as CONTROL_FILE
from auditord_hookspecs import CollectorKind, InstanceConfig, PluginKind, RunReport

_log: Final = logging.getLogger(__name__)

_RUN_SECTIONS: Final[tuple[Section, Section]] = ("collectors", "plugins")


async def run(
    configuration: Configuration,
    hooks: Hooks,
    *,
    ready: Callable[[Sequence[str]], None],
    now: Callable[[], datetime],
    stop: anyio.Event,
    notifier: Notifier | None = None,
) -> None:
    """Be the daemon until ``stop`` is set; cancel the call to end at once (what is queued stays queued).

    Args:
        configuration: all of it, checked.
        hooks: the loaded hook modules.
        ready: called once clients can connect, with the URLs.
        now: the present instant, aware and in UTC.
        stop: ends the daemon in order: no more runs, no more requests, the queue drained within ``shutdown.grace``.
        notifier: how systemd is told.

    Raises:
        StateInUse: another process owns the state folder.
        ConfigurationError: an address, a store or a sender cannot be had.
        StoreUnavailable: a database cannot be opened at the start.
        SchemaMismatch: a database is not one of ours, or newer.
        HookError: a hook module failed while the daemon started.
    """
    notifier = notifier or Notifier({}, 0)
    with plain_errors(), own(configuration.state_dir):
        async with AsyncExitStack() as stack:
            with notifier.starting():
                runtime = await stack.enter_async_context(opened(configuration, hooks, now))
            stack.enter_context(watched_process(hooks.modules, runtime.health.running))
            await _live(runtime, ready, stop, notifier)


async def _live(
    runtime: Runtime, ready: Callable[[Sequence[str]], None], stop: anyio.Event, notifier: Notifier
) -> None:
    _register_hook_metrics(runtime)
    async with sending(runtime) as grace, anyio.create_task_group() as working:
        actions = await _start_work(runtime, working)
        await _observe(runtime, working, notifier)
        async with (
            opened_gate(runtime.configuration, runtime.hooks, runtime.now) as gate,
            _serving(runtime, actions, gate) as urls,
            runtime.clock.running(),
        ):
            _announce(urls, ready, notifier)
            await stop.wait()
            patience = runtime.configuration.shutdown.grace
            grace.ends = anyio.current_time() + patience.total_seconds()
            notifier.stopping(patience)
        working.cancel_scope.cancel()
    await _say_what_is_left(runtime)


@asynccontextmanager
async def acting(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]
) -> AsyncGenerator[Actions, None]:
    """Own the state folder for a while without being the daemon: nothing happens but what is asked for.

    On leaving, the queue is drained within ``shutdown.grace``; what is left goes out when the daemon runs again.

    Raises:
        StateInUse: another process owns the state folder.
        AuditordError: as :func:`run`.
    """
    with plain_errors(), own(configuration.state_dir):
        async with opened(configuration, hooks, now) as runtime, sending(runtime):
            # Whoever asked for a run hears how it ended; a line in a log that is the same terminal would say it twice.
            collectors, plugins = [await _watched(runtime, each, lambda _: None) for each in _RUN_SECTIONS]
            yield runtime.on_demand(collectors, plugins)


def _announce(urls: Sequence[str], ready: Callable[[Sequence[str]], None], notifier: Notifier) -> None:
    # What start-up made lives as long as the daemon; collecting over it again and again slows bulk decoding down.
    gc.collect()
    gc.freeze()
    _log.info("auditord %s is ready: %s", __version__, " ".join(urls) or "no HTTP")
    notifier.ready()
    ready(urls)


def _serving(runtime: Runtime, actions: Actions, gate: Gate | None) -> AbstractAsyncContextManager[Sequence[str]]:
    """Answer requests: on every address of ``api.listen`` if the API is enabled, on the control socket always."""
    api = runtime.configuration.api
    disabled: dict[str, object] = {} if api.enabled else {"listen": ()}
    return serve(
        api.model_copy(update={"max_long_reads": _long_reads(runtime.configuration)} | disabled),
        ingest=runtime.ingest(),
        store=runtime.store,
        spool=runtime.spool,
        destinations=runtime.storing(),
        registry=runtime.registry,
        now=runtime.now,
        grace=runtime.configuration.shutdown.grace,
        inside=Inside(
            runtime.configuration.state_dir / CONTROL_FILE,
            runtime.health,
            runtime.spool,
            actions,
            _not_enabled(runtime),
        ),
        gate=gate,
    )


def _long_reads(configuration: Configuration) -> int:
    """Those of clients; plugins have connections to the store left."""
    wanted, store = configuration.api.max_long_reads, configuration.store
    return min(wanted, max(1, store.pool_size - 2)) if is_postgresql(store.url) else wanted


def _not_enabled(runtime: Runtime) -> Sequence[TaskHealth]:
    return [
        TaskHealth(name, kind_of(config), section)
        for section in WORKING_SECTIONS
        for name, config in getattr(runtime.configuration, section).items()
        if not config.enabled
    ]


# -- instances ----------------------------------------------------------------------------------------------------


async def _start_work(runtime: Runtime, working: TaskGroup) -> Actions:
    """Start every instance; returns what else may be asked of them."""
    for remark in remarks(runtime.configuration, runtime.hooks.kinds):
        _log.warning("%s", remark)
    around = runtime.surroundings()
    collectors, plugins = [await _watched(runtime, each, log_run) for each in _RUN_SECTIONS]
    for watch, instances, kinds in (
        (collectors, runtime.configuration.collectors, runtime.hooks.kinds.collectors),
        (plugins, runtime.configuration.plugins, runtime.hooks.kinds.plugins),
    ):
        for task, config in enabled(instances).items():
            kind = kinds[kind_of(config)]
            _start(runtime, working, _runnable(task, kind, config, around), kind, config, listener=watch.listener())
    return runtime.on_demand(collectors, plugins)


async def _watched(runtime: Runtime, section: Section, tell: Callable[[RunReport], None]) -> RunWatch:
    """Watch a section's instances, from where their last runs left them."""
    last = await runtime.spool.last_runs()
    watch = runtime.watch(section, tell)
    for task, config in enabled(getattr(runtime.configuration, section)).items():
        watch.expect(task, kind_of(config), next(iter(last.get(task, ())), None))
    return watch


def _runnable(
    task: str, kind: CollectorKind[Any] | PluginKind[Any], config: InstanceConfig, around: Surroundings
) -> Runnable:
    return (
        collector(task, kind, config, around) if isinstance(kind, CollectorKind) else plugin(task, kind, config, around)
    )


def _start(
    runtime: Runtime,
    working: TaskGroup,
    runnable: Runnable,
    kind: CollectorKind[Any] | PluginKind[Any],
    config: InstanceConfig,
    *,
    listener: Listener,
) -> None:
    if isinstance(kind, CollectorKind) and kind.continuous:
        working.start_soon(run_continuously, runnable, Backoff(RANDOM.random), listener, runtime.now)
        return
    turn, skipped = runtime.turns[runnable.task], runtime.metrics.skipped_ticks.labels(runnable.task, runnable.kind)
    runtime.clock.add(runnable.task, turn, when(config, kind.interval), jitter(config), skipped.inc)
    working.start_soon(run_by_the_clock, runnable, turn, listener, runtime.now)


async def _say_what_is_left(runtime: Runtime) -> None:
    for sender, queue in (await runtime.spool.statistics()).queues.items():
        _log.warning("%d entries for %s stay queued and go out after the next start", queue.entries, sender)
    _log.info("stopped")


# -- metrics ------------------------------------------------------------------------------------------------------


def _register_hook_metrics(runtime: Runtime) -> None:
    for module, instrument in runtime.hooks.declarations("auditord_metrics", daemon=runtime.daemon):
        try:
            runtime.registry.register(instrument)
        except ValueError as error:
            raise HookError(f"{module}: {error}; metrics of two modules must have different names") from error


async def _observe(runtime: Runtime, working: TaskGroup, notifier: Notifier) -> None:
    spool_metrics = SpoolMetrics({name: kind.name for name, (kind, _) in runtime.senders.items()}, runtime.now)
    spool_metrics.update(await runtime.spool.statistics())  # so that not even the first scrape shows an empty queue
    runtime.registry.register(spool_metrics)
    section = runtime.configuration.metrics.database
    database = DatabaseMetrics(total="RecordCount" in section.metrics, keys=counted_keys(section))
    runtime.registry.register(database)
    working.start_soon(look_at_spool, runtime.spool, spool_metrics, notifier)
    working.start_soon(count_records, runtime.store, database, section.interval)
    working.start_soon(notifier.feed_watchdog, runtime.health.alive)
