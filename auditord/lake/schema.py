"""The columns of the lake: those of the archive, and which daemon the record is of."""

# pyiceberg's classes get their signatures while they are made; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownMemberType=false

from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from auditord.archive.schema import SCHEMA as ARCHIVE

_OPEN: Final = {
    "stop_time": NestedField(3, "stop_time", TimestamptzType(), required=False, doc="null: the record is open"),
    "runtime": NestedField(4, "runtime", LongType(), required=False, doc="whole seconds, toward zero; null: open"),
}
_KEPT: Final = tuple(_OPEN.get(each.name, each) for each in ARCHIVE.fields if each.name != "chunk")

SCHEMA: Final = Schema(
    *_KEPT,
    NestedField(21, "daemon", StringType(), required=True, doc="its lake.name; ids are unique within a daemon"),
    NestedField(22, "batch", LongType(), required=True, doc="of the daemon, with which the row came"),
)
"""Of the table, when it is made. A later column must not be required: earlier rows have none; it is added when a daemon
that knows it opens the table. Meta keys and components are in lists, so that a new one needs no column."""


def add_columns(table: Table) -> None:
    """Add the columns that a table of an earlier version does not have."""
    known = set(table.schema().column_names)
    if not {field.name for field in SCHEMA.fields} <= known:
        with table.update_schema() as update:
            update.union_by_name(SCHEMA)
