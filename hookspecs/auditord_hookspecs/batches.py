"""The results of runs: the batches of a collector, and the report of a run.

The spool and the commands that read it import this module without the kinds, whose models need pydantic.
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
        record: the record.
        alternate_id: the id to use if the plain id already belongs to another run (with another start time).
        replaces: the source has changed its data about this run. The record stored under either id is overwritten, and
            kept as a former version.
        source_id: the batch system's id of the job, as in :class:`Quarantined`. This record resolves the job's entry in
            quarantine.

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
        source_id: the batch system's id of the job. Only the newest entry per instance and source id is kept.
        raw: the input, as JSON; passed to the kind's ``convert`` on retry.
        reason: the fault and its remedy, for the operator.

    Example::

        Quarantined("17", "17 alice yesterday 8", "'yesterday' is not a time: correct it, then retry")
    """

    source_id: str
    raw: Json
    reason: str


class LeftOut(msgspec.Struct, frozen=True):
    """A component or label that a record lacks because its text was unreadable or implausible.

    Args:
        name: the name of the component, or of the rule for the label.
        reason: the fault, and the place of the text.
        label: True for a label, False for a component.
        record_id: the record's id; empty if all records of the batch lack it. Then the reason begins with the place of
            the option, within the instance's section.
        rounded: the record has the component, but a fraction that matters was rounded away.

    Example::

        LeftOut("MaxRSS", "component MaxRSS: rss: 'lots' is not a size such as 2000M or 1.5G", record_id="pbs-17")
    """

    name: str
    reason: str
    label: bool = False
    record_id: str = ""
    rounded: bool = False


class Batch(msgspec.Struct, frozen=True):
    """The records and other results that reach the spool in one transaction, or not at all.

    Args:
        records: new records; a plain :class:`Record` if it needs no alternate id.
        quarantined: jobs that could not be converted.
        skipped: the number of jobs that make no record on purpose, by reason.
        checkpoint: how far the source has been read, as JSON; None leaves the stored checkpoint unchanged.
        seen: keys to remember, each until the given instant (see ``CollectorContext.find_seen``).
        pending: values to keep between runs, by key (see ``CollectorContext.pending``); None deletes a key.
        left_out: optional components and labels that records lack; the host counts them and logs each name once per
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
        duration: the time that it took.
        error: None after success, else the error in one line.
        records: the number of records that reached the spool for the first time in this run.
        quarantined: the number of jobs that went to quarantine.
        skipped: the number of jobs that made no record on purpose, by reason.
        waits: whether the run did nothing, since it has to wait for another instance. It is neither a success nor a
            failure.
        remarks: what the operator should look at although the run succeeded, one line each.
    """

    task: str
    kind: str
    started: datetime
    duration: timedelta
    error: str | None = None
    records: int = 0
    quarantined: int = 0
    skipped: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    waits: bool = False
    remarks: Sequence[str] = ()
