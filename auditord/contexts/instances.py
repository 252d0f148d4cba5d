"""The contexts of collectors, plugins and senders over the real spool and store.

Opening a plugin's context takes its lease, loads its state, and opens the records of its option ``source``.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from auditord.client import AsyncClient
from auditord.client.query_string import flattened, has_words, matches
from auditord.contexts.command import CommandRunner
from auditord.database.durable_files import make_private_folder
from auditord.database.memory import Occasion, PluginMemory
from auditord.spool import Spool
from auditord.store.reading import StoredRecords
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    AuditordError,
    Backups,
    HttpClient,
    HttpOptions,
    InstanceConfig,
    JobChoice,
    PluginConfig,
    Record,
    RecordQuery,
    Records,
    RecordSink,
    Redactor,
    RunConfig,
    Window,
)
from auditord_hookspecs.query import AllOf, Condition
from auditord_hookspecs.sources import RemoteSource

INSTANCES: Final = "instances"
"""The subfolder of the state folder with a folder for each instance."""

TaskLog: TypeAlias = "logging.LoggerAdapter[logging.Logger]"


def task_log(task: str, kind: str) -> TaskLog:
    """Return a logger whose messages name the instance and its kind."""
    return logging.LoggerAdapter(logging.getLogger("auditord.task"), {"task": task, "kind": kind})


def environment_of(config: InstanceConfig) -> Mapping[str, str]:
    """Return the environment variables that an instance's section sets for its child processes."""
    return config.environment if isinstance(config, RunConfig) else {}


def own_folder(state_dir: Path, instance: str) -> Path:
    """Return the private folder of an instance, which is created if missing.

    Raises:
        AuditordError: it cannot be created, or belongs to another user.
    """
    folder = state_dir / INSTANCES / instance
    try:
        make_private_folder(folder, 0o700)
        folder.chmod(0o700)  # a volume's owner may have opened it to a group (fsGroup)
    except OSError as error:
        raise AuditordError(f"{folder} cannot be used: {error.strerror}: it must be the daemon's own") from error
    return folder


class PluginObserver(Protocol):
    """Receives the log, output and progress of a plugin."""

    def said(self, line: str) -> None:
        """Receive a log message of level INFO or higher."""
        ...

    def printed(self, text: str) -> None:
        """Receive output."""
        ...

    def progressed(self, fraction: float) -> None:
        """Receive the fraction of the run that is done, 0 to 1."""
        ...


class ObservedLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that also passes its messages to an observer."""

    def __init__(self, log: TaskLog, observer: PluginObserver) -> None:
        super().__init__(log.logger, {**(log.extra or {}), "observed": True})
        self._observer = observer

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:  # Any: logging's own
        """Log a message, and pass it on from level INFO."""
        super().log(level, msg, *args, **kwargs)
        if level >= logging.INFO:
            self._observer.said(str(msg) % args if args else str(msg))


@dataclass(eq=False)
class InstanceContext(CommandRunner):
    """The part of the context that every instance gets.

    Args:
        environment: configured variables of its child processes.
    """

    instance: str
    kind: str
    clock: Callable[[], datetime]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def log(self) -> TaskLog:
        """A logger that names the instance."""
        return task_log(self.instance, self.kind)

    def now(self) -> datetime:
        """Return the present instant."""
        return self.clock()

    def http(self, options: HttpOptions | None = None) -> AbstractAsyncContextManager[HttpClient]:
        """Open a client for requests to servers elsewhere (:mod:`auditord.client.http`)."""
        from auditord.client.http import open_client  # noqa: PLC0415 a command on a file needs no aiohttp

        return open_client(options or HttpOptions())


@dataclass(eq=False, kw_only=True)
class SpoolCollectorContext(InstanceContext):
    """A collector's context over the spool.

    Args:
        checkpoint: the checkpoint at the start of the run.
        window: the period to collect again, if any.
        job: the job to collect again, if any.
        dry_run: whether the batches are only shown.
        on_progress: receives the done fraction of the run.
    """

    spool: Spool
    checkpoint: Any  # Any: the JSON that the collector stored
    window: Window | None = None
    job: JobChoice | None = None
    dry_run: bool = False
    on_progress: Callable[[float], None] | None = None

    @property
    def instance_dir(self) -> Path:
        """The instance's private folder, created on first use."""
        return own_folder(self.spool.state_dir, self.instance)

    async def seen(self, keys: Collection[str]) -> frozenset[str]:
        """Return the keys among these that are remembered."""
        return await self.spool.seen(self.instance, keys)

    async def pending(self) -> Mapping[str, Any]:  # Any: the JSON that the collector stored
        """Return the values that earlier batches have stored."""
        return await self.spool.pending(self.instance)

    def report_progress(self, fraction: float) -> None:
        """Report the fraction of the run that is done."""
        if self.on_progress is not None:
            self.on_progress(fraction)


