"""The contexts that the host passes to running instances: all of the host that a hook module can use.

``auditord.contexts`` implements these protocols, and ``auditord.testing`` has fakes.
"""

import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec

from auditord_hookspecs.aggregates import AggregateQuery, Aggregates
from auditord_hookspecs.entries import Entry
from auditord_hookspecs.http import HttpClient, HttpOptions
from auditord_hookspecs.query import RecordQuery, Window
from auditord_hookspecs.records import Record


class CommandResult(msgspec.Struct, frozen=True):
    """The output of a child process that ended with exit code 0.

    Args:
        stdout: the complete standard output.
        stderr: the last part of standard error.
    """

    stdout: bytes
    stderr: bytes


class CommandOutput(Protocol):
    """The output of a running child process. Iteration raises CommandFailed if the process fails."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield chunks of standard output of up to some megabytes. The child waits until the next one is requested."""
        ...

    @property
    def stderr(self) -> bytes:
        """The last part of standard error so far."""
        ...


class JobChoice(msgspec.Struct, frozen=True):
    """One job to collect again.

    Args:
        job_id: the batch system's id of the job; several, separated by commas, for kinds with ``jobs_at_once``.
        source: the schedd or other source of the job, if the collector reads several; None: any.
    """

    job_id: str
    source: str | None = None


class Context(Protocol):
    """The part of the context that instances of all kinds have."""

    @property
    def instance(self) -> str:
        """The instance's name in the configuration."""
        ...

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that names the instance: ``context.log.info("%d jobs", count)``, never a secret or a token."""
        ...

    def now(self) -> datetime:
        """Return the current time, aware and in UTC; tests set it."""
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
        """Run a child process without a shell and return its output.

        Args:
            argv: the program and its arguments.
            timeout: the process and its process group are killed after this long.
            environment: additional variables. They override the option ``environment`` of the instance's section, which
                overrides the inherited variables. Only ``PATH``, ``HOME``, ``LANG``, ``CONDOR_CONFIG``, ``SLURM_CONF``,
                ``KUBECONFIG`` and similar variables are inherited.
            through: a program that runs a command elsewhere, such as ``["ssh", "head1"]`` or ``["chroot", "/ap1"]``.
                The words ``env NAME=value … argv`` follow it, since most such programs do not forward the environment.
                If a word ends in ``ssh`` or the last one is ``-c``, they are one argument, quoted for a shell.
            max_output: the process is killed if it prints more bytes to standard output.

        Raises:
            CommandFailed: the process could not start, exited non-zero, was killed, or printed too much. The error
                contains the last part of standard error.

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
        """Run a child process whose output may be larger than memory. It is killed when the block is left.

        Args:
            argv: the program and its arguments.
            timeout: the process is killed if it neither prints nor ends for this long while a chunk is awaited.
            environment: as for :meth:`run_command`.
            through: as for :meth:`run_command`.
            max_output: the process is killed if it prints more bytes to standard output; None: no limit.

        Raises:
            CommandFailed: the process could not start. Later errors are raised by the iteration.
        """
        ...

    def http(self, options: HttpOptions | None = None) -> AbstractAsyncContextManager[HttpClient]:
        """Open an HTTP client: ``async with context.http(HttpOptions(…)) as client``.

        Proxy, TLS, time limits, sizes of answers and retries work the same for all hook modules.

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
        """The period that an operator collects again, or None. Read all of it and no more; keep the checkpoint."""
        ...

    @property
    def job(self) -> JobChoice | None:
        """The job that an operator collects again, or None (needs ``one_job``). Read only it; keep the checkpoint."""
        ...

    @property
    def dry_run(self) -> bool:
        """True if batches are only shown: do not move or remove anything at the source."""
        ...

    @property
    def instance_dir(self) -> Path:
        """A private folder below ``state_dir`` for files of this instance (mode 0700). Reading the property creates it.

        Raises:
            AuditordError: the folder cannot be created, or does not belong to the daemon.
        """
        ...

    async def find_seen(self, keys: Collection[str]) -> frozenset[str]:
        """Return the subset of the keys that earlier batches remembered (``Batch.seen``) and that have not expired.

        Example::

            known = await context.find_seen([job_id for job_id in jobs])
            new = [job_id for job_id in jobs if job_id not in known]
        """
        ...

    async def pending(self) -> Mapping[str, Any]:  # Any: the JSON that the collector itself stored
        """Return the values that earlier batches of this instance stored (``Batch.pending``), by key.

        Example::

            running = await context.pending()
            ended = {job_id: None for job_id in running if job_id not in jobs}  # as Batch.pending: forget these
        """
        ...

    def report_progress(self, fraction: float) -> None:
        """Report the completed fraction of this run, from 0 to 1; ``auditord collect`` shows it."""
        ...


class Records(Protocol):
    """Read access to records: those of this daemon, or of the server in the option ``source``."""

    def stream(self, query: RecordQuery) -> AbstractAsyncContextManager[AsyncIterator[Record]]:
        """Stream the matching records in the query's order, with bounded memory. A truncated answer raises."""
        ...

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums over the matching records, computed by the store."""
        ...


class PluginContext(Context, Protocol):
    """The context of a plugin's run."""

    @property
    def records(self) -> Records:
        """The records to work on."""
        ...

    @property
    def dry_run(self) -> bool:
        """True if the run must only :meth:`show` its effects."""
        ...

    def show(self, text: str) -> None:
        """Show a text to the caller of this run: on a command's standard output, or in the API's answer to a dry run.

        In a scheduled run, the text goes to the log.
        """
        ...

    def report_progress(self, fraction: float) -> None:
        """Report the completed fraction of this run, from 0 to 1; ``auditord trigger`` shows it."""
        ...

    @property
    def redactor(self) -> "Redactor":
        """The redactor, which removes personal data from records.

        Raises:
            AuditordError: the records are not this daemon's own.
        """
        ...

    @property
    def backups(self) -> "Backups":
        """The backups of this daemon's record store and spool."""
        ...

    @property
    def state(self) -> Any:  # Any: the JSON that the plugin itself saved
        """The JSON from the last ``save_state``, or None."""
        ...

    async def save_state(self, state: Any) -> None:
        """Save JSON durably for the next run. Call this right after each effect that must not be repeated."""
        ...


