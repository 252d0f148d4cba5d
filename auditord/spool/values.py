"""Values that the spool gives."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from auditord_hookspecs import Entry, Provenance


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The result of keeping a batch.

    Args:
        records: how many records were queued; those that wait in the queue already with equal content do not count.
        quarantined: how many jobs and records of the batch are in quarantine now.
        oversized: how many records are longer than AUDITOR's asynchronous client can read.
    """

    records: int
    quarantined: int
    oversized: int = 0


@dataclass(frozen=True, slots=True)
class Queued:
    """An entry on its way to one destination."""

    entry_id: int
    entry: Entry
    attempts: int


@dataclass(frozen=True, slots=True)
class Generation:
    """The generation that a spool and its record store have reached together.

    Args:
        spool_id: by which the store knows the spool.
        number: grows with every delivery, every start and stop; 0: not together with any store yet.
    """

    spool_id: str
    number: int


class Stage(Enum):
    """The place at which something went wrong, which decides what a retry does."""

    JOB = "job"
    """A collector could not convert it: the raw input goes through the kind's ``convert`` again."""
    RECORD = "record"
    """A collector made an invalid record of it: the record is checked again."""
    ENTRY = "entry"
    """A destination refused it for good: it is queued again."""
    BODY = "body"
    """A client posted it and was answered 400: it is read again."""


@dataclass(frozen=True, slots=True)
class QuarantineReason:
    """A reason, with the number of entries that have it."""

    stage: Stage
    task: str
    reason: str
    entries: int


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """Something that could not be handled.

    Args:
        quarantine_id: what commands call it.
        stage: where it went wrong.
        task: the collector; of an entry the sender; of a body ``api``.
        source_id: what the source calls the job; of an entry the record id; of a body a digest.
        raw: JSON, or the body as it was posted.
        quarantined_at: the latest occurrence.
        operation: of an entry: ``insert``, ``close`` or ``replace``.
        alternate_id: of a record or an entry.
        route: of a body: where it was posted.
        limits: of an entry: what is still to be checked of its client's roles, as JSON.
    """

    quarantine_id: int
    stage: Stage
    task: str
    source_id: str
    raw: bytes
    reason: str
    quarantined_at: datetime
    occurrences: int = 1
    operation: str | None = None
    alternate_id: str | None = None
    provenance: Provenance | None = None
    route: str | None = None
    limits: bytes | None = None

    @property
    def raw_json(self) -> Any:  # Any: what a collector gave away
        """The raw input of a job, decoded."""
        return json.loads(self.raw)


@dataclass(frozen=True, slots=True)
class LastRun:
    """The end of one of the last runs of an instance, and the time of the last good one."""

    task: str
    kind: str
    started: datetime
    duration: timedelta
    error: str | None
    records: int
    quarantined: int
    skipped: Mapping[str, int]
    last_success: datetime | None
    failures: int
    """Failed runs since the last success."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """The queue of one sender."""

    entries: int = 0
    oldest: datetime | None = None
    """The instant at which the oldest entry was received."""
    attempts: int = 0
    """The number of attempts of the oldest entry."""


@dataclass(frozen=True, slots=True)
class SpoolStatistics:
    """The contents of the spool, counted for metrics and status; quarantine by stage and task."""

    queues: Mapping[str, QueueStatistics] = field(default_factory=dict[str, QueueStatistics])
    quarantined: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    checkpoints: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    refused_bodies: int = 0
    dropped_bodies: int = 0