@dataclass(eq=False, kw_only=True)
class StorePluginContext(InstanceContext):
    """A plugin's context.

    Args:
        state: the plugin's state (JSON) at the start of the run.
        own_records: the redactor, if the records are this daemon's.
        dry_run: whether effects are only shown and the state is not saved.
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
            raise AuditordError(f"{self.instance}: only this daemon's own records can be changed: leave out source")
        return self.own_records

    def show(self, text: str) -> None:
        """Show a text to the observer, or in the log."""
        if self.observer is None:
            self.log.info(text)
        else:
            self.observer.printed(text)

    def report_progress(self, fraction: float) -> None:
        """Report the fraction of the run that is done."""
        if self.observer is not None:
            self.observer.progressed(fraction)

    async def save_state(self, state: Any) -> None:  # Any: the JSON that the plugin stores
        """Save JSON for the next run; a dry run does not store it."""
        if not self.dry_run:
            await self.memory.save(state, self.now())
        self.state = state


@dataclass(eq=False, kw_only=True)
class StoreSenderContext(InstanceContext):
    """A sender's context, with the local record store as a destination."""

    store: RecordSink


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
        where = tuple(filter(has_words, flattened(query.where)))
        # A limit would count records that are filtered out here; then the client refuses the query instead.
        asked = query if query.limit is not None else replace(query, where=AllOf(where))
        async with self._client.stream(asked) as records, aclosing(_chosen(records, query.where)) as chosen:
            yield chosen

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums over the matching records: computed by an auditord, or from the stream of an AUDITOR."""
        return await self._client.aggregate(query)


async def _chosen(records: AsyncIterator[Record], where: Condition) -> AsyncGenerator[Record, None]:
    async for record in records:
        if matches(record, where):
            yield record


def remote_source(config: InstanceConfig) -> RemoteSource | None:
    """Return the server with a plugin's records; None if they are this daemon's."""
    source = config.source if isinstance(config, PluginConfig) else "local"
    return None if source == "local" else source


@asynccontextmanager
async def opened_records(config: InstanceConfig, local: Records | None) -> AsyncGenerator[Records, None]:
    """Yield the records that a plugin works on; ``local`` are this daemon's, if it works on those.

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
    """Stores a plugin's state: the record store, so that another daemon may take over.

    For a plugin with a remote ``source``, it is the spool.
    """

    def memory(
        self, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None = None
    ) -> AbstractAsyncContextManager[PluginMemory]:
        """Open a plugin's memory; see :meth:`auditord.store.protocol.RecordStore.memory`."""
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
    """Yield the context of one run. Until it is left, no daemon of the same database runs this plugin.

    Args:
        instance: the part of the context that every instance has.
        config: the plugin's section of the configuration.
        states: stores its state.
        local: this daemon's records, for a plugin that works on them.
        backups: makes backups of this daemon.
        occasion: why it runs; leaving without an error marks the run as done for other daemons.
        dry_run: whether nothing is done or saved, which needs no turn.
        observer: receives log and output.

    Raises:
        RanElsewhere: another daemon has run the plugin on the same occasion.
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
    return lambda: instance.log.warning("waits: it is running on another daemon")
