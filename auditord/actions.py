"""Requests of operators to the daemon, beyond reading: run an instance, empty quarantine, change single records.

Commands ask this of the process that owns the state folder: over the control socket while a daemon runs, directly where
none does.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeAlias

import msgspec

from auditord.audit.values import AuditReport, AuditRequest
from auditord_hookspecs import Batch, JobChoice, Record, RunReport, Window

Section: TypeAlias = Literal["collectors", "plugins"]


class RunRequest(msgspec.Struct, frozen=True):
    """One run of a collector or a plugin on demand.

    Args:
        window: the period that a collector collects again; None continues from the checkpoint.
        replace: overwrite the stored records of the same runs, to correct a mistake in a collector's configuration.
        dry_run: show what a collector would keep, or a plugin would do; keep and do nothing.
        section: what the caller takes the instance for; None if either will do.
        job: the one job that a collector collects again.
    """

    instance: str
    window: Window | None = None
    replace: bool = False
    dry_run: bool = False
    section: Section | None = None
    job: JobChoice | None = None

    @property
    def again(self) -> bool:
        """True if something is collected that the checkpoint does not lead to; then it does not move."""
        return self.window is not None or self.job is not None


class PluginObserver(Protocol):
    """Receives the log, output and progress of a plugin."""

    def progressed(self, fraction: float) -> None:
        """Receive the fraction of the run that is done, 0 to 1."""
        ...

    def said(self, line: str) -> None:
        """Receive a log message of level INFO or higher."""
        ...

    def printed(self, text: str) -> None:
        """Receive output: in a dry run, what the plugin would do."""
        ...


class Observer(PluginObserver, Protocol):
    """Receives what happens in a run on demand."""

    async def shown(self, batch: Batch) -> None:
        """Receive what a collector's dry run would have kept."""
        ...


class Retried(msgspec.Struct, frozen=True):
    """The result of a retry.

    Args:
        queued: how many records are on their way now.
        settled: how many entries left quarantine (some jobs make no record under today's configuration).
        failed: the remaining fault, by the entry's number.
    """

    queued: int
    settled: int
    failed: Mapping[int, str] = msgspec.field(default_factory=dict[int, str])


class Note(msgspec.Struct, frozen=True):
    """The remark that is kept with a change of records: its reason, and the name of its author."""

    reason: str
    by: str


class Closing(msgspec.Struct, frozen=True):
    """The stop of an open record: an instant, or the time after its start."""

    record_id: str
    stop: datetime | timedelta


class Outcome(msgspec.Struct, frozen=True):
    """The result of a request to change a record.

    Args:
        outcome: ``done``; ``same`` (it was like that already); ``changed`` (refused: it was changed after the operator
            had looked at it); ``missing`` (refused: there is no such record); ``refused`` (it would make no sense).
    """

    record_id: str
    outcome: Literal["done", "same", "changed", "missing", "refused"]
    detail: str | None = None


class RecordActions(Protocol):
    """Changes of single records; what they were before is kept.

    Every method raises ``InvalidRecord`` if the note cannot be kept, and ``StoreUnavailable`` if the store is away.
    """

    async def correct(self, record: Record, seen: Record | None, note: Note) -> Outcome:
        """Put a record in the place of the stored one, if that is (still) the one that was seen."""
        ...

    async def close(self, closings: Sequence[Closing], note: Note) -> Sequence[Outcome]:
        """Give open records their stop times."""
        ...

    async def delete(self, ids: Sequence[str], note: Note) -> Sequence[Outcome]:
        """Delete records."""
        ...


class Actions(Protocol):
    """The requests that the owner of the state folder meets."""

    @property
    def records(self) -> RecordActions:
        """The changes of single records."""
        ...

    async def run(self, request: RunRequest, observer: Observer) -> RunReport:
        """Run a collector or a plugin once, after any current run.

        Raises:
            UnknownInstance: no enabled collector or plugin has this name.
            UnsuitableRequest: a plugin has neither period, job nor corrections; not every collector knows single jobs.
        """
        ...

    async def audit(self, request: AuditRequest, observer: Observer | None) -> AuditReport:
        """Compare a source's inventory with the record store, after any current run.

        Raises:
            UnknownInstance: no enabled collector has this name.
            UnsuitableRequest: its kind has no inventory, or its records go elsewhere.
        """
        ...

    async def retry(self, ids: Sequence[int]) -> Retried:
        """Give entries of the quarantine a second chance."""
        ...

    async def discard(self, ids: Sequence[int]) -> int:
        """Forget entries of the quarantine; returns how many there were."""
        ...
