"""The results of runs: batches of a collector, and the report of a run.

The spool and the commands that read it import these without the kinds, whose models need pydantic.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from auditord_hookspecs.records import Record

Json: TypeAlias = Any  # Any: any JSON value; a recursive alias costs every caller a cast


class Produced(msgspec.Struct, frozen=True):
    """A record on its way into the spool.

    Args:
        record: what happened.
        alternate_id: the id to use instead when the plain one already belongs to another run (another start time).
        replaces: the source has changed its account of this run: the record that is stored under either id is
            overwritten (and kept as a former version).
        source_id: what the batch system calls the job, as in :class:`Quarantined`: an entry of it in quarantine is
            settled by this record.

    Example::

        Produced(record, alternate_id=f"{record.record_id}-1767254400", source_id="17")
    """

    record: Record
    alternate_id: str | None = None
    replaces: bool = False
    source_id: str | None = None


class Quarantined(msgspec.Struct, frozen=True):
    """A job that could not be converted; kept with its raw input until it is retried or discarded.

    Args:
        source_id: what the batch system calls the job; one entry per instance and source id is kept, the newest.
        raw: the input, as JSON; given back to the kind's ``convert`` on retry.
        reason: the fault and its remedy, for the operator.

    Example::

        Quarantined("17", "17 alice yesterday 8", "'yesterday' is no time: mend it, then retry")
    """

    source_id: str
    raw: Json
    reason: str


class LeftOut(msgspec.Struct, frozen=True):
    """A component or label that a record lacks because its text could not be read or believed.

    Args:
        name: of the component, or of the rule for the label.
        reason: the fault, and where that text stood.
        label: whether it is a label.
        record_id: of the record.

    Example::

        LeftOut("MaxRSS", "component MaxRSS: rss: 'lots' is not a size such as 2000M or 1.5G", record_id="pbs-17")
    """

    name: str
    reason: str
    label: bool = False
    record_id: str = ""


class Batch(msgspec.Struct, frozen=True):
    """The unit of atomicity: all of it reaches the spool in one transaction, or nothing.

    Args:
        records: new records; a plain :class:`Record` where there is no alternate id.
        quarantined: jobs that could not be converted.
        skipped: how many jobs made no record on purpose, by reason.
        checkpoint: how far the source has been read, as JSON; None leaves the stored checkpoint unchanged.
        seen: keys to remember until the given instant (see ``CollectorContext.seen``).
        pending: values by key, kept between runs (see ``CollectorContext.pending``); None forgets a key.
        left_out: optional components and labels that records lack; the host counts them, and logs each name once per
            run.

    Example::

        Batch(
            records=[record],
            skipped={"never started": 3},
            checkpoint={"read_until": "2026-01-01T09:00:00+00:00"},
            seen={"17": context.now() + timedelta(days=7)},
            pending={"18": {"started": "2026-01-01T08:30:00+00:00"}, "17": None},
        )
    """

    records: Sequence[Record | Produced] = ()
    quarantined: Sequence[Quarantined] = ()
    skipped: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    checkpoint: Json | None = None
    seen: Mapping[str, datetime] = msgspec.field(default_factory=dict[str, datetime])
    pending: Mapping[str, Json | None] = msgspec.field(default_factory=dict[str, Json | None])
    left_out: Sequence[LeftOut] = ()


class RunReport(msgspec.Struct, frozen=True):
    """The result of one run of an instance.

    Args:
        task: the instance's name.
        kind: the instance's kind.
        started: when the run began (aware).
        duration: how long it took.
        error: None after success, else what happened, in one line.
        records: how many records reached the spool for the first time in this run.
        quarantined: how many jobs went to quarantine.
        skipped: how many jobs made no record on purpose, by reason.
    """

    task: str
    kind: str
    started: datetime
    duration: timedelta
    error: str | None = None
    records: int = 0
    quarantined: int = 0
    skipped: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
