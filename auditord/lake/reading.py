"""Read rows of a loaded table, and count them."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import FileScanTask, Table

from auditord.lake.data_files import LakeScan
from auditord.lake.pruning import match_daemon
from auditord.lake.schema import SCHEMA, values_of
from auditord.store.lake import Released, ReleasedRow

_KEYS: Final = ("record_id", "release", "stop_time")

_DAEMON: Final = SCHEMA.find_field("daemon").field_id
_RELEASE: Final = SCHEMA.find_field("release").field_id


def count_released(table: Table, daemon: str, released: Released) -> int:
    """Count the released records of a daemon in the newest snapshot of a loaded table."""
    where = match_daemon(daemon, released.state.release)
    keys = (read_keys(table, [task], where) for task in table.scan(where).plan_files())
    return sum(len(rows.difference(released.recalled)) for rows in keys)


def stream_rows(table: Table, where: BooleanExpression, columns: Sequence[str]) -> Iterator[Any]:  # Any: pyarrow's
    """Yield the rows of the newest snapshot that match a condition, as pyarrow RecordBatches."""
    scan = table.scan(where, selected_fields=tuple(columns))
    reader = LakeScan(table.metadata, table.io, scan.projection(), scan.row_filter)
    for task in scan.plan_files():
        yield from reader.to_table([task]).to_batches()


def count_marked(table: Table, snapshot_id: int, daemon: str, release: int) -> int:
    """Count the rows of a daemon with release numbers up to ``release``. Most files need not be read for it."""
    scan = table.scan(match_daemon(daemon, release), snapshot_id=snapshot_id, selected_fields=("release",))
    reader, rows = LakeScan(table.metadata, table.io, scan.projection(), scan.row_filter), 0
    for task in scan.plan_files():
        file = task.file
        names = {file.lower_bounds.get(_DAEMON), file.upper_bounds.get(_DAEMON)}
        nulls, last = file.null_value_counts.get(_RELEASE), file.upper_bounds.get(_RELEASE)
        is_released = last is not None and int.from_bytes(last, "little", signed=True) <= release
        if nulls is not None and is_released and names == {daemon.encode()} and not task.delete_files:
            rows += file.record_count - nulls
        else:
            rows += reader.to_table([task]).num_rows
    return rows


def read_rows(table: Table, snapshot_id: int | None, where: BooleanExpression, columns: Sequence[str]) -> Any:
    """Return rows of a snapshot as a pyarrow Table."""
    scan = table.scan(where, selected_fields=tuple(columns), snapshot_id=snapshot_id)
    return LakeScan(table.metadata, table.io, scan.projection(), scan.row_filter).to_table(scan.plan_files())


def read_keys(table: Table, tasks: Sequence[FileScanTask], where: BooleanExpression) -> set[ReleasedRow]:
    """Return the ids, release numbers and stop times of the rows in some files that match a condition."""
    scan = table.scan(where, selected_fields=_KEYS)
    rows = LakeScan(table.metadata, table.io, scan.projection(), scan.row_filter).to_table(tasks)
    return {ReleasedRow(*row) for row in zip(*[values_of(rows[name]) for name in _KEYS], strict=True)}
