"""Collect the outcomes of single jobs, and make batches of them; for collectors.

A job makes a record, is skipped on purpose, or goes to quarantine. An error in its conversion must not stop other
jobs::

    outcomes = Outcomes()
    for job in jobs:
        outcomes.add(convert_job(config, job))  # Converted | Skipped | Quarantined
    yield outcomes.batch(checkpoint=position)
"""

import hashlib
import logging
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
        produced: the record; with its second id if it has one.
        left_out: components and labels that the record lacks, with the reason.
    """

    produced: Record | Produced
    left_out: Sequence[LeftOut] = ()

    @property
    def record(self) -> Record:
        """The record itself."""
        return self.produced.record if isinstance(self.produced, Produced) else self.produced


class Skipped(msgspec.Struct, frozen=True):
    """A job that makes no record on purpose; it is counted under ``reason``."""

    reason: str


Outcome: TypeAlias = Converted | Skipped | Quarantined


@dataclass
class Outcomes:
    """The outcomes of some jobs, in order.

    Args:
        records: those that go into the batch.
        quarantined: jobs that could not be converted.
        skipped: how many jobs made no record on purpose, by reason.
        left_out: components and labels that records lack, each with the record's id and the reason.
    """

    records: list[Record | Produced] = field(default_factory=list[Record | Produced])
    quarantined: list[Quarantined] = field(default_factory=list[Quarantined])
    skipped: Counter[str] = field(default_factory=Counter[str])
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])

    def add(self, outcome: Outcome) -> None:
        """Add one job's."""
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
        """Return the batch of all outcomes, with what the collector remembers."""
        skipped = dict(+self.skipped)
        return Batch(self.records, self.quarantined, skipped, checkpoint, seen or {}, pending or {}, self.left_out)

    def log_left_out(self, log: "logging.LoggerAdapter[logging.Logger]") -> None:
        """Do nothing. Deprecated: the host logs the ``left_out`` of each batch."""


def retried(outcome: Outcome) -> Record | Produced | None:
    """Convert a quarantined job again (for ``CollectorKind.convert``); None if it makes no record now.

    Raises:
        InvalidRecord: it still cannot be converted; the text says why.
    """
    if isinstance(outcome, Quarantined):
        raise InvalidRecord(outcome.reason)
    return outcome.produced if isinstance(outcome, Converted) else None


def restore(checkpoint: Json, shape: type[T]) -> T:
    """Read back a checkpoint that is a msgspec structure.

    Raises:
        AuditordError: it is something else, such as one of a newer version.
    """
    try:
        return msgspec.convert(checkpoint, shape)
    except msgspec.ValidationError as error:
        raise AuditordError(f"the checkpoint {checkpoint!r} is none of this version's: {error}") from error


def stray(raw: Mapping[str, Any], reason: str) -> Quarantined:  # Any: JSON
    """Quarantine output that belongs to no job, under an id from its content: equal output is kept once."""
    digest = hashlib.sha256("\n".join(map(str, raw.values())).encode()).hexdigest()[:16]
    return Quarantined(f"stray/{digest}", raw, reason)
