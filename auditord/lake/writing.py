"""The lake's data files: writing new rows, and rewriting files to remove, number or merge rows.

A rewritten file is read back and compared before it is committed, because it may have the only copies of records.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, Final, TypeAlias

import msgspec
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import FileScanTask, Table, WriteTask
from typing_extensions import override

from auditord.database.instants import from_micros
from auditord.lake.data_files import LakeScan
from auditord.lake.schema import PARTITIONS, rows_of
from auditord.store.lake import LakeBatch, LakeRecord, Released, ReleasedRow

_arrow: Any = import_module("pyarrow")  # Any: it ships no types
_compute: Any = import_module("pyarrow.compute")

FILE_RECORDS: Final = 250_000
"""Most rows of a merged file."""
SMALL_FILES: Final = 8
"""Minimum number of small files in a partition for a merge."""
RELEASE_RECORDS: Final = 500
"""Rows with the same release number. The record store deletes their records in one transaction."""

_SOURCES: Final = [(each.source_id, each.transform) for each in PARTITIONS.fields]
_FIRST: Final = 1970 * 12
_LONGEST_NAME: Final = 255
"""Most bytes of a folder's name in common file systems. A site in a path is percent-encoded."""

Partition: TypeAlias = tuple[int | None, str | None]
"""Months since January 1970, as in Iceberg (None for open records), and the site."""
Mask: TypeAlias = Callable[[Any], Any]
"""Returns a Boolean column that selects rows of a pyarrow Table."""


class Rewritten(msgspec.Struct, frozen=True):
    """Data files and the files that replace them."""

    removed: Sequence[DataFile]
    added: Sequence[DataFile]


def month_number(moment: datetime) -> int:
    """Return the month of an instant in UTC as in :data:`Partition`."""
    return moment.year * 12 + moment.month - 1 - _FIRST


def month_name(number: int) -> str:
    """Return the name of a month, such as ``2024-02``, from its number in :data:`Partition`."""
    year, month = divmod(number + _FIRST, 12)
    return f"{year:04d}-{month + 1:02d}"


def partition_of_file(file: DataFile) -> Partition:
    """Return the partition of a file.

    Raises:
        ValueError: another engine has written it with other partitions.
    """
    if len(file.partition) != len(PARTITIONS.fields):
        raise ValueError(f"{file.file_path} is not in a partition by month and site")
    return file.partition[0], file.partition[1]


def write_batch(table: Table, daemon: str, batch: LakeBatch) -> Iterator[DataFile]:
    partitions: defaultdict[Partition, list[LakeRecord]] = defaultdict(list)
    for copy in batch.records:
        stop = copy.record.stop_time
        partitions[None if stop is None else month_number(stop), copy.site].append(copy)
    schema = table.schema().as_arrow()
    for partition, inside in partitions.items():
        rows = rows_of(inside, schema, daemon=daemon, batch=batch.number).sort_by(ORDER)
        yield from write_rows(table, partition, rows)


def months_of(batch: LakeBatch) -> set[int | None]:
    """Return the months in which the table may have rows that a batch replaces."""
    stops = {stop for stops in batch.known.values() for stop in stops} | {row.stop_time for row in batch.recalled}
    now = {copy.record.stop_time for copy in batch.records if copy.record.record_id in batch.known}
    moments = {None if stop is None else from_micros(stop) for stop in stops} | now
    return {None if moment is None else month_number(moment) for moment in moments}


def mask_replaced(daemon: str, batch: LakeBatch) -> Mask:
    """Return the mask of a daemon's rows that a batch replaces."""
    are_recalled = mask_recalled(batch.recalled)
    ids = list(batch.known)

    def are_replaced(rows: Any) -> Any:
        column = rows["record_id"]
        known = _compute.is_in(column, value_set=_arrow.array(ids, type=column.type))
        return _compute.and_(_compute.equal(rows["daemon"], daemon), _compute.or_(known, are_recalled(rows)))

    return are_replaced


