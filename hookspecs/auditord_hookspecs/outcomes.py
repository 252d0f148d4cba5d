"""The outcomes of single jobs, which collectors gather into batches.

A job makes a record, is skipped on purpose, or goes to quarantine. An error in one conversion must not stop the other
jobs::

    outcomes = Outcomes()
    for job in jobs:
        outcomes.add(convert_job(config, job))  # Converted | Skipped | Quarantined
    yield outcomes.batch(checkpoint=position)
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from auditord_hookspecs.batches import Batch, Json, LeftOut, Produced, Quarantined
from auditord_hookspecs.errors import AuditordError, InvalidRecord
from auditord_hookspecs.records import Record

T = TypeVar("T")


class Converted(msgspec.Struct, frozen=True):
    """A job that makes a record.

    Args:
        produced: the record, with its alternate id if it has one.
        left_out: components and labels that the record lacks, with the reason.
    """

    produced: Record | Produced
    left_out: Sequence[LeftOut] = ()

    @property
    def record(self) -> Record:
        """The record itself."""
        return self.produced.record if isinstance(self.produced, Produced) else self.produced


class Skipped(msgspec.Struct, frozen=True):
    """A job that makes no record on purpose, counted by ``reason``."""

    reason: str


Outcome: TypeAlias = Converted | Skipped | Quarantined


@dataclass
class Outcomes:
    """The outcomes of some jobs, in order.

    Args:
        records: the records of converted jobs.
        quarantined: jobs that could not be converted.
        skipped: the number of jobs that make no record on purpose, by reason.
        left_out: components and labels that records lack, each with the record's id and the reason.
    """

    records: list[Record | Produced] = field(default_factory=list[Record | Produced])
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    skipped: Counter[str] = field(default_factory=Counter[str])
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of one job."""
        if isinstance(outcome, Converted):
            self.records.append(outcome.produced)
            if outcome.left_out:
                record_id = outcome.record.record_id
                self.left_out += [replace(each, record_id=record_id) for each in outcome.left_out]
        elif isinstance(outcome, Skipped):
            self.skipped[outcome.reason] += 1
        else:
            self.quarantined.append(outcome)

    def batch(
        self,
        seen: Mapping[str, datetime] | None = None,
        checkpoint: Json | None = None,
        pending: Mapping[str, Json | None] | None = None,
    ) -> Batch:
        """Return a batch of all outcomes, with the collector's checkpoint and the values it keeps between runs."""
        skipped = dict(+self.skipped)
        return Batch(self.records, self.quarantined, skipped, checkpoint, seen or {}, pending or {}, self.left_out)


def unwrap_retry(outcome: Outcome) -> Record | Produced | None:
    """Return the record of a retried job, or None if it makes no record now; for ``CollectorKind.convert``.

    Raises:
        InvalidRecord: the job still cannot be converted; the message says why.
    """
    if isinstance(outcome, Quarantined):
        raise InvalidRecord(outcome.reason)
    return outcome.produced if isinstance(outcome, Converted) else None


def restore(checkpoint: Json, shape: type[T]) -> T:
    """Return a saved checkpoint as a msgspec structure.

    Raises:
        AuditordError: the checkpoint has another structure, such as that of a newer version.
    """
    try:
        return msgspec.convert(checkpoint, shape)
    except msgspec.ValidationError as error:
        raise AuditordError(f"this version cannot read the checkpoint {checkpoint!r}: {error}") from error


def stray(raw: Mapping[str, Any], reason: str) -> Quarantined:  # Any: JSON
    """Quarantine output that belongs to no job. Its id is a hash of the content, so equal output is kept once."""
    digest = hashlib.sha256("\n".join(map(str, raw.values())).encode()).hexdigest()[:16]
    return Quarantined(f"stray/{digest}", raw, reason)
