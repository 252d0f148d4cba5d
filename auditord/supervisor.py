"""The composition root: opens everything, lets it run, and takes it down in order."""

import gc
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from random import SystemRandom
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from prometheus_client import CollectorRegistry

from auditord import __version__
from auditord.config.model import Configuration, kind_of
from auditord.contexts.lent import HostDaemon, StoreSenderContext
from auditord.errors import ConfigurationError, HookError, plain_errors
from auditord.health import Health
from auditord.hooks import Hooks
from auditord.metrics import DatabaseFigures, TaskFigures
from auditord.spool import Spool, own
from auditord.spool.exposition import SpoolFigures
from auditord.store import RecordStore
from auditord.store.opening import open_store
from auditord.store.reading import StoredRecords
from auditord.store.sink import StoreSink
from auditord.systemd import Notifier
from auditord.tasks.backoff import Backoff
from auditord.tasks.clock import Clock
from auditord.tasks.instances import Surroundings, collector, jitter, plugin, when
from auditord.tasks.observing import count_records, counted_keys, look_at_spool
from auditord.tasks.running import Listener, Runnable, run_by_the_clock, run_continuously
from auditord.tasks.sending import SendLoop
from auditord.tasks.turn import Turn
from auditord.tasks.watching import RunWatch, SendWatch
from auditord.web import serve
from auditord_hookspecs import CollectorKind, InstanceConfig, PluginKind, RecordSink, SenderKind

LOCAL: Final = "local"
"""The sender that exists without being configured, and its kind."""

_log: Final = logging.getLogger(__name__)
_random: Final = SystemRandom()  # chance spreads many hosts; it must not follow from a shared seed


@dataclass(frozen=True, slots=True)
class _House:
    """Everything that is open while the daemon runs."""

    configuration: Configuration
    hooks: Hooks
    now: Callable[[], datetime]
    spool: Spool
    store: RecordStore
    daemon: HostDaemon
    registry: CollectorRegistry
    figures: TaskFigures
    clock: Clock
    health: Health
    senders: Mapping[str, tuple[SenderKind[Any], InstanceConfig]]  # Any: each kind has its own configuration model


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
        async with _opened(configuration, hooks, now) as house:
            await _live(house, ready, stop, notifier)


@asynccontextmanager
async def _opened(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]
) -> AsyncGenerator[_House, None]:
    senders = _senders(configuration, hooks)
    keys = counted_keys(configuration.metrics.database)
    async with AsyncExitStack() as stack:
        spool = await stack.enter_async_context(Spool.opened(configuration.state_dir, now))
        store = await stack.enter_async_context(
            open_store(configuration.store.url, counted_keys=sorted({key.key for key in keys}))
        )
        clock, registry = Clock(lambda most: most * _random.random()), CollectorRegistry()
        yield _House(
            configuration=configuration,
            hooks=hooks,
            now=now,
            spool=spool,
            store=store,
            daemon=HostDaemon(__version__, StoredRecords(store)),
            registry=registry,
            figures=TaskFigures(registry),
            clock=clock,
            health=Health([store.check, spool.check], spool.check, clock.next_run),
            senders=senders,
        )


async def _live(house: _House, ready: Callable[[Sequence[str]], None], stop: anyio.Event, notifier: Notifier) -> None:
    _register_hook_metrics(house)
    loops = _send_loops(house)
    deadline = 0.0
    async with anyio.create_task_group() as sending:
        for loop in loops:
            sending.start_soon(loop.run)
        async with anyio.create_task_group() as working:
            await _start_work(house, working, notifier)
            async with _serving(house) as urls, house.clock.running():
                _announce(urls, ready, notifier)
                await stop.wait()
                deadline = anyio.current_time() + house.configuration.shutdown.grace.total_seconds()
                notifier.stopping()
            working.cancel_scope.cancel()
        for loop in loops:
            loop.drain()
        sending.cancel_scope.deadline = deadline
    await _say_what_is_left(house)


def _announce(urls: Sequence[str], ready: Callable[[Sequence[str]], None], notifier: Notifier) -> None:
    # What start-up made lives as long as the daemon; collecting over it again and again slows bulk decoding down.
    gc.collect()
    gc.freeze()
    _log.info("auditord %s is ready: %s", __version__, " ".join(urls) or "no HTTP")
    notifier.ready()
    ready(urls)


@asynccontextmanager
async def _serving(house: _House) -> AsyncGenerator[Sequence[str], None]:
    if not house.configuration.api.enabled:
        yield []
        return
    async with serve(
        house.configuration.api,
        store=house.store,
        spool=house.spool,
        destinations=[name for name, (kind, _) in house.senders.items() if kind.name == LOCAL],
        registry=house.registry,
        now=house.now,
        grace=house.configuration.shutdown.grace,
    ) as urls:
        yield urls