class Redactor(Protocol):
    """Permanently removes meta from this daemon's records. Only sums by the removed keys change.

    The caller must handle dry runs.
    """

    async def redact(self, record_ids: Sequence[str], keys: Collection[str]) -> int:
        """Remove the keys from some hundred records and their former versions; return how many records had one of them.

        Runs in one transaction, and is safe to repeat. Senders do not forward the change.
        """
        ...

    async def redact_leftovers(self, before: datetime, keys: Collection[str]) -> int:
        """Remove the keys from all other data about records that ended before an instant.

        Former versions lose the keys. Copies of records that arrived again with different content are deleted. Returns
        the number of former versions and copies that had one of the keys.
        """
        ...


class Backups(Protocol):
    """Makes backups of this daemon's record store and spool, as ``auditord backup`` does."""

    async def make(self, folder: Path, *, keep: int, rate: int | None, dump: bool) -> Path:
        """Make a backup and return its folder.

        Args:
            folder: the folder of all backups.
            keep: how many backups to keep.
            rate: the maximum number of bytes per second to read from SQLite files; None: no limit.
            dump: whether to dump a record store in PostgreSQL with pg_dump.

        Raises:
            AuditordError: the backup failed; it leaves nothing behind, and older backups stay.
        """
        ...


class SenderContext(Context, Protocol):
    """The context of a sender."""

    @property
    def store(self) -> "RecordSink":
        """The local record store; the sender ``local`` writes to it."""
        ...


class RecordSink(Protocol):
    """The local record store as a destination."""

    async def deliver(self, entries: Sequence[Entry]) -> Mapping[int, str]:
        """Apply the entries durably, in order; return why entries were refused permanently, by their positions."""
        ...


class Daemon(Protocol):
    """The running daemon, as hooks see it."""

    @property
    def version(self) -> str:
        """The version of auditord."""
        ...

    @property
    def records(self) -> Records:
        """The records of this daemon."""
        ...
