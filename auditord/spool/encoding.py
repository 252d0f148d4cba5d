"""The spool's values, and the conversion of a collector's batch to rows and of rows to entries.

A record is encoded once: the queue keeps the text that the store will keep. The constructor of a record checks texts,
numbers and times, but not types, and a record can be changed afterwards. So types are checked here, and a record with
other types is decoded again. Only the invalid records of a collector's batch are quarantined.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from auditord_hookspecs import (
    Batch,
    Close,
    Component,
    Entry,
    Insert,
    InvalidRecord,
    LeftOut,
    Produced,
    Provenance,
    Quarantined,
    Record,
    Replace,
    Role,
    RunReport,
    Score,
)
from auditord_hookspecs.entries import Encoded
from auditord_hookspecs.records import check_name, in_utc
from auditord_hookspecs.wire import MAX_CLIENT_OBJECT_BYTES, decode_record, encode_record, format_time, parse_time

if TYPE_CHECKING:  # brings the kinds and their models
    from auditord_hookspecs import Transform


class Enqueued(msgspec.Struct, frozen=True):
    """The result of storing a batch.

    Args:
        records: number of records queued, without those already in the queue with equal content.
        quarantined: number of jobs and records of the batch that were quarantined.
        oversized: number of records longer than AUDITOR's asynchronous client can read.
    """

    records: int
    quarantined: int
    oversized: int = 0


class Queued(msgspec.Struct, frozen=True):
    """An entry of the queue for one destination."""

    entry_id: int
    entry: Entry
    attempts: int


class Generation(msgspec.Struct, frozen=True):
    """The generation that a spool and its record store have reached together.

    Args:
        spool_id: identifies the spool to the store.
        number: grows with every delivery, start and stop; 0 before the first store.
    """

    spool_id: str
    number: int


class Stage(Enum):
    """The stage at which something failed. It decides what a retry does."""

    JOB = "job"
    """A job that the collector could not convert: the kind's ``convert`` gets the raw input again."""
    RECORD = "record"
    """An invalid record of a collector: it is checked again."""
    ENTRY = "entry"
    """An entry that a destination refused for good: it is queued again."""
    BODY = "body"
    """A client's body that was answered with 400: it is decoded again."""


class QuarantineReason(msgspec.Struct, frozen=True):
    """A reason and its number of entries."""

    stage: Stage
    task: str
    reason: str
    entries: int


class LastRun(RunReport, frozen=True):
    """One of the last runs of an instance, with a summary of all its runs.

    Args:
        last_success: the end of the instance's last successful run.
        failures: number of failed runs since then.
    """

    last_success: datetime | None = None
    failures: int = 0


class QueueStatistics(msgspec.Struct, frozen=True):
    """The queue of one sender."""

    entries: int = 0
    oldest: datetime | None = None
    """The time at which the oldest entry was received."""
    attempts: int = 0
    """The number of attempts of the oldest entry."""


class SpoolStatistics(msgspec.Struct, frozen=True):
    """Counts of the spool's contents for metrics and status; ``quarantined`` by stage and task."""

    queues: Mapping[str, QueueStatistics] = msgspec.field(default_factory=dict[str, QueueStatistics])
    quarantined: Mapping[tuple[str, str], int] = msgspec.field(default_factory=dict[tuple[str, str], int])
    checkpoints: Mapping[str, datetime] = msgspec.field(default_factory=dict[str, datetime])
    refused_bodies: int = 0
    dropped_bodies: int = 0


