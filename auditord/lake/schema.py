"""Lossless conversion between records and rows of the table, with columns for the figures that engines sum.

The wire text is rebuilt from the other columns. ``document`` stores it only if that would not give the same bytes.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, Final

import msgspec
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, MonthTransform
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from auditord.database.instants import from_micros, to_micros
from auditord.lake.engines import components_of
from auditord.store.columns import AMOUNT_COLUMNS, CELL_META_COLUMNS
from auditord.store.lake import LakeRecord
from auditord.store.rows import make_row
from auditord_hookspecs import Record
from auditord_hookspecs.wire import encode_record

_arrow: Any = import_module("pyarrow")  # Any: it ships no types

_SCORES: Final = ListType(
    105,
    StructType(
        NestedField(106, "name", StringType(), required=True), NestedField(107, "value", DoubleType(), required=True)
    ),
    element_required=True,
)
_COMPONENT: Final = StructType(
    NestedField(102, "name", StringType(), required=True),
    NestedField(103, "amount", LongType(), required=True),
    NestedField(104, "scores", _SCORES, required=True),
)
_META: Final = MapType(109, StringType(), 110, ListType(111, StringType(), element_required=True), value_required=True)

SCHEMA: Final = Schema(
    NestedField(1, "record_id", StringType(), required=True),
    NestedField(2, "start_time", TimestamptzType(), required=True),
    NestedField(3, "stop_time", TimestamptzType(), required=False, doc="null: the record is open"),
    NestedField(4, "runtime", LongType(), required=False, doc="whole seconds, toward zero; null: open"),
    NestedField(5, "site", StringType(), required=False, doc="first value of site_id, or else of site"),
    NestedField(6, "user_group", StringType(), required=False, doc="first value of group_id, or else of group"),
    NestedField(7, "user_name", StringType(), required=False, doc="first value of user_id, or else of user"),
    NestedField(8, "more", BooleanType(), required=False, doc="true: columns of labels and amounts are incomplete"),
    NestedField(
        9, "cores", LongType(), required=False, doc="sum over all components of this name, as in the next three columns"
    ),
    NestedField(10, "memory", LongType(), required=False),
    NestedField(11, "gpu", LongType(), required=False),
    NestedField(12, "total_cpu", LongType(), required=False),
    NestedField(13, "meta", _META, required=False, doc="lists of texts by key, in the record's order"),
    NestedField(14, "components", ListType(101, _COMPONENT, element_required=True), required=True),
    NestedField(15, "received_at", TimestamptzType(), required=True, doc="of the first arrival"),
    NestedField(16, "updated_at", TimestamptzType(), required=False, doc="of the last change"),
    NestedField(17, "principal", StringType(), required=True, doc="the sender; '' if unknown"),
    NestedField(18, "agent", StringType(), required=True, doc="the sender's program; '' if unknown"),
    NestedField(
        19, "document", StringType(), required=False, doc="the wire text, if it cannot be rebuilt from the columns"
    ),
    NestedField(20, "release", LongType(), required=False, doc="null: the record is also in a record store"),
    NestedField(21, "daemon", StringType(), required=True, doc="its lake.name; ids are unique within a daemon"),
    NestedField(22, "batch", LongType(), required=True, doc="the daemon's batch that wrote the row"),
    NestedField(23, "core_seconds", LongType(), required=False, doc="cores times seconds, instead of cores"),
    NestedField(24, "memory_seconds", LongType(), required=False),
    NestedField(25, "gpu_seconds", LongType(), required=False),
)
"""Schema of a new table, in which pyiceberg numbers the fields itself. Meta keys and components are in lists, so that
new ones need no column."""

PARTITIONS: Final = PartitionSpec(
    PartitionField(source_id=3, field_id=1000, transform=MonthTransform(), name="month"),
    PartitionField(source_id=5, field_id=1001, transform=IdentityTransform(), name="site"),
)

_RECORD: Final = ("record_id", "start_time", "stop_time", "meta", "components", "document")
_PROVENANCE: Final = ("received_at", "updated_at", "principal", "agent", "release")

RECORD_COLUMNS: Final = (*_RECORD, *_PROVENANCE)
"""Columns that :func:`records_of` reads."""


def rows_of(copies: Sequence[LakeRecord], schema: Any, **constants: object) -> Any:  # Any: pyarrow's Schema and Table
    """Return records as an Arrow table with this schema.

    ``constants`` are values for all rows of other columns. Columns that this version does not know are null.
    """
    rows: list[dict[str, Any]] = []  # Any: columns of all types
    for copy in copies:
        record, row = copy.record, make_row(copy.record)
        rows.append(
            {
                "record_id": record.record_id,
                "start_time": row.start_time,
                "stop_time": row.stop_time,
                "runtime": record.runtime,
                **{column: getattr(row.labels, column) for column in CELL_META_COLUMNS.values()},
                "more": row.more,
                **{column: getattr(row.amounts, column) for column in AMOUNT_COLUMNS.values()},
                "meta": None if record.meta is None else list(record.meta.items()),
                "components": msgspec.to_builtins(record.components),
                "received_at": to_micros(copy.received_at),
                "updated_at": None if copy.updated_at is None else to_micros(copy.updated_at),
                "principal": copy.principal,
                "agent": copy.agent,
                "document": None if row.document == copy.document else copy.document,
                "release": copy.release or None,
                **constants,
            }
        )
    columns = [_arrow.array([row.get(field.name) for row in rows], type=field.type) for field in schema]
    return _arrow.Table.from_arrays(columns, schema=schema)


def records_of(batch: Any) -> Iterable[LakeRecord]:  # Any: pyarrow's RecordBatch
    """Yield the records of a batch with :data:`RECORD_COLUMNS`."""
    columns = [values_of(batch.column(name)) for name in RECORD_COLUMNS]
    for record_id, start, stop, meta, components, document, received, updated, principal, agent, release in zip(
        *columns, strict=True
    ):
        stopped = None if stop is None else from_micros(stop)
        labels = None if meta is None else {key: tuple(values) for key, values in meta}
        record = Record(record_id, from_micros(start), components_of(components), stopped, labels)
        text = encode_record(record).decode() if document is None else document
        updated_at: datetime | None = None if updated is None else from_micros(updated)
        yield LakeRecord(record, text, from_micros(received), updated_at, principal, agent, release or 0)


def values_of(column: Any) -> list[Any]:  # Any: pyarrow's Array, and columns of all types
    """Return the values of a column, with times in microseconds since 1970."""
    if _arrow.types.is_timestamp(column.type):
        column = column.cast(_arrow.int64())  # exact from the year 1 to 9999
    values: list[Any] = column.to_pylist()
    return values
