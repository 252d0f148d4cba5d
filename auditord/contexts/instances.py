"""The contexts of collectors, plugins and senders over the real spool and store."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from auditord.contexts.command import run_command
from auditord.contexts.folders import own_folder
from auditord.contexts.streaming import stream_command
from auditord.database.memory import PluginMemory
from auditord.spool import Spool
from auditord_hookspecs import (
    AuditordError,
    CommandOutput,
    CommandResult,
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


def task_log(task: str, kind: str) -> "logging.LoggerAdapter[logging.Logger]":
    """A logger whose lines name the instance and its kind."""
    return logging.LoggerAdapter(logging.getLogger("auditord.task"), {"task": task, "kind": kind})


class ObservedLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that somebody listens to.

    Args:
        log: where the lines go as always.
        hear: gets each line from INFO on.
    """

    def __init__(self, log: "logging.LoggerAdapter[logging.Logger]", hear: Callable[[str], None]) -> None:
        super().__init__(log.logger, {**(log.extra or {}), "heard": True})
        self._hear = hear

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:  # Any: logging's own
        """Log a line, and let it be heard."""
        super().log(level, msg, *args, **kwargs)
        if level >= logging.INFO:
            self._hear(str(msg) % args if args else str(msg))


def environment_of(config: InstanceConfig) -> Mapping[str, str]:
    """The variables that an instance's section gives to its child processes."""
    return config.environment if isinstance(config, RunConfig) else {}


class InstanceContext:
    """What every instance is lent.

    Args:
        instance: the instance's name.
        kind: the kind's name.
        now: the present instant.
        environment: what its child processes get besides, as configured.
    """

    def __init__(
        self, instance: str, kind: str, now: Callable[[], datetime], environment: Mapping[str, str] | None = None
    ) -> None:
        self._instance = instance
        self._log = task_log(instance, kind)
        self._now = now
        self._environment = environment or {}

    @property
    def instance(self) -> str:
        """The instance's name in the configuration."""
        return self._instance

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that names the instance."""
        return self._log

    def now(self) -> datetime:
        """The present instant."""
        return self._now()

    async def run_command(
        self,
        argv: Sequence[str],
        *,
        timeout: timedelta,
        environment: Mapping[str, str] | None = None,
        through: Sequence[str] = (),
        max_output: int = 256 * 1024 * 1024,
    ) -> CommandResult:
        """Run a child process (:func:`auditord.contexts.command.run_command`)."""
        variables = {**self._environment, **(environment or {})}
        return await run_command(argv, timeout=timeout, environment=variables, through=through, max_output=max_output)

    def stream_command(
        self,
        argv: Sequence[str],
        *,
        timeout: timedelta,
        environment: Mapping[str, str] | None = None,
        through: Sequence[str] = (),
        max_output: int | None = None,
    ) -> AbstractAsyncContextManager[CommandOutput]:
        """Run a child process and read while it prints (:func:`auditord.contexts.streaming.stream_command`)."""
        variables = {**self._environment, **(environment or {})}
        return stream_command(argv, timeout=timeout, environment=variables, through=through, max_output=max_output)

    def http(self, options: HttpOptions | None = None) -> AbstractAsyncContextManager[HttpClient]:
        """Open a client for requests to servers elsewhere (:mod:`auditord.client.http`)."""
        from auditord.client.http import open_client  # noqa: PLC0415 a command on a file needs no aiohttp

        return open_client(options or HttpOptions())


class SpoolCollectorContext(InstanceContext):
    """A collector's context over the spool.

    Args:
        instance: the instance's name.
        kind: the kind's name.
        now: the present instant.
        spool: where its memory is.
        checkpoint: how far it has read, as loaded before the run.
        window: the period to collect again, if that is asked for.
        job: the one job to collect again, if that is asked for.
        dry_run: whether the batches are only shown.
        on_progress: hears which fraction of the run is done.
        environment: what its child processes get besides, as configured.
    """

    def __init__(
        self,
        instance: str,
        kind: str,
        now: Callable[[], datetime],
        *,
        spool: Spool,
        checkpoint: Any,  # Any: the JSON that the collector stored
        window: Window | None = None,
        job: JobChoice | None = None,
        dry_run: bool = False,
        on_progress: Callable[[float], None] = lambda _: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(instance, kind, now, environment)
        self._spool = spool
        self._checkpoint = checkpoint
        self._window = window
        self._job = job
        self._dry_run = dry_run
        self._on_progress = on_progress

    @property
    def checkpoint(self) -> Any:  # Any: the JSON that the collector stored
        """The last durable checkpoint, or None."""
        return self._checkpoint

    @property
    def window(self) -> Window | None:
        """The period to collect again, or None."""
        return self._window

    @property
    def job(self) -> JobChoice | None:
        """The one job to collect again, or None."""
        return self._job

    @property
    def dry_run(self) -> bool:
        """Whether the batches are only shown."""
        return self._dry_run

    @property
    def instance_dir(self) -> Path:
        """The instance's own folder, made when it is asked for."""
        return own_folder(self._spool.state_dir, self._instance)

    async def seen(self, keys: Collection[str]) -> frozenset[str]:
        """Which of the keys are remembered."""
        return await self._spool.seen(self._instance, keys)

    async def pending(self) -> Mapping[str, Any]:  # Any: the JSON that the collector stored
        """What earlier batches carried over."""
        return await self._spool.pending(self._instance)

    def report_progress(self, fraction: float) -> None:
        """Say how much of this run is done."""
        self._on_progress(fraction)