_BROKEN: Final = (
    InvalidRecord,
    msgspec.MsgspecError,
    AttributeError,
    TypeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
"""Errors raised by encoding or decoding a value of wrong types."""

_limits: Final = msgspec.json.Decoder(tuple[Role, ...])


Operation: TypeAlias = Literal["insert", "replace"]
"""The effect of a batch: it adds records, or replaces stored ones."""


class Row(msgspec.Struct, frozen=True):
    """A row of the queue."""

    record_id: str
    operation: str
    body: bytes
    alternate_id: str | None
    provenance: Provenance
    limits: bytes | None = None


class SetAside(msgspec.Struct, frozen=True):
    """Input that could not be handled, for the quarantine.

    Args:
        stage: where it failed.
        task: the collector; for an entry, the sender; for a body, ``api``.
        source_id: the job's id at the source; for an entry, the record id; for a body, a digest.
        raw: JSON, or the posted body.
        operation: for an entry, ``insert``, ``close`` or ``replace``; for a job or a record, ``replace`` if it was
            collected to replace the stored record.
        alternate_id: the alternate id of a record or an entry.
        route: for a body, the request target.
        limits: for an entry or a body, the roles of its client that remain to be checked, as JSON.
    """

    stage: Stage
    task: str
    source_id: str
    raw: bytes
    reason: str
    operation: str | None = None
    alternate_id: str | None = None
    provenance: Provenance | None = None
    route: str | None = None
    limits: bytes | None = None


class QuarantineEntry(SetAside, frozen=True, kw_only=True):
    """An entry of the quarantine.

    Args:
        quarantine_id: the entry's number in commands.
        quarantined_at: when it was last quarantined.
    """

    quarantine_id: int
    quarantined_at: datetime
    occurrences: int = 1

    @property
    def raw_json(self) -> Any:  # Any: JSON of the collector
        """The raw input of a job, decoded."""
        return json.loads(self.raw)


class Prepared(msgspec.Struct, frozen=True):
    """An encoded batch; ``settled`` are the source ids of the jobs that have rows."""

    rows: Sequence[Row] = ()
    set_aside: Sequence[SetAside] = ()
    oversized: int = 0
    checkpoint: bytes | None = None
    settled: Collection[str] = ()
    seen: Mapping[str, datetime] = msgspec.field(default_factory=dict[str, datetime])
    pending: Mapping[str, bytes | None] = msgspec.field(default_factory=dict[str, bytes | None])


_FIELDS: Final[Sequence[tuple[str, type, type | None]]] = (
    ("records", Collection, None),  # invalid records are quarantined
    ("quarantined", Collection, Quarantined),
    ("skipped", Mapping, int),
    ("seen", Mapping, datetime),
    ("pending", Mapping, None),
    ("left_out", Collection, LeftOut),
)
"""The fields of a batch with the types of the field and of its values."""


def check_batch(collector: str, batch: object) -> None:
    """Check the types of a batch, except those of its records and of values that must be JSON.

    Raises:
        TypeError: the text names the collector and the field.
    """
    if not isinstance(batch, Batch):
        raise TypeError(f"{collector} yields values of type {type(batch).__name__}, not Batch")
    for name, container, type_of_values in _FIELDS:
        field: Any = getattr(batch, name)  # Any: a Struct that is made by a call checks none of its fields
        if not issubclass(type(field), container):
            raise TypeError(f"{collector}: {name} of a batch is {field!r:.80}, not a {container.__name__}")
        if type_of_values is None:
            continue
        values: Collection[object] = field.values() if container is Mapping else field
        for value in values:
            if not isinstance(value, type_of_values):
                raise TypeError(f"{collector}: {name} of a batch has {value!r:.80}, not {type_of_values.__name__}")


def prepare(
    task: str,
    batch: Batch,
    received_at: datetime,
    operation: Operation = "insert",
    transform: "Transform | None" = None,
) -> Prepared:
    """Check and encode a batch.

    Raises:
        TypeError: the batch has wrong types (:func:`check_batch`), or its checkpoint or pending values are not JSON.
            That is a bug of the collector; the batch is refused.
    """
    check_batch(task, batch)
    provenance = Provenance(received_at, principal=f"task:{task}")
    settled = set[str]()
    rows = list[Row]()
    replaces = "replace" if operation == "replace" else None
    set_aside = [
        SetAside(Stage.JOB, task, printable(job.source_id), _any_json(job.raw), printable(job.reason), replaces)
        for job in batch.quarantined
    ]
    for item in batch.records:
        produced = item if isinstance(item, Produced) else Produced(item)
        try:
            rows.append(record_row(operation, produced, provenance, transform))
            settled.update([produced.source_id] if produced.source_id is not None else [])
        except _BROKEN as error:
            record_id = getattr(produced.record, "record_id", None)
            source_id = printable(record_id if isinstance(record_id, str) else repr(produced.record))[:1_000]
            reason = printable(f"the collector made an invalid record: {error}")
            alternate_id = None if produced.alternate_id is None else printable(produced.alternate_id)
            chosen, raw = "replace" if produced.replaces else replaces, _any_json(produced.record)
            set_aside.append(SetAside(Stage.RECORD, task, source_id, raw, reason, chosen, alternate_id))
    return Prepared(
        rows=rows,
        set_aside=set_aside,
        oversized=sum(len(row.body) > MAX_CLIENT_OBJECT_BYTES for row in rows),
        checkpoint=None if batch.checkpoint is None else _json_of(task, "checkpoint", batch.checkpoint),
        settled=settled,
        seen=batch.seen,
        pending={
            key: None if value is None else _json_of(task, f"pending[{key!r}]", value)
            for key, value in batch.pending.items()
        },
    )


def record_row(
    operation: Operation, produced: Produced, provenance: Provenance, transform: "Transform | None" = None
) -> Row:
    """Return the row of a record after the transform.

    Raises:
        InvalidRecord: the record breaks a rule. Wrong types raise any of :data:`_BROKEN`.
    """
    record = produced.record if transform is None else transform(produced.record)
    is_exact = (  # it has exactly the declared types
        type(record) is Record
        and type(record.record_id) is str
        and type(record.start_time) is datetime
        and (record.stop_time is None or type(record.stop_time) is datetime)
        and type(record.components) is tuple
        and all(map(_is_component, record.components))
        and (record.meta is None or (type(record.meta) is dict and all(map(_is_label, record.meta.items()))))
    )
    if produced.alternate_id is not None:
        check_name(produced.alternate_id)
    if is_exact:
        record.__post_init__()  # it may have been changed after its construction
        for component in record.components:
            component.__post_init__()
            for score in component.scores:
                score.__post_init__()
        body = encode_record(record)
    else:
        in_utc(record.start_time)  # encoding would treat a time without zone as local time
        if record.stop_time is not None:
            in_utc(record.stop_time)
        body = encode_record(record)
        decode_record(body)
    chosen: Operation = "replace" if produced.replaces else operation
    return Row(produced.record.record_id, chosen, body, produced.alternate_id, provenance)


def entry_row(entry: Entry, received_at: datetime, transform: "Transform | None" = None) -> Row:
    """Return the row of an entry, with its record after the transform.

    Raises:
        InvalidRecord: the record breaks a rule.
    """
    provenance = entry.provenance or Provenance(received_at)
    match entry:
        case Insert(record, alternate_id):
            limits, encoded = encode_limits(entry.limits), entry.encoded
            if encoded is not None and encoded.record is record and transform is None:
                return Row(record.record_id, "insert", encoded.text, alternate_id, provenance, limits)
            row = record_row("insert", Produced(record, alternate_id), provenance, transform)
            return msgspec.structs.replace(row, limits=limits)
        case Close(record_id, stop_time):
            check_name(record_id)
            stop = format_time(stop_time).encode()
            return Row(record_id, "close", stop, None, provenance, encode_limits(entry.limits))
        case Replace(record, alternate_id):
            return record_row("replace", Produced(record, alternate_id), provenance, transform)


def decode_entry(row: Row) -> Entry:
    """Return the entry of a row.

    Raises:
        InvalidRecord: the row was written by an earlier version and breaks a rule of this one.
    """
    limits = decode_limits(row.limits)
    match row.operation:
        case "close":
            return Close(row.record_id, parse_time(row.body.decode()), row.provenance, limits)
        case "insert":
            record = decode_record(row.body)
            return Insert(record, row.alternate_id, row.provenance, limits, Encoded(record, row.body))
        case _:
            return Replace(decode_record(row.body), row.alternate_id, row.provenance)


def encode_limits(limits: tuple[Role, ...] | None) -> bytes | None:
    """Encode the roles of a client that remain to be checked."""
    return None if limits is None else msgspec.json.encode(limits)


def decode_limits(limits: bytes | None) -> tuple[Role, ...] | None:
    """Decode the roles of a client that remain to be checked."""
    return None if limits is None else _limits.decode(limits)


def _json_of(collector: str, field: str, value: Any) -> bytes:  # Any: a hook module's value
    """Encode a collector's value as JSON.

    Raises:
        TypeError: the value contains something that JSON cannot represent.
    """
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{collector}: {field} of a batch is not JSON: {error}") from error


def printable(text: object) -> str:
    """Return text that a database accepts: lone surrogates and NUL are escaped."""
    return str(text).encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _is_component(component: Component) -> bool:
    return (
        type(component) is Component
        and type(component.name) is str
        and type(component.amount) is int
        and type(component.scores) is tuple
        and (not component.scores or all(map(_is_score, component.scores)))
    )


def _is_score(score: Score) -> bool:
    return type(score) is Score and type(score.name) is str and type(score.value) is float


def _is_label(label: tuple[str, tuple[str, ...]]) -> bool:
    key, values = label
    return type(key) is str and type(values) is tuple and all(map(_is_text, values))


def _is_text(value: object) -> bool:
    return type(value) is str


def _any_json(value: Any) -> bytes:  # Any: input that could not be handled
    """Encode any value as JSON; parts that cannot be encoded become their repr, so that nothing is lost."""
    try:
        return json.dumps(msgspec.to_builtins(value, enc_hook=repr), default=repr).encode()
    except _BROKEN:
        return json.dumps(repr(value)).encode()
