"""Operators' requests that change something: run or audit an instance, empty the quarantine, change single records.

The process that owns the state folder carries them out. Commands reach a running daemon over its control socket. If no
daemon runs, the command owns the state folder itself.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from auditord.audit.values import AuditReport, AuditRequest
from auditord.errors import UnknownInstance
from auditord_hookspecs import Batch, JobChoice, Record, RunReport, Window

Section: TypeAlias = Literal["collectors", "plugins"]

RUN_SECTIONS: Final[tuple[Section, Section]] = ("collectors", "plugins")
"""The sections whose instances run at intervals."""


class RunRequest(msgspec.Struct, frozen=True):
    """One run of a collector or a plugin on demand.

    Args:
        window: the period that a collector collects again; None continues from the checkpoint.
        replace: overwrite the stored records of the same runs, to correct a mistake in a collector's configuration.
        dry_run: only show the batches that a collector would keep, or the effects that a plugin would have.
        section: the section that must contain the instance; None accepts both.
        job: the job that a collector collects again.
    """

    instance: str
    window: Window | None = None
    replace: bool = False
    dry_run: bool = False
    section: Section | None = None
    job: JobChoice | None = None

    @property
    def again(self) -> bool:
        """True if a period or a job is collected again, which leaves the checkpoint unchanged."""
        return self.window is not None or self.job is not None


def find_section(request: RunRequest, enabled: Mapping[Section, Collection[str]]) -> Section:
    """Return the section of a request's instance.

    Raises:
        UnknownInstance: no enabled instance has the name.
    """
    sections: Sequence[Section] = RUN_SECTIONS if request.section is None else [request.section]
    for section in sections:
        if request.instance in enabled[section]:
            return section
    names = [name for section in sections for name in enabled[section]]
    what = " or ".join(section.removesuffix("s") for section in sections)
    raise UnknownInstance(f"no enabled {what} '{request.instance}'; there are: {', '.join(names) or 'none'}")


class PluginObserver(Protocol):
    """Receives the log, output and progress of a plugin."""

    def show_progress(self, fraction: float) -> None:
        """Receive the fraction of the run that is done, 0 to 1."""
        ...

    def show_line(self, line: str) -> None:
        """Receive a log message of level INFO or higher."""
        ...

    def show_output(self, text: str) -> None:
        """Receive output: in a dry run, what the plugin would do."""
        ...


class Observer(PluginObserver, Protocol):
    """Receives the events of a run on demand."""

    async def show_batch(self, batch: Batch) -> None:
        """Receive a batch that a collector's dry run would have kept."""
        ...


class Retried(msgspec.Struct, frozen=True):
    """The result of a retry.

    Args:
        queued: number of records added to the send-queue.
        settled: number of entries that left quarantine (some jobs make no record under the current configuration).
        failed: the reason by entry number, for entries that could not be retried or failed again.
    """

    queued: int
    settled: int
    failed: Mapping[int, str] = msgspec.field(default_factory=dict[int, str])


class Note(msgspec.Struct, frozen=True):
    """The reason for a change of records and the name of its author, stored with the change."""

    reason: str
    by: str


class Closing(msgspec.Struct, frozen=True):
    """The stop of an open record: an instant, or the runtime since its start."""

    record_id: str
    stop: datetime | timedelta


class Outcome(msgspec.Struct, frozen=True):
    """The result of a request to change a record.

    Args:
        outcome: ``done``; ``same`` (nothing to change); ``changed`` (refused: the record changed after the operator
            read it); ``missing`` (refused: no such record); ``refused`` (for the reason in ``detail``).
    """

    record_id: str
    outcome: Literal["done", "same", "changed", "missing", "refused"]
    detail: str | None = None


class RecordActions(Protocol):
    """Changes of single records. Their previous versions are kept.

    Every method raises ``InvalidRecord`` if the note cannot be kept, and ``StoreUnavailable`` if the store is away.
    """

    async def correct(self, record: Record, seen: Record | None, note: Note) -> Outcome:
        """Replace the stored record, provided that it still equals ``seen`` if that is given."""
        ...

    async def close(self, closings: Sequence[Closing], note: Note) -> Sequence[Outcome]:
        """Set the stop times of open records."""
        ...

    async def delete(self, ids: Sequence[str], note: Note) -> Sequence[Outcome]:
        """Delete records."""
        ...


class Actions(Protocol):
    """The requests that the owner of the state folder carries out."""

    @property
    def records(self) -> RecordActions:
        """Changes of single records."""
        ...

    async def run(self, request: RunRequest, observer: Observer) -> RunReport:
        """Run a collector or a plugin once, after any current run.

        Raises:
            UnknownInstance: no enabled collector or plugin has this name.
            UnsuitableRequest: a period, job or replacement for a plugin; a job for a collector that reads only periods.
        """
        ...

    async def audit(self, request: AuditRequest, observer: Observer | None) -> AuditReport:
        """Compare a source's inventory with the record store, after any current run.

        Raises:
            UnknownInstance: no enabled collector has this name.
            UnsuitableRequest: the kind has no inventory, or the records go to another destination.
        """
        ...

    async def retry(self, ids: Sequence[int], collector: str | None = None) -> Retried:
        """Retry quarantined entries. ``collector`` takes over jobs of a collector that is no longer configured."""
        ...

    async def discard(self, ids: Sequence[int]) -> int:
        """Delete quarantined entries and return their number."""
        ...
