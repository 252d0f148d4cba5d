"""Everything that is open while somebody owns the state folder, and the senders that forward its queue."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from math import inf
from random import SystemRandom
from typing import Any, Final

import anyio
from prometheus_client import CollectorRegistry

from auditord import __version__
from auditord.config.model import Configuration, SenderSource, kind_of, source_of
from auditord.config.transforming import configured_transform
from auditord.contexts.instances import HostDaemon, StoreSenderContext
from auditord.errors import ConfigurationError
from auditord.health import Health
from auditord.hooks import Hooks
from auditord.ingest import Ingest, Pairing, StoreSink
from auditord.metrics import TaskMetrics
from auditord.spool import Spool
from auditord.store import RecordStore
from auditord.store.opening import open_store
from auditord.store.reading import StoredRecords
from auditord.tasks.amending import RecordEditor
from auditord.tasks.clock import Clock
from auditord.tasks.forwarding import forward, forward_all
from auditord.tasks.instances import Surroundings
from auditord.tasks.observing import counted_keys
from auditord.tasks.on_demand import OnDemand
from auditord.tasks.pairing import pair_when_back, paired, refuse_missing_store
from auditord.tasks.sending import SendLoop
from auditord.tasks.turn import Turn
from auditord.tasks.watching import RunWatch, SendWatch
from auditord_hookspecs import InstanceConfig, RecordSink, RunReport, SenderKind, Transform

LOCAL: Final = "local"
"""The sender that exists without being configured, and its kind."""

RANDOM: Final = SystemRandom()  # chance spreads many hosts; it must not follow from a shared seed


@dataclass(frozen=True, slots=True)
class Runtime:
    """What its owner works with.

    Args:
        configuration: all of it.
        hooks: the loaded hook modules.
        now: the present instant.
        spool: the daemon's own memory.
        store: the records.
        transform: what every record meets before it is kept.
        pairing: of store and spool.
        daemon: what hooks see.
        registry: every figure.
        metrics: those about instances.
        clock: asks for runs once it is started.
        turns: whose turn it is, by instance.
        health: how everything fares.
        senders: by name, each with its kind.
    """

    configuration: Configuration
    hooks: Hooks
    now: Callable[[], datetime]
    spool: Spool
    store: RecordStore
    transform: Transform | None
    pairing: Pairing
    daemon: HostDaemon
    registry: CollectorRegistry
    metrics: TaskMetrics
    clock: Clock
    turns: Mapping[str, Turn]
    health: Health
    senders: Mapping[str, tuple[SenderKind[Any], InstanceConfig]]  # Any: each kind has its own configuration model

    def taking(self, source: SenderSource) -> Sequence[str]:
        """The senders that forward what comes from there."""
        return [name for name, (_, config) in self.senders.items() if source_of(config) in {source, "all"}]

    def storing(self) -> Sequence[str]:
        """The senders that forward to the record store of this daemon."""
        return [name for name, (kind, _) in self.senders.items() if kind.name == LOCAL]

    def ingest(self) -> Ingest:
        """The way in for clients' records."""
        queue_updates = self.configuration.api.updates_while_away == "queue"
        return Ingest(self.store, self.spool, self.storing(), queue_updates=queue_updates, transform=self.transform)

    def watch(self, section: str, tell: Callable[[RunReport], None]) -> RunWatch:
        """Who hears of the runs of a section's instances, and tells of them."""
        return RunWatch(
            section,
            health=self.health,
            spool=self.spool,
            hooks=self.hooks,
            daemon=self.daemon,
            now=self.now,
            tell=tell,
        )

    def surroundings(self) -> Surroundings:
        """What instances work with."""
        return Surroundings(self.spool, self.store, self.taking("collectors"), self.metrics, self.now)

    def on_demand(self, collectors: RunWatch, plugins: RunWatch) -> OnDemand:
        """What an operator may ask for."""
        return OnDemand(
            self.configuration,
            self.hooks.kinds,
            self.surroundings(),
            stores=self.storing(),
            turns=self.turns,
            collectors=collectors.listener(),
            plugins=plugins.listener(),
            records=RecordEditor(self.store, self.now, self.transform, self.ingest().waiting),
        )


