"""From a collector's batch to rows, and from rows back to entries.

A record is encoded once: what the queue keeps is what the store keeps. Constructing a record checks texts, numbers and
times, but not types, and what was constructed can be changed. So both are looked at here, and a record of any other
types is read back: what a collector should not have made is set aside alone, and the rest of its batch goes on.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from auditord.database.instants import to_micros
from auditord.spool.values import Stage
from auditord_hookspecs import (
    Batch,
    Close,
    Component,
    Entry,
    Insert,
    InvalidRecord,
    Produced,
    Provenance,
    Record,
    Replace,
    Role,
    Score,
    Transform,
)
from auditord_hookspecs.entries import Encoded
from auditord_hookspecs.records import check_name, in_utc
from auditord_hookspecs.wire import MAX_CLIENT_OBJECT_BYTES, decode_record, encode_record, format_time, parse_time

_BROKEN: Final = (
    InvalidRecord,
    msgspec.MsgspecError,
    AttributeError,
    TypeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
"""The errors of writing and reading a value of wrong types."""

_limits: Final = msgspec.json.Decoder(tuple[Role, ...])


Operation: TypeAlias = Literal["insert", "replace"]
"""The change that an entry makes."""


class Row(msgspec.Struct, frozen=True):
    """An entry as the queue keeps it."""

    record_id: str
    operation: str
    body: bytes
    alternate_id: str | None
    provenance: Provenance
    limits: bytes | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """An entry of the quarantine that is to be written."""

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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch as it will be written; ``settled`` are the source ids of the jobs that its rows are of."""

    rows: Sequence[Row] = ()
    set_aside: Sequence[SetAside] = ()
    oversized: int = 0
    checkpoint: bytes | None = None
    settled: Collection[str] = ()
    seen: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    pending: Mapping[str, bytes | None] = field(default_factory=dict[str, bytes | None])


def prepare(
    task: str,
    batch: Batch,
    received_at: datetime,
    operation: Operation = "insert",
    transform: Transform | None = None,
) -> Prepared:
    """Check and write out everything in a batch; its records are to be inserted or to replace what is stored.

    Raises:
        TypeError: checkpoint or pending values are no JSON (a fault of the collector, so nothing of the batch counts).
    """
    provenance = Provenance(received_at, principal=f"task:{task}")
    settled = set[str]()
    rows = list[Row]()
    set_aside = [
        SetAside(Stage.JOB, task, printable(job.source_id), _any_json(job.raw), printable(job.reason))
        for job in batch.quarantined
    ]
    for item in batch.records:
        produced = item if isinstance(item, Produced) else Produced(item)
        try:
            rows.append(record_row(operation, produced, provenance, transform))
            settled.update([produced.source_id] if produced.source_id is not None else [])
        except _BROKEN as error:
            set_aside.append(_record_row(task, produced, error))
    return Prepared(
        rows=rows,
        set_aside=set_aside,
        oversized=sum(len(row.body) > MAX_CLIENT_OBJECT_BYTES for row in rows),
        checkpoint=None if batch.checkpoint is None else to_json(batch.checkpoint),
        settled=settled,
        seen=batch.seen,
        pending={key: None if value is None else to_json(value) for key, value in batch.pending.items()},
    )


def record_row(
    operation: Operation, produced: Produced, provenance: Provenance, transform: Transform | None = None
) -> Row:
    """The row of a record as the transform leaves it.

    Raises:
        InvalidRecord: it breaks a rule (and whatever wrong types make Python raise).
    """
    if produced.alternate_id is not None:
        check_name(produced.alternate_id)
    body = _checked(produced.record if transform is None else transform(produced.record))
    chosen: Operation = "replace" if produced.replaces else operation
    return Row(produced.record.record_id, chosen, body, produced.alternate_id, provenance)


