"""The contexts of collectors, plugins and senders over the real spool and store."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from auditord.contexts.command import CommandRunner
from auditord.database.durable_files import make_private_folder
from auditord.database.memory import PluginMemory
from auditord.spool import Spool
from auditord_hookspecs import (
    AuditordError,
    Backups,
    HttpClient,
    HttpOptions,
    InstanceConfig,
    JobChoice,
    Records,
    RecordSink,
    Redactor,
    RunConfig,
    Window,
)

INSTANCES: Final = "instances"
"""The folder below the state folder for files of one instance each."""

TaskLog: TypeAlias = "logging.LoggerAdapter[logging.Logger]"


def task_log(task: str, kind: str) -> TaskLog:
    """A logger whose lines name the instance and its kind."""
    return logging.LoggerAdapter(logging.getLogger("auditord.task"), {"task": task, "kind": kind})


def environment_of(config: InstanceConfig) -> Mapping[str, str]:
    """The variables that an instance's section gives to its child processes."""
    return config.environment if isinstance(config, RunConfig) else {}


def own_folder(state_dir: Path, instance: str) -> Path:
    """The folder of an instance, which no other user can reach; made if it is missing.

    Raises:
        AuditordError: it cannot be made, or is not this user's.
    """
    folder = state_dir / INSTANCES / instance
    try:
        make_private_folder(folder, 0o700)
        folder.chmod(0o700)  # a volume's owner may have opened it to a group (fsGroup)
    except OSError as error:
        raise AuditordError(f"{folder} cannot be used: {error.strerror}: it must be the daemon's own") from error
    return folder


class PluginObserver(Protocol):
    """The receiver of a plugin's words, and of its progress."""

    def said(self, line: str) -> None:
        """Receive a line of its log, from INFO on."""
        ...

    def printed(self, text: str) -> None:
        """Receive a text that it shows."""
        ...

    def progressed(self, fraction: float) -> None:
        """Receive the fraction of the run that is done, 0 to 1."""
        ...


class ObservedLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines an observer receives besides."""

    def __init__(self, log: TaskLog, observer: PluginObserver) -> None:
        super().__init__(log.logger, {**(log.extra or {}), "observed": True})
        self._observer = observer

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:  # Any: logging's own
        """Log a line, and pass it on from INFO on."""
        super().log(level, msg, *args, **kwargs)
        if level >= logging.INFO:
            self._observer.said(str(msg) % args if args else str(msg))


@dataclass(eq=False)
class InstanceContext(CommandRunner):
    """The part of the context that every instance gets.

    Args:
        environment: variables that its child processes get besides, as configured.
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
        """The present instant."""
        return self.clock()

    def http(self, options: HttpOptions | None = None) -> AbstractAsyncContextManager[HttpClient]:
        """Open a client for requests to servers elsewhere (:mod:`auditord.client.http`)."""
        from auditord.client.http import open_client  # noqa: PLC0415 a command on a file needs no aiohttp

        return open_client(options or HttpOptions())


@dataclass(eq=False, kw_only=True)
class SpoolCollectorContext(InstanceContext):
    """A collector's context over the spool.

    Args:
        checkpoint: how far it has read, as loaded before the run.
        window: the period to collect again, if that is asked for.
        job: the one job to collect again, if that is asked for.
        dry_run: whether the batches are only shown.
        on_progress: receives the fraction of the run that is done.
    """

    spool: Spool
    checkpoint: Any  # Any: the JSON that the collector stored
    window: Window | None = None
    job: JobChoice | None = None
    dry_run: bool = False
    on_progress: Callable[[float], None] | None = None

    @property
    def instance_dir(self) -> Path:
        """The instance's own folder, made when it is asked for."""
        return own_folder(self.spool.state_dir, self.instance)

    async def seen(self, keys: Collection[str]) -> frozenset[str]:
        """The keys among these that are remembered."""
        return await self.spool.seen(self.instance, keys)

    async def pending(self) -> Mapping[str, Any]:  # Any: the JSON that the collector stored
        """The values that earlier batches have left for later ones."""
        return await self.spool.pending(self.instance)

    def report_progress(self, fraction: float) -> None:
        """Say how much of this run is done."""
        if self.on_progress is not None:
            self.on_progress(fraction)


@dataclass(eq=False, kw_only=True)
class StorePluginContext(InstanceContext):
    """A plugin's context.

    Args:
        state: JSON that it kept, as loaded before the run.
        own_records: the redactor of the records, if they are this daemon's own.
        dry_run: whether effects are only shown; state is not saved then.
        observer: receives what it logs and shows; without one, what it shows is logged.
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
        """A logger that names the instance, and informs the observer."""
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
        """Say how much of this run is done."""
        if self.observer is not None:
            self.observer.progressed(fraction)

    async def save_state(self, state: Any) -> None:  # Any: the JSON that the plugin stores
        """Keep JSON for the next run; a dry run keeps it for itself."""
        if not self.dry_run:
            await self.memory.save(state, self.now())
        self.state = state


@dataclass(eq=False, kw_only=True)
class StoreSenderContext(InstanceContext):
    """A sender's context, with the local record store as a destination."""

    store: RecordSink


@dataclass(frozen=True)
class HostDaemon:
    """The running daemon, as hooks see it: auditord's version, and the records that it keeps."""

    version: str
    records: Records