@asynccontextmanager
async def opened(
    configuration: Configuration, hooks: Hooks, now: Callable[[], datetime]
) -> AsyncGenerator[Runtime, None]:
    """Open spool and store of a state folder that the caller owns.

    Raises:
        ConfigurationError: a store or a sender cannot be had.
        StoreUnavailable: a database cannot be opened.
        SchemaMismatch: a database is not one of ours, or newer.
        StoreMismatch: store and spool do not belong together, or one of them is an older copy.
    """
    senders = _senders(configuration, hooks)
    outbox = any(source_of(config) != "collectors" for _, config in senders.values())
    keys = counted_keys(configuration.metrics.database)
    transform = configured_transform(configuration, hooks.kinds)
    async with AsyncExitStack() as stack:
        spool = await stack.enter_async_context(Spool.opened(configuration.state_dir, now, transform=transform))
        await refuse_missing_store(configuration, spool)
        store = await stack.enter_async_context(
            open_store(
                configuration.store,
                counted_keys=sorted({key.key for key in keys}),
                outbox=outbox,
            )
        )
        pairing = await stack.enter_async_context(paired(store, spool))
        clock, registry = Clock(lambda most: most * RANDOM.random()), CollectorRegistry()
        yield Runtime(
            configuration=configuration,
            hooks=hooks,
            now=now,
            spool=spool,
            store=store,
            transform=transform,
            pairing=pairing,
            daemon=HostDaemon(__version__, StoredRecords(store)),
            registry=registry,
            metrics=TaskMetrics(registry),
            clock=clock,
            turns={name: Turn() for name in (*enabled(configuration.collectors), *enabled(configuration.plugins))},
            health=Health([store.check, spool.check], spool.check, clock.next_run),
            senders=senders,
        )


def enabled(instances: Mapping[str, InstanceConfig]) -> Mapping[str, InstanceConfig]:
    """The instances of a section that take part."""
    return {name: config for name, config in instances.items() if config.enabled}


def _senders(configuration: Configuration, hooks: Hooks) -> Mapping[str, tuple[SenderKind[Any], InstanceConfig]]:
    kinds = hooks.kinds.senders
    senders = {name: (kinds[kind_of(config)], config) for name, config in enabled(configuration.senders).items()}
    if LOCAL not in configuration.senders and LOCAL in kinds:
        senders[LOCAL] = (kinds[LOCAL], kinds[LOCAL].config())
    if enabled(configuration.collectors) and all(source_of(config) == "api" for _, config in senders.values()):
        raise ConfigurationError(
            "collectors are configured and no sender carries what they make: their records would go nowhere; "
            "enable senders.local or configure another sender (from: collectors or all)"
        )
    return senders


@dataclass
class Grace:
    """How long senders may drain the queue.

    Args:
        ends: on the event loop's clock; if nobody says, ``shutdown.grace`` after the rest has ended.
    """

    ends: float = inf


@asynccontextmanager
async def sending(runtime: Runtime) -> AsyncGenerator[Grace, None]:
    """Carry the queue; on leaving it is drained as far as the grace period allows, the rest stays queued."""
    grace, loops = Grace(), _send_loops(runtime)
    async with anyio.create_task_group() as group:
        for loop in loops:
            group.start_soon(loop.run)
        async with _forwarding(runtime):
            yield grace
        longest = anyio.current_time() + runtime.configuration.shutdown.grace.total_seconds()
        group.cancel_scope.deadline = min(grace.ends, longest)
        await _empty_outbox(runtime)
        for loop in loops:
            loop.drain()


@asynccontextmanager
async def _forwarding(runtime: Runtime) -> AsyncGenerator[None, None]:
    """Forward what clients write to the senders that want it."""
    async with anyio.create_task_group() as group:
        group.start_soon(pair_when_back, runtime.pairing)
        if destinations := runtime.taking("api"):
            group.start_soon(forward, runtime.store, runtime.spool, destinations)
        yield
        group.cancel_scope.cancel()


async def _empty_outbox(runtime: Runtime) -> None:
    if destinations := runtime.taking("api"):
        await forward_all(runtime.store, runtime.spool, destinations)


def _send_loops(runtime: Runtime) -> Sequence[SendLoop]:
    sink: RecordSink = StoreSink(runtime.store, runtime.now, runtime.configuration.api.duplicates, runtime.pairing)
    return [_send_loop(runtime, sink, name, kind, config) for name, (kind, config) in runtime.senders.items()]


def _send_loop(
    runtime: Runtime, sink: RecordSink, task: str, kind: SenderKind[Any], config: InstanceConfig
) -> SendLoop:
    return SendLoop(
        task,
        kind,
        config,
        StoreSenderContext(task, kind.name, runtime.now, store=sink),
        spool=runtime.spool,
        listener=SendWatch(task, kind.name, runtime.health, runtime.metrics, runtime.now),
        now=runtime.now,
        random=RANDOM.random,
    )
