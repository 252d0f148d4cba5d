"""Files of the table in the order of what they hold, so that a page of an answer opens few of them."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from pyiceberg.conversions import from_bytes
from pyiceberg.table import FileScanTask, Table

from auditord.database.instants import to_micros
from auditord_hookspecs import Record
from auditord_hookspecs.query import Order, SortField

Bound: TypeAlias = Any  # Any: of the column's type; times are microseconds since 1970
"""A value that no row of a file precedes in an order; None if none is known."""


def by_bounds(table: Table, tasks: Iterable[FileScanTask], order: Order) -> Sequence[tuple[Bound, FileScanTask]]:
    """The files of a scan in an order; those of which nothing is known come first."""
    field = table.schema().find_field(order.field.value)
    found = [(_bound(task, field.field_id, field.field_type, order), task) for task in tasks]
    unknown = [each for each in found if each[0] is None]
    known = [each for each in found if each[0] is not None]
    return [*unknown, *sorted(known, key=lambda each: each[0], reverse=order.descending)]


def is_behind(bound: Bound, record: Record, order: Order) -> bool:
    """Return whether all rows of a file come behind a record."""
    value = _value(record, order)
    return bound is not None and bool(bound < value if order.descending else bound > value)


def _value(record: Record, order: Order) -> Bound:
    match order.field:
        case SortField.START:
            return to_micros(record.start_time)
        case SortField.STOP:
            return None if record.stop_time is None else to_micros(record.stop_time)
        case SortField.RUNTIME:
            return record.runtime
        case SortField.ID:
            return record.record_id


def _bound(task: FileScanTask, field_id: int, field_type: Any, order: Order) -> Bound:  # Any: pyiceberg's
    bounds = task.file.upper_bounds if order.descending else task.file.lower_bounds
    value = (bounds or {}).get(field_id)
    return None if value is None else from_bytes(field_type, value)
