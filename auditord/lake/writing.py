"""The data files of the lake: new rows, files without rows that are there no more, small files as one."""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from auditord.archive.schema import rows_of
from auditord.archive.writing import month_number, partition_of_file, write_rows
from auditord.database.instants import from_micros
from auditord.store.archived import ArchivedRecord
from auditord.store.lake import LakeBatch

_arrow: Any = import_module("pyarrow")  # Any: it ships no types
_compute: Any = import_module("pyarrow.compute")

FILE_RECORDS: Final = 250_000
"""Of a file that small ones are put together to."""
SMALL_FILES: Final = 8
"""Files of a partition that are worth while to be put together."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Files that take the place of others."""

    removed: Sequence[DataFile]
    added: Sequence[DataFile]


def written(table: Table, daemon: str, batch: LakeBatch) -> Iterator[DataFile]:
    """Write the records of a batch."""
    partitions: defaultdict[tuple[int | None, str | None], list[ArchivedRecord]] = defaultdict(list)
    for copy in batch.records:
        stop = copy.record.stop_time
        partitions[None if stop is None else month_number(stop), copy.site].append(copy)
    schema = table.schema().as_arrow()
    for partition, inside in partitions.items():
        rows = rows_of(inside, schema, daemon=daemon, batch=batch.number).sort_by(ORDER)
        yield from write_rows(table, partition, rows)


def months_of(batch: LakeBatch) -> set[int | None]:
    """The months in which the table may have rows that a batch replaces."""
    stops = {stop for stops in batch.known.values() for stop in stops}
    now = {copy.record.stop_time for copy in batch.records if copy.record.record_id in batch.known}
    moments = {None if stop is None else from_micros(stop) for stop in stops} | now
    return {None if moment is None else month_number(moment) for moment in moments}


def without(
    table: Table, tasks: Iterable[FileScanTask], daemon: str, record_ids: Collection[str] | None = None
) -> Rewritten:
    """Write files once more without rows of a daemon.

    Args:
        table: that they are of.
        tasks: files that may hold such rows.
        daemon: whose rows go.
        record_ids: those that go; None: all.
    """
    removed, added = list[DataFile](), list[DataFile]()
    if record_ids is not None and not record_ids:
        return Rewritten(removed, added)
    keys = ArrowScan(table.metadata, table.io, table.schema().select("daemon", "record_id"), AlwaysTrue())
    whole = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    for task in tasks:
        if not _compute.any(_are_gone(keys.to_table([task]), daemon, record_ids)).as_py():
            continue
        rows = whole.to_table([task])
        kept = rows.filter(_compute.invert(_are_gone(rows, daemon, record_ids)))
        removed.append(task.file)
        if kept.num_rows:
            added += write_rows(table, partition_of_file(task.file), kept)
    return Rewritten(removed, added)


def joined(table: Table, groups: Iterable[Sequence[FileScanTask]]) -> Rewritten:
    """Write what the files of each group hold as one file.

    Raises:
        OSError: it does not have as many rows.
    """
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    removed, added = list[DataFile](), list[DataFile]()
    for tasks in groups:
        rows = scan.to_table(tasks).sort_by(ORDER)
        files = list(write_rows(table, partition_of_file(tasks[0].file), rows))
        if rows.num_rows != sum(file.record_count for file in files):
            raise OSError(f"{files[0].file_path} does not hold what was written to it")
        removed += [task.file for task in tasks]
        added += files
    return Rewritten(removed, added)


ORDER: Final = [("user_group", "ascending"), ("user_name", "ascending"), ("stop_time", "ascending")]
"""Of rows in a file: equal texts side by side take a third of the space."""


def _are_gone(rows: Any, daemon: str, record_ids: Collection[str] | None) -> Any:  # Any: pyarrow's Table, a mask
    of_daemon = _compute.equal(rows["daemon"], daemon)
    if record_ids is None:
        return of_daemon
    ids = rows["record_id"]
    return _compute.and_(of_daemon, _compute.is_in(ids, value_set=_arrow.array(list(record_ids), type=ids.type)))
