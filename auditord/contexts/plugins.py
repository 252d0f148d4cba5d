"""The contexts of plugins over the real store, and the contexts of hook modules' panels.

Opening a plugin's context takes its lease, loads its state, and opens the records of its option ``source``. A panel's
queries are limited to the records that its visitor may see.
"""

import inspect
import logging
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from auditord.actions import RUN_SECTIONS, PluginObserver, Section
from auditord.client import AsyncClient
from auditord.client.query_string import flatten, has_words, matches
from auditord.config.model import INSTANCE_NAME
from auditord.contexts.instances import InstanceContext, TaskLog, task_log
from auditord.database.memory import Occasion, PluginMemory
from auditord.errors import HookError
from auditord.hooks import HookModule, Hooks
from auditord.spool import Spool
from auditord.store.reading import StoredRecords
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    AuditordError,
    Backups,
    CollectorKind,
    InstanceConfig,
    Panel,
    Permission,
    PluginConfig,
    PluginKind,
    Record,
    RecordQuery,
    Records,
    Redactor,
    RunReport,
)
from auditord_hookspecs.query import AllOf, Condition
from auditord_hookspecs.sources import RemoteSource


class ObservedLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that also passes its messages to an observer."""

    def __init__(self, log: TaskLog, observer: PluginObserver) -> None:
        super().__init__(log.logger, {**(log.extra or {}), "observed": True})
        self._observer = observer

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:  # Any: logging's own
        """Log a message, and pass it on from level INFO."""
        super().log(level, msg, *args, **kwargs)
        if level >= logging.INFO:
            self._observer.show_line(str(msg) % args if args else str(msg))


@dataclass(eq=False, kw_only=True)
class StorePluginContext(InstanceContext):
    """A plugin's context.

    Args:
        state: the plugin's state (JSON) at the start of the run.
        own_records: the redactor, if the records are this daemon's.
        dry_run: whether the plugin only shows its effects and does not save its state.
        observer: receives log and output; without one, output is logged.
    """

    memory: PluginMemory
    records: Records
    state: Any  # Any: the JSON that the plugin stored
    own_records: Redactor | None
    backups: Backups
    dry_run: bool = False
    observer: PluginObserver | None = None

    @property
    def log(self) -> TaskLog:
        """A logger that names the instance and informs the observer."""
        log = task_log(self.instance, self.kind)
        return log if self.observer is None else ObservedLog(log, self.observer)

    @property
    def redactor(self) -> Redactor:
        """The remover of personal data from the records."""
        if self.own_records is None:
            raise AuditordError(
                f"{self.instance}: only this daemon's own records can be changed: remove the option source"
            )
        return self.own_records

    def show(self, text: str) -> None:
        """Show a text to the observer, or in the log."""
        if self.observer is None:
            self.log.info(text)
        else:
            self.observer.show_output(text)

    def report_progress(self, fraction: float) -> None:
        if self.observer is not None:
            self.observer.show_progress(fraction)

    async def save_state(self, state: Any) -> None:  # Any: the JSON that the plugin stores
        """Save JSON for the next run; a dry run does not store it."""
        if not self.dry_run:
            await self.memory.save(state, self.now())
        self.state = state


class HostDaemon(msgspec.Struct, frozen=True, weakref=True):
    """The running daemon as hooks see it: its version and its records."""

    version: str
    records: Records


class RemoteRecords:
    """Implements :class:`auditord_hookspecs.Records` on a remote server. Truncated or refused answers raise."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @asynccontextmanager
    async def stream(self, query: RecordQuery) -> AsyncGenerator[AsyncIterator[Record], None]:
        """Yield the matching records in order. Conditions that the wire contract cannot express are checked here."""
        where = tuple(filter(has_words, flatten(query.where)))
        # With a limit, the server would count records that are filtered out here. So the client refuses such a query.
        sent = query if query.limit is not None else replace(query, where=AllOf(where))
        async with self._client.stream(sent) as records, aclosing(_filter(records, query.where)) as chosen:
            yield chosen

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums over the matching records, computed by an auditord or from the stream of an AUDITOR."""
        return await self._client.aggregate(query)


async def _filter(records: AsyncIterator[Record], where: Condition) -> AsyncGenerator[Record, None]:
    async for record in records:
        if matches(record, where):
            yield record


def remote_source(config: InstanceConfig) -> RemoteSource | None:
    """Return the server with a plugin's records; None if it works on this daemon's records."""
    source = config.source if isinstance(config, PluginConfig) else "local"
    return None if source == "local" else source


@asynccontextmanager
async def open_records(config: InstanceConfig, local: Records | None) -> AsyncGenerator[Records, None]:
    """Yield the records that a plugin works on: those of its ``source``, or this daemon's (``local``).

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
    """Stores a plugin's state: the record store, so that another daemon may take over, or the spool.

    The spool stores the state of plugins with a remote ``source``.
    """

    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PluginMemory]:
        """Open a plugin's memory; see :meth:`auditord.store.store.RecordStore.memory`."""
        ...