def entry_row(entry: Entry, received_at: datetime, transform: Transform | None = None) -> Row:
    """The row of any entry; its record as the transform leaves it.

    Raises:
        InvalidRecord: its record breaks a rule.
    """
    provenance = entry.provenance or Provenance(received_at)
    match entry:
        case Insert(record, alternate_id):
            limits, text = _limits_json(entry.limits), entry.text
            if text is not None and transform is None:
                return Row(record.record_id, "insert", text, alternate_id, provenance, limits)
            row = record_row("insert", Produced(record, alternate_id), provenance, transform)
            return msgspec.structs.replace(row, limits=limits)
        case Close(record_id, stop_time):
            check_name(record_id)
            stop = format_time(stop_time).encode()
            return Row(record_id, "close", stop, None, provenance, _limits_json(entry.limits))
        case Replace(record, alternate_id):
            return record_row("replace", Produced(record, alternate_id), provenance, transform)


def decode_entry(row: Row) -> Entry:
    """The entry of a row.

    Raises:
        InvalidRecord: a row that an earlier version wrote breaks a rule of this one.
    """
    limits = None if row.limits is None else _limits.decode(row.limits)
    match row.operation:
        case "close":
            return Close(row.record_id, parse_time(row.body.decode()), row.provenance, limits)
        case "insert":
            record = decode_record(row.body)
            return Insert(record, row.alternate_id, row.provenance, limits, Encoded(record, row.body))
        case _:
            return Replace(decode_record(row.body), row.alternate_id, row.provenance)


def _limits_json(limits: tuple[Role, ...] | None) -> bytes | None:
    return None if limits is None else msgspec.json.encode(limits)


def to_json(value: Any) -> bytes:  # Any: what a hook module made
    """JSON of a hook module's value.

    Raises:
        TypeError: it holds something that JSON does not.
    """
    return json.dumps(value, separators=(",", ":")).encode()


def printable(text: object) -> str:
    """Text that a database takes: lone surrogates and NUL are written as escapes."""
    return str(text).encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _checked(record: Record) -> bytes:
    if _is_checked(record):
        return encode_record(record)
    in_utc(record.start_time)  # writing would take a time without zone for the host's local time
    if record.stop_time is not None:
        in_utc(record.stop_time)
    body = encode_record(record)
    decode_record(body)
    return body


def _is_checked(record: Record) -> bool:
    """Check a record again if everything in it is exactly of the type that is declared: then its text can be read.

    Raises:
        InvalidRecord: it has been changed since it was made.
    """
    if type(record) is not Record or not _has_declared_types(record):
        return False
    record.__post_init__()
    for component in record.components:
        component.__post_init__()
        for score in component.scores:
            score.__post_init__()
    return True


def _has_declared_types(record: Record) -> bool:
    return (
        type(record.record_id) is str
        and type(record.start_time) is datetime
        and (record.stop_time is None or type(record.stop_time) is datetime)
        and type(record.components) is tuple
        and all(map(_is_component, record.components))
        and (record.meta is None or (type(record.meta) is dict and all(map(_is_label, record.meta.items()))))
    )


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


def _record_row(task: str, produced: Produced, error: Exception) -> SetAside:
    record_id = getattr(produced.record, "record_id", None)
    source_id = printable(record_id if isinstance(record_id, str) else repr(produced.record))[:1_000]
    reason = printable(f"the collector made an invalid record: {error}")
    alternate_id = None if produced.alternate_id is None else printable(produced.alternate_id)
    return SetAside(Stage.RECORD, task, source_id, _any_json(produced.record), reason, alternate_id=alternate_id)


def _any_json(value: Any) -> bytes:  # Any: whatever could not be handled
    """JSON of anything: nothing may be lost because it cannot be written down neatly."""
    try:
        return json.dumps(msgspec.to_builtins(value, enc_hook=repr), default=repr).encode()
    except _BROKEN:
        return json.dumps(repr(value)).encode()


def provenance_columns(provenance: Provenance) -> tuple[int, str | None, str | None]:
    """The columns of a provenance: time of receipt, principal and agent."""
    agent = None if provenance.agent is None else printable(provenance.agent)
    return to_micros(provenance.received_at), provenance.principal, agent