def mask_unreleased(daemon: str, released: Released | None) -> Mask:
    """Return the mask of a daemon's rows, except released records if ``released`` is given."""

    def are_in_store(rows: Any) -> Any:
        own = _compute.equal(rows["daemon"], daemon)
        if released is None:
            return own
        numbered = _compute.fill_null(_compute.less_equal(rows["release"], released.state.release), fill_value=False)
        count = _compute.and_not(numbered, mask_recalled(released.recalled)(rows))
        return _compute.and_not(own, count)

    return are_in_store


def mask_recalled(recalled: Collection[ReleasedRow]) -> Mask:
    """Return the mask of rows with these ids and release numbers."""
    keys = [f"{row.release}:{row.record_id}" for row in recalled]

    def are_recalled(rows: Any) -> Any:
        ids = rows["record_id"]
        if not keys:
            return _compute.and_not(_compute.is_valid(ids), _compute.is_valid(ids))
        numbers = _compute.cast(rows["release"], ids.type)
        found = _compute.binary_join_element_wise(numbers, ids, _arrow.scalar(":", type=ids.type))
        return _compute.fill_null(_compute.is_in(found, value_set=_arrow.array(keys, type=ids.type)), fill_value=False)

    return are_recalled


def remove_rows(table: Table, tasks: Iterable[FileScanTask], gone: Mask) -> Rewritten:
    """Rewrite the files that hold rows of the mask ``gone``, without these rows."""

    def keep(rows: Any) -> Any:
        return rows.filter(_compute.invert(gone(rows)))

    return _rewrite(table, tasks, gone, keep)


def clear_releases(
    table: Table, tasks: Iterable[FileScanTask], daemon: str, recalled: Collection[ReleasedRow], batch: int
) -> Rewritten:
    """Rewrite files with the release number of recalled rows cleared, as rows of this batch."""
    are_recalled = mask_recalled(recalled)

    def is_recalled(rows: Any) -> Any:
        return _compute.and_(_compute.equal(rows["daemon"], daemon), are_recalled(rows))

    def clear(rows: Any) -> Any:
        cleared = is_recalled(rows)
        batches = _compute.if_else(cleared, _arrow.scalar(batch, _arrow.int64()), rows["batch"])
        releases = _compute.if_else(cleared, _arrow.scalar(None, _arrow.int64()), rows["release"])
        return _with_column(_with_column(rows, "batch", batches), "release", releases)

    return _rewrite(table, tasks, is_recalled, clear)