# -- instances ----------------------------------------------------------------------------------------------------


async def _start_work(house: _House, working: TaskGroup, notifier: Notifier) -> None:
    last = {run.task: run for run in await house.spool.last_runs()}
    around = Surroundings(house.spool, house.daemon.records, list(house.senders), house.figures, house.now)
    for section in ("collectors", "plugins"):
        watch = RunWatch(
            section, health=house.health, spool=house.spool, hooks=house.hooks, daemon=house.daemon, now=house.now
        )
        kinds: Mapping[str, CollectorKind[Any] | PluginKind[Any]] = getattr(house.hooks.kinds, section)
        for task, config in _enabled(getattr(house.configuration, section)).items():
            kind = kinds[kind_of(config)]
            runnable = _runnable(task, kind, config, around)
            watch.expect(runnable, last.get(task))
            _start(house, working, runnable, kind, config, listener=watch.listener())
    _observe(house, working, notifier)


def _enabled(instances: Mapping[str, InstanceConfig]) -> Mapping[str, InstanceConfig]:
    return {name: config for name, config in instances.items() if config.enabled}


def _runnable(
    task: str, kind: CollectorKind[Any] | PluginKind[Any], config: InstanceConfig, around: Surroundings
) -> Runnable:
    return (
        collector(task, kind, config, around) if isinstance(kind, CollectorKind) else plugin(task, kind, config, around)
    )


def _start(
    house: _House,
    working: TaskGroup,
    runnable: Runnable,
    kind: CollectorKind[Any] | PluginKind[Any],
    config: InstanceConfig,
    *,
    listener: Listener,
) -> None:
    if isinstance(kind, CollectorKind) and kind.continuous:
        working.start_soon(run_continuously, runnable, Backoff(_random.random), listener, house.now)
        return
    turn, skipped = Turn(), house.figures.skipped_ticks.labels(runnable.task, runnable.kind)
    house.clock.add(runnable.task, turn, when(config, kind.interval), jitter(config), skipped.inc)
    working.start_soon(run_by_the_clock, runnable, turn, listener, house.now)


def _senders(configuration: Configuration, hooks: Hooks) -> Mapping[str, tuple[SenderKind[Any], InstanceConfig]]:
    kinds = hooks.kinds.senders
    senders = {name: (kinds[kind_of(config)], config) for name, config in _enabled(configuration.senders).items()}
    if LOCAL not in configuration.senders and LOCAL in kinds:
        senders[LOCAL] = (kinds[LOCAL], kinds[LOCAL].config())
    if not senders and _enabled(configuration.collectors):
        raise ConfigurationError(
            "collectors are configured and no sender is enabled: their records would go nowhere; "
            "enable senders.local or configure another sender"
        )
    return senders


def _send_loops(house: _House) -> list[SendLoop]:
    sink: RecordSink = StoreSink(house.store, house.now)
    return [_send_loop(house, sink, name, kind, config) for name, (kind, config) in house.senders.items()]


def _send_loop(house: _House, sink: RecordSink, task: str, kind: SenderKind[Any], config: InstanceConfig) -> SendLoop:
    return SendLoop(
        task,
        kind,
        config,
        StoreSenderContext(task, kind.name, house.now, store=sink),
        spool=house.spool,
        listener=SendWatch(task, kind.name, house.health, house.figures, house.now),
        now=house.now,
        random=_random.random,
    )


async def _say_what_is_left(house: _House) -> None:
    for sender, queue in (await house.spool.figures()).queues.items():
        _log.warning("%d entries for %s stay queued and go out after the next start", queue.entries, sender)
    _log.info("stopped")


# -- figures ------------------------------------------------------------------------------------------------------


def _register_hook_metrics(house: _House) -> None:
    for module, instrument in house.hooks.declarations("auditord_metrics", daemon=house.daemon):
        try:
            house.registry.register(instrument)
        except ValueError as error:
            raise HookError(f"{module}: {error}; metrics of two modules must have different names") from error


def _observe(house: _House, working: TaskGroup, notifier: Notifier) -> None:
    spool_figures = SpoolFigures({name: kind.name for name, (kind, _) in house.senders.items()}, house.now)
    house.registry.register(spool_figures)
    section = house.configuration.metrics.database
    database = DatabaseFigures(total="RecordCount" in section.metrics, keys=counted_keys(section))
    house.registry.register(database)
    working.start_soon(look_at_spool, house.spool, spool_figures, notifier)
    working.start_soon(count_records, house.store, database, section.interval)
    working.start_soon(notifier.feed_watchdog, house.health.alive)