@dataclass(frozen=True, slots=True)
class Watching:
    """Who watches a plugin work.

    Args:
        said: hears every line that it logs, from INFO on.
        shown: gets every text that it shows.
    """

    said: Callable[[str], None]
    shown: Callable[[str], None]


class StorePluginContext(InstanceContext):
    """A plugin's context.

    Args:
        instance: the instance's name.
        kind: the kind's name.
        now: the present instant.
        memory: where its state is.
        records: what it works on.
        state: what it kept, as loaded before the run.
        redactor: of the records, if they are this daemon's own.
        dry_run: whether effects are only shown; state is not saved then.
        watching: who sees what it logs and shows; what it shows to nobody is logged.
        environment: what its child processes get besides, as configured.
    """

    def __init__(
        self,
        instance: str,
        kind: str,
        now: Callable[[], datetime],
        *,
        memory: PluginMemory,
        records: Records,
        state: Any,  # Any: the JSON that the plugin stored
        redactor: Redactor | None,
        dry_run: bool = False,
        watching: Watching | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(instance, kind, now, environment)
        self._show = self._log.info if watching is None else watching.shown
        if watching is not None:
            self._log = ObservedLog(self._log, watching.said)
        self._memory = memory
        self._records = records
        self._redactor = redactor
        self._state = state
        self._dry_run = dry_run

    @property
    def records(self) -> Records:
        """The records to work on."""
        return self._records

    @property
    def redactor(self) -> Redactor:
        """Takes personal data out of the records."""
        if self._redactor is None:
            raise AuditordError(f"{self.instance}: only this daemon's own records can be changed: leave out source")
        return self._redactor

    @property
    def dry_run(self) -> bool:
        """Whether effects are only shown."""
        return self._dry_run

    def show(self, text: str) -> None:
        """Show a text to whoever watches."""
        self._show(text)

    @property
    def state(self) -> Any:  # Any: the JSON that the plugin stored
        """What the last :meth:`save_state` kept."""
        return self._state

    async def save_state(self, state: Any) -> None:  # Any: the JSON that the plugin stores
        """Keep JSON for the next run; a dry run keeps it for itself."""
        if not self._dry_run:
            await self._memory.save(state, self._now())
        self._state = state


class StoreSenderContext(InstanceContext):
    """A sender's context over the record store.

    Args:
        instance: the instance's name.
        kind: the kind's name.
        now: the present instant.
        store: the local record store as a destination.
    """

    def __init__(self, instance: str, kind: str, now: Callable[[], datetime], *, store: RecordSink) -> None:
        super().__init__(instance, kind, now)
        self._store = store

    @property
    def store(self) -> RecordSink:
        """The local record store."""
        return self._store


class HostDaemon:
    """The running daemon, as hooks see it.

    Args:
        version: of auditord.
        records: those that it keeps.
    """

    def __init__(self, version: str, records: Records) -> None:
        self._version = version
        self._records = records

    @property
    def version(self) -> str:
        """The version of auditord."""
        return self._version

    @property
    def records(self) -> Records:
        """The records that this daemon keeps."""
        return self._records
