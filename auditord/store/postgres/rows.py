"""Records as rows on their way to PostgreSQL: as members of one JSON parameter, or as fields of a binary COPY."""

from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec

from auditord.store.postgres.sources import Numbers
from auditord.store.protocol import Provenance
from auditord.store.rows import PendingRecord, Value, to_micros

_TO_2000: Final = to_micros(datetime(2000, 1, 1, tzinfo=UTC))  # where PostgreSQL begins to count microseconds

_JSONB_VERSION: Final = b"\x01"

_encoder: Final = msgspec.json.Encoder()

COPY_TYPES: Final = (
    # A timestamptz is an int8 on the wire, and jsonb its text behind a version number: both spare a conversion.
    *("int8", "int8", "int8", "int8", "int8"),  # start_time, stop_time, runtime, content, received_at
    *(
        "int8",
        "int8",
        "int8",
        "int8",
        "int4",
        "int4",
        "bool",
    ),  # cores, memory, gpu, total_cpu, source_id, score_set, more
    *("text", "text", "text", "text", "bytea", "text"),  # record_id, site, user_group, user_name, meta, document
)

_Field: TypeAlias = str | int | bytes | bool | None


class Row(msgspec.Struct, frozen=True, gc=False):
    """A record under the names of its columns; ``received_at`` is of this arrival."""

    start_time: datetime
    stop_time: datetime | None
    runtime: int | None
    content: Value
    received_at: datetime
    cores: Value
    memory: Value
    gpu: Value
    total_cpu: Value
    source_id: int
    score_set: int | None
    more: bool | None
    record_id: str
    site: Value
    user_group: Value
    user_name: Value
    meta: dict[str, tuple[str, ...]] | None
    document: Value


class Moved(msgspec.Struct, frozen=True, gc=False):
    """Of a record, what its start and stop time decide."""

    record_id: str
    start_time: datetime
    stop_time: datetime | None
    runtime: int | None
    document: Value
    received_at: datetime


def make_move(pending: PendingRecord) -> Moved:
    """What changes when nothing but the times of a record does."""
    record = pending.record
    received_at = pending.provenance.received_at
    return Moved(record.record_id, record.start_time, record.stop_time, record.runtime, pending.row[-1], received_at)


def make_row(pending: PendingRecord, numbers: Numbers) -> Row:
    """The row of an offered record."""
    record = pending.record
    _, _, site, group, user, more, cores, memory, gpu, total_cpu, content, document = pending.row
    return Row(
        record.start_time, record.stop_time, record.runtime, content, pending.provenance.received_at,
        cores, memory, gpu, total_cpu, numbers.source(pending.provenance), numbers.score_set(pending.scores),
        True if more else None, record.record_id,
        site, group, user, record.meta, document,
    )  # fmt: skip


def copy_rows(pending_records: Iterable[PendingRecord], numbers: Numbers) -> Iterator[tuple[_Field, ...]]:
    """The fields of records for a binary COPY, of :data:`COPY_TYPES`."""
    provenance: Provenance | None = None
    received_at, source = 0, 0
    for pending in pending_records:
        if pending.provenance is not provenance:  # as nearly never: a bulk has one
            provenance = pending.provenance
            received_at, source = to_micros(provenance.received_at) - _TO_2000, numbers.source(provenance)
        record = pending.record
        start, stop, site, group, user, more, cores, memory, gpu, total_cpu, content, document = pending.row
        yield (
            since_2000(start), since_2000(stop), record.runtime, content, received_at,
            cores, memory, gpu, total_cpu, source, numbers.score_set(pending.scores), True if more else None,
            record.record_id, site, group, user,
            None if record.meta is None else _JSONB_VERSION + _encoder.encode(record.meta), document,
        )  # fmt: skip


def as_json(value: Collection[object]) -> str:
    """One parameter for many rows."""
    return _encoder.encode(value).decode()


def since_2000(micros: str | int | None) -> int | None:
    """Microseconds since 1970 as PostgreSQL counts them; None for what is no number."""
    return micros - _TO_2000 if isinstance(micros, int) else None