def assign_releases(
    table: Table, groups: Iterable[Sequence[FileScanTask]], free: Mask, first: int
) -> tuple[Rewritten, int]:
    """Rewrite files with release numbers for the rows of the mask ``free``.

    Each group has the files of one partition, which become one file. Release numbers start at ``first``; the next
    unused number is returned with the files.
    """
    scan, removed, added = _scan(table), list[DataFile](), list[DataFile]()
    for tasks in groups:
        rows = scan.to_table(tasks).sort_by(ORDER)
        are_free = free(rows)
        places = _compute.subtract(_compute.cumulative_sum(_compute.cast(are_free, _arrow.int64())), 1)
        numbers = _compute.add(_compute.divide(places, RELEASE_RECORDS), first)
        count = _compute.sum(are_free).as_py() or 0
        first += -(-count // RELEASE_RECORDS)
        removed += [task.file for task in tasks]
        releases = _compute.if_else(are_free, numbers, rows["release"])
        added += _write_checked(table, tasks[0], _with_column(rows, "release", releases))
    return Rewritten(removed, added), first


def mask_free(daemon: str, batch: int) -> Mask:
    """Return the mask of a daemon's rows without a release number, of batches up to this one."""

    def are_free(rows: Any) -> Any:
        own = _compute.and_(_compute.equal(rows["daemon"], daemon), _compute.less_equal(rows["batch"], batch))
        return _compute.and_(own, _compute.is_null(rows["release"]))

    return are_free


def files_with(table: Table, tasks: Iterable[FileScanTask], found: Mask) -> Iterator[FileScanTask]:
    """Yield the files that have a row selected by ``found``."""
    keys = _scan(table, "daemon", "record_id", "release", "batch")
    for task in tasks:
        if _compute.any(found(keys.to_table([task]))).as_py():
            yield task


def merge_files(table: Table, groups: Iterable[Sequence[FileScanTask]]) -> Rewritten:
    scan, removed, added = _scan(table), list[DataFile](), list[DataFile]()
    for tasks in groups:
        removed += [task.file for task in tasks]
        added += _write_checked(table, tasks[0], scan.to_table(tasks).sort_by(ORDER))
    return Rewritten(removed, added)


def small_files(tasks: Iterable[FileScanTask], most: int, least: int) -> Sequence[Sequence[FileScanTask]]:
    """Return groups of files worth merging: ``least`` or more of one partition, with at most ``most`` rows together."""
    small: defaultdict[Partition, list[FileScanTask]] = defaultdict(list)
    for task in tasks:
        if task.file.record_count <= most // 2:
            small[partition_of_file(task.file)].append(task)
    groups: list[list[FileScanTask]] = []
    for inside in small.values():
        groups.append([])
        rows = 0
        for task in sorted(inside, key=lambda each: each.file.record_count):
            if rows + task.file.record_count > most:
                groups.append([])
                rows = 0
            groups[-1].append(task)
            rows += task.file.record_count
    return [group for group in groups if len(group) >= least]


ORDER: Final = [("user_group", "ascending"), ("user_name", "ascending"), ("stop_time", "ascending")]
"""Sort order of the rows in a file. Equal texts take a third of the space side by side."""


def write_rows(table: Table, partition: Partition, rows: Any) -> Iterator[DataFile]:  # Any: pyarrow's Table
    metadata, spec = table.metadata, table.spec()
    if [(each.source_id, each.transform) for each in spec.fields] != _SOURCES:
        raise ValueError("another engine has changed its partitions, which were month and site")
    values = [PartitionFieldValue(field, value) for field, value in zip(spec.fields, partition, strict=True)]
    key = _Folders(values, spec, metadata.schema())
    task = WriteTask(uuid.uuid4(), 0, metadata.schema(), rows.to_batches(), partition_key=key)
    return write_file(table.io, metadata, iter([task]))


class _Folders(PartitionKey):
    """A partition key that leaves out the folder of a site if file systems would refuse its name."""

    @override
    def to_path(self) -> str:
        month, _, site = super().to_path().partition("/")
        return f"{month}/{site}" if len(site) <= _LONGEST_NAME else month


def commit_files(
    table: Table, properties: Mapping[str, str], removed: Sequence[DataFile], added: Iterable[DataFile]
) -> None:
    """Commit a snapshot that replaces files and has these additional properties."""
    with table.transaction() as transaction:
        update = transaction.update_snapshot(snapshot_properties=dict(properties))
        with update.overwrite() if removed else update.merge_append() as files:
            for file in removed:
                files.delete_data_file(file)
            for file in added:
                files.append_data_file(file)


def _scan(table: Table, *columns: str) -> LakeScan:
    schema = table.schema().select(*columns) if columns else table.schema()
    return LakeScan(table.metadata, table.io, schema, AlwaysTrue())


def _rewrite(table: Table, tasks: Iterable[FileScanTask], found: Mask, change: Callable[[Any], Any]) -> Rewritten:
    """Rewrite the files that have a row selected by ``found``."""
    removed, added = list[DataFile](), list[DataFile]()
    all_columns = _scan(table)
    for task in files_with(table, tasks, found):
        rows = change(all_columns.to_table([task]))
        removed.append(task.file)
        if rows.num_rows:
            added += _write_checked(table, task, rows)
    return Rewritten(removed, added)


def _with_column(rows: Any, name: str, numbers: Any) -> Any:  # Any: pyarrow's Table and column
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), numbers)


def _write_checked(table: Table, like: FileScanTask, rows: Any) -> Sequence[DataFile]:  # Any: pyarrow's Table
    """Write rows to the partition of a file, and read them back.

    Raises:
        OSError: the rows read differ from the rows written.
    """
    files = list(write_rows(table, partition_of_file(like.file), rows))
    for file in files:
        file.spec_id = table.metadata.default_spec_id  # pyiceberg sets it only on files read from a manifest
    if not _scan(table).to_table([FileScanTask(file) for file in files]).equals(rows):
        raise OSError(f"{files[0].file_path} does not hold the rows that were written to it")
    return files