@asynccontextmanager
async def open_plugin(
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
    """Yield the context of one run. Until it exits, no other daemon of the same database runs this plugin.

    Args:
        instance: the part of the context that every instance has.
        config: the plugin's section of the configuration.
        states: stores the plugin's state.
        local: this daemon's records, for a plugin that works on them.
        backups: makes backups of this daemon.
        occasion: why the plugin runs; an exit without an error marks the run as done for other daemons.
        dry_run: whether nothing is done or saved, which needs no turn.
        observer: receives log and output.

    Raises:
        RanElsewhere: another daemon has run the plugin on the same occasion.
        TurnLost: another process took over.
    """

    def warn() -> None:
        instance.log.warning("waits: it is running on another daemon")

    waiting, occasion = (None, None) if dry_run else (warn, occasion)
    async with open_records(config, local) as records, states.memory(instance.instance, waiting, occasion) as memory:
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


Aggregate = Callable[[AggregateQuery], Awaitable[Aggregates]]


class PanelInstance(msgspec.Struct, frozen=True):
    """An enabled instance."""

    section: str
    name: str
    kind: str
    config: InstanceConfig


class Memories(msgspec.Struct, frozen=True):
    """The stored states and runs of instances.

    Args:
        store: the state of plugins.
        spool: checkpoints, last runs, and the state of plugins with a remote ``source``.
    """

    store: StateStore
    spool: Spool

    async def state(self, instance: PanelInstance) -> Any:  # Any: JSON of its own
        """Return the checkpoint of a collector or the state of a plugin."""
        if instance.section == "collectors":
            return await self.spool.checkpoint(instance.name)
        states = self.store if remote_source(instance.config) is None else self.spool
        async with states.memory(instance.name, None) as memory:
            return await memory.load()

    async def last_runs(self, task: str) -> Sequence[RunReport]:
        """Return the last runs, the newest first."""
        return (await self.spool.last_runs()).get(task, ())


class HostPanelContext(msgspec.Struct, frozen=True):
    """Implements :class:`auditord_hookspecs.PanelContext`.

    Args:
        of: the instance, if the panel belongs to a kind.
        sums: returns sums over the records that the visitor may see.
    """

    panel: Panel
    of: PanelInstance | None
    sums: Aggregate
    now: Callable[[], datetime]
    memories: Memories

    @property
    def instance(self) -> str | None:
        return None if self.of is None else self.of.name

    @property
    def config(self) -> Any:  # Any: the kind's own model
        """The instance's section."""
        return None if self.of is None else self.of.config

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums over the records that the visitor may see."""
        return await self.sums(query)

    async def state(self) -> Any:  # Any: JSON of the instance's own
        """Return the JSON that the instance saved last."""
        return await self.memories.state(self._whole())

    async def pending(self) -> Mapping[str, Any]:  # Any: the same
        """Return the values that a collector keeps between runs."""
        return await self.memories.spool.pending(self._whole().name)

    async def last_runs(self) -> Sequence[RunReport]:
        return await self.memories.last_runs(self._whole().name)

    def _whole(self) -> PanelInstance:
        if self.of is None or not self.panel.whole:
            raise AuditordError("only panels with whole=True and a kind can read an instance's saved data")
        return self.of


class Panels(msgspec.Struct, frozen=True):
    """The panels of all hook modules.

    Args:
        declared: the panels, each with the name of its module.
        select_enabled: returns the currently enabled instances of a section, with kind and configuration.
    """

    declared: Sequence[tuple[str, Panel]]
    select_enabled: Callable[[Section], Mapping[str, tuple[CollectorKind[Any] | PluginKind[Any], InstanceConfig]]]
    memories: Memories

    def list_panels(self) -> Iterator[tuple[str, Panel, PanelInstance | None]]:
        """Yield module, panel and None; for a panel of a kind, one triple for each instance of the kind."""
        for module, panel in self.declared:
            if panel.kind is None:
                yield module, panel, None
                continue
            for section in RUN_SECTIONS:
                for name, (kind, config) in self.select_enabled(section).items():
                    if kind.name == panel.kind:
                        yield module, panel, PanelInstance(section, name, kind.name, config)


def find_panels(hooks: Hooks) -> Sequence[tuple[str, Panel]]:
    """Return the panels that hook modules declare.

    Raises:
        HookError: a module declares an invalid panel, or fails.
    """
    found = list(hooks.declarations("auditord_panels"))
    named = set[tuple[HookModule, str]]()
    for module, declared in found:
        if not isinstance(declared, Panel):
            raise HookError(f"{module} declares {declared!r} as a panel: yield instances of Panel")
        panel: Any = declared  # Any: a Struct that is made by a call checks none of its fields
        what = f"{module} declares the panel '{panel.name}'"
        if not (isinstance(panel.name, str) and re.fullmatch(INSTANCE_NAME, panel.name)):
            raise HookError(f"{what}, whose name is not an identifier: lower-case letters, digits and _")
        if not inspect.iscoroutinefunction(panel.show):
            raise HookError(f"{what}, whose show is not async: write 'async def', without yield")
        if not isinstance(panel.permission, Permission):
            raise HookError(f"{what}, whose permission is not an auditord_hookspecs.Permission")
        if (module, panel.name) in named:
            raise HookError(f"{module} declares two panels '{panel.name}': give one of them another name")
        named.add((module, panel.name))
    return [(str(module), panel) for module, panel in found]
