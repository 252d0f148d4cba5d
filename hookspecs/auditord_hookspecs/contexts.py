"""The contexts of running instances: all that hook modules see of the host."""

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from auditord_hookspecs.aggregates import AggregateQuery, Aggregates
from auditord_hookspecs.entries import Entry
from auditord_hookspecs.http import HttpClient, HttpOptions
from auditord_hookspecs.query import RecordQuery, Window
from auditord_hookspecs.records import Record


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The output of a child process that ended with exit code 0.

    Args:
        stdout: all that it printed.
        stderr: its last words.
    """

    stdout: bytes
    stderr: bytes


class CommandOutput(Protocol):
    """The output of a child process, while it prints; iterating raises CommandFailed where it ended badly."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield pieces of standard output, some megabytes at most. The child waits while no piece is requested."""
        ...

    @property
    def stderr(self) -> bytes:
        """The last words of the program on standard error so far."""
        ...


@dataclass(frozen=True, slots=True)
class JobChoice:
    """One job to collect again.

    Args:
        job_id: what its batch system calls it.
        source: where it ran, if the collector reads several places (a schedd); None: anywhere.
    """

    job_id: str
    source: str | None = None


class Context(Protocol):
    """The part of the context that every kind of instance gets."""

    @property
    def instance(self) -> str:
        """The instance's name in the configuration."""
        ...

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that names the instance: ``context.log.info("%d jobs", count)``, never a secret or a token."""
        ...

    def now(self) -> datetime:
        """Return the present instant, aware and in UTC; tests stop it."""
        ...

    async def run_command(
        self,
        argv: Sequence[str],
        *,
        timeout: timedelta,
        environment: Mapping[str, str] | None = None,
        through: Sequence[str] = (),
        max_output: int = 256 * 1024 * 1024,
    ) -> CommandResult:
        """Run a child process without a shell and return what it printed.

        Args:
            argv: the program and its arguments.
            timeout: after this long it is killed, with its process group.
            environment: added to what every child gets: ``environment`` of the instance's section, and of the daemon's
                own variables those that say where things are (``PATH``, ``HOME``, ``LANG``, ``CONDOR_CONFIG``,
                ``SLURM_CONF``, ``KUBECONFIG`` and the like); of one name in several of them, this one counts.
            through: a program that runs a command line elsewhere, such as ``["ssh", "head1"]``: it gets one argument,
                ``env NAME=value … argv`` quoted for a shell, since ssh forwards no environment.
            max_output: bytes of standard output above which it is killed.

        Raises:
            CommandFailed: it could not start, exited non-zero, was killed, or printed too much; with its last words.

        Example::

            listed = await context.run_command(["qstat", "-x", "-f"], timeout=timedelta(minutes=5))
            lines = listed.stdout.decode(errors="replace").splitlines()
        """
        ...

    def stream_command(
        self,
        argv: Sequence[str],
        *,
        timeout: timedelta,
        environment: Mapping[str, str] | None = None,
        through: Sequence[str] = (),
        max_output: int | None = None,
    ) -> AbstractAsyncContextManager[CommandOutput]:
        """Run a child process whose output may be larger than memory; it is killed when the block is left.

        Args:
            argv: as for :meth:`run_command`, likewise ``environment`` and ``through``.
            timeout: it is killed if it neither prints nor ends for this long while a piece is awaited.
            environment: added to that of the daemon.
            through: how to run it elsewhere.
            max_output: bytes of standard output above which it is killed; None: any number.

        Raises:
            CommandFailed: it could not start. Later errors are raised by the iteration.
        """
        ...

    def http(self, options: HttpOptions | None = None) -> AbstractAsyncContextManager[HttpClient]:
        """Open a client for requests to servers elsewhere: ``async with context.http(HttpOptions(…)) as client``.

        Proxy, TLS, time limits, bounds of answers and retries are the same for all hook modules.

        Raises:
            AuditordError: the TLS files cannot be used.

        Example::

            async with context.http(HttpOptions(timeout=timedelta(seconds=20))) as client:
                answer = await client.request("GET", "https://batch.example.org/jobs")
            if not answer.ok:
                raise AuditordError(f"{answer.request} was answered {answer.status}: {answer.text}")
        """
        ...


class CollectorContext(Context, Protocol):
    """The context of a collector's run."""

    @property
    def checkpoint(self) -> Any:  # Any: the JSON that the collector itself stored
        """The last durable checkpoint, or None before the first one."""
        ...

    @property
    def window(self) -> Window | None:
        """Set when a period is collected again: read exactly this, leave the checkpoint alone."""
        ...

    @property
    def job(self) -> JobChoice | None:
        """Set when one job is collected again (kinds with ``one_job``): read it alone, leave the checkpoint alone."""
        ...

    @property
    def dry_run(self) -> bool:
        """True: the batches are only shown, so nothing at the source may be moved or removed."""
        ...

    @property
    def instance_dir(self) -> Path:
        """A folder below ``state_dir`` for files of this instance alone, which no other user can reach (mode 0700).

        It is made when it is asked for.

        Raises:
            AuditordError: it cannot be made, or is not the daemon's own.
        """
        ...

    async def seen(self, keys: Collection[str]) -> frozenset[str]:
        """The keys among these that an earlier batch of this instance asked to remember, and that have not expired.

        Example::

            known = await context.seen([job_id for job_id in jobs])
            new = [job_id for job_id in jobs if job_id not in known]
        """
        ...

    async def pending(self) -> Mapping[str, Any]:  # Any: the JSON that the collector itself stored
        """Return the values that earlier batches of this instance have left (``Batch.pending``), by key.

        Example::

            running = await context.pending()
            ended = {job_id: None for job_id in running if job_id not in jobs}  # as Batch.pending: forget these
        """
        ...

    def report_progress(self, fraction: float) -> None:
        """Say how much of this run is done, 0 to 1; shown by ``auditord collect``."""
        ...


class Records(Protocol):
    """The records, wherever they are kept."""

    def stream(self, query: RecordQuery) -> AbstractAsyncContextManager[AsyncIterator[Record]]:
        """The matching records in the query's order, with bounded memory; a fault raises, it never ends early."""
        ...

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Sums over the matching records, made by the store: nothing but the answer is transferred."""
        ...


class PluginContext(Context, Protocol):
    """The context of a plugin's run."""

    @property
    def records(self) -> Records:
        """The records to work on."""
        ...

    @property
    def dry_run(self) -> bool:
        """True: :meth:`show` what would be done and do nothing."""
        ...

    def show(self, text: str) -> None:
        """Show a text where this run was asked for: a command's standard output, the answer to a dry run over the API.

        In a scheduled run, the text goes to the log.
        """
        ...

    def report_progress(self, fraction: float) -> None:
        """Say how much of this run is done, 0 to 1; shown by ``auditord trigger``."""
        ...

    @property
    def redactor(self) -> "Redactor":
        """Takes personal data out of the records.

        Raises:
            AuditordError: the records are not this daemon's own.
        """
        ...

    @property
    def backups(self) -> "Backups":
        """Makes backups of this daemon's record store and spool."""
        ...

    @property
    def state(self) -> Any:  # Any: the JSON that the plugin itself saved
        """The JSON that the last ``save_state`` kept, or None."""
        ...

    async def save_state(self, state: Any) -> None:
        """Keep JSON for the next run, durably; call it right after each effect that must not repeat."""
        ...


class Redactor(Protocol):
    """Takes meta out of this daemon's records, for good; sums stay, but for those by the keys that are gone.

    A dry run is the caller's to honour.
    """

    async def redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """Take the keys out of some hundred records, and out of what they were before; returns how many had any.

        One transaction, safe to repeat. Senders forward nothing of it.
        """
        ...

    async def redact_leftovers(self, before: datetime, keys: Collection[str]) -> int:
        """Take the keys out of former versions, and forget records that came again with other content.

        Returns how many there were of records that ended before the instant.
        """
        ...


class Backups(Protocol):
    """Makes backups of this daemon's record store and spool, as ``auditord backup`` does."""

    async def make(self, folder: Path, *, keep: int, rate: int | None, dump: bool) -> Path:
        """Make a backup in a new folder, which is returned.

        Args:
            folder: gets a folder for each backup.
            keep: how many of them stay.
            rate: bytes per second that are read of SQLite files at most; None: any number.
            dump: whether pg_dump writes a record store in PostgreSQL into it.

        Raises:
            AuditordError: it could not be made; nothing is left of it, and the older ones stay.
        """
        ...


class SenderContext(Context, Protocol):
    """The context of a sender."""

    @property
    def store(self) -> "RecordSink":
        """The local record store, for the sender that writes to it."""
        ...


class RecordSink(Protocol):
    """The local record store as a destination."""

    async def deliver(self, entries: Sequence[Entry]) -> Mapping[int, str]:
        """Apply the entries in order, durably; returns why entries were refused for good, by position."""
        ...


class Daemon(Protocol):
    """The running daemon, as hooks see it."""

    @property
    def version(self) -> str:
        """The version of auditord."""
        ...

    @property
    def records(self) -> Records:
        """The records that this daemon keeps."""
        ...
