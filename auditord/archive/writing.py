"""The data files of the table: one for each partition, in the order of the records that it is made of."""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, Final, TypeAlias

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import FileScanTask, Table, WriteTask

from auditord.archive.schema import rows_of
from auditord.store.archived import ArchivedRecord, Removal

_arrow: Any = import_module("pyarrow")  # Any: it ships no types

_FIRST: Final = 1970 * 12
FILE_RECORDS: Final = 25_000
"""Of a file at the most, as one commit has: a page of an answer reads whole files."""
SMALL_FILES: Final = 4
"""Files that are worth while to be put together."""

Partition: TypeAlias = tuple[int, str | None]
"""Months since January 1970, as Iceberg counts them, and the site."""


def month_number(moment: datetime) -> int:
    """The month of an instant in UTC, as partitions have it."""
    return moment.year * 12 + moment.month - 1 - _FIRST


def month_name(number: int) -> str:
    """The month with a number, as ``2024-02``."""
    year, month = divmod(number + _FIRST, 12)
    return f"{year:04d}-{month + 1:02d}"


def partition_of_file(file: DataFile) -> Partition:
    """The partition of a file; of one of the lake, the month is None for open records."""
    return file.partition[0], file.partition[1]


class NewRows:
    """Rows on their way into the table, in Arrow's columns: records of Python take ten times as much memory."""

    def __init__(self, schema: Any) -> None:  # Any: pyarrow's Schema
        self.records = 0
        self.last_chunk = 0
        self._schema = schema
        self._parts: defaultdict[Partition, list[Any]] = defaultdict(list)

    def add(self, copies: Sequence[ArchivedRecord]) -> None:
        """Take records, whose chunks do not precede those of the former ones."""
        partitions: defaultdict[Partition, list[ArchivedRecord]] = defaultdict(list)
        for copy in copies:
            partitions[month_number(copy.stop_time), copy.site].append(copy)
        for partition, inside in partitions.items():
            self._parts[partition].append(rows_of(inside, self._schema))
        self.records += len(copies)
        self.last_chunk = copies[-1].chunk

    def parts(self) -> Iterator[tuple[Partition, Any]]:  # Any: pyarrow's Table
        """The rows of each partition."""
        for partition, tables in self._parts.items():
            yield partition, _arrow.concat_tables(tables)


def written(table: Table, rows: NewRows) -> Iterator[DataFile]:
    """Write rows, and synchronise the files."""
    for partition, inside in rows.parts():
        yield from write_rows(table, partition, inside)


def rewritten(table: Table, files: Sequence[DataFile], removals: Collection[Removal]) -> Iterator[DataFile]:
    """Write what files hold once more, without some of the rows."""
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    for file in files:
        rows = scan.to_table([FileScanTask(file)])
        kept = [Removal(*pair) not in removals for pair in _pairs(rows)]
        if any(kept):
            yield from write_rows(table, partition_of_file(file), rows.filter(_arrow.array(kept)))


def small_files(tasks: Iterable[FileScanTask], most: int, least: int) -> Sequence[Sequence[FileScanTask]]:
    """The files that are better put together: at least so many of one partition, with so many rows at most."""
    small: defaultdict[Partition, list[FileScanTask]] = defaultdict(list)
    for task in tasks:
        if task.file.record_count <= most // 2:
            small[partition_of_file(task.file)].append(task)
    return [group for inside in small.values() for group in _groups(inside, most) if len(group) >= least]


def put_together(table: Table, groups: Iterable[Sequence[FileScanTask]]) -> Iterator[DataFile]:
    """Write what the files of each group hold once more, as one file, which is read back.

    Raises:
        OSError: it does not hold the same rows.
    """
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    for tasks in groups:
        files = [task.file for task in tasks]
        rows = scan.to_table(tasks).sort_by([("stop_time", "ascending"), ("record_id", "ascending")])
        for file in write_rows(table, partition_of_file(files[0]), rows):
            file.spec_id = table.metadata.default_spec_id  # pyiceberg gives it when a file is read from a manifest
            if sorted(map(_place, rows_in(table, [file]))) != sorted(map(_place, rows_in(table, files))):
                raise OSError(f"{file.file_path} does not hold what was written to it")
            yield file


def _groups(tasks: Iterable[FileScanTask], most: int) -> Iterator[Sequence[FileScanTask]]:
    """Parts of the files with so many rows as a file has at most."""
    group, rows = list[FileScanTask](), 0
    for task in sorted(tasks, key=lambda each: each.file.record_count):
        if rows + task.file.record_count > most:
            yield group
            group, rows = [], 0
        group, rows = [*group, task], rows + task.file.record_count
    yield group


def _place(row: Removal) -> tuple[str, int]:
    return row.record_id, row.chunk


def rows_in(table: Table, files: Iterable[DataFile]) -> Iterator[Removal]:
    """The rows that files hold, by id and chunk."""
    scan = ArrowScan(table.metadata, table.io, table.schema().select("record_id", "chunk"), AlwaysTrue())
    for file in files:
        for record_id, chunk in _pairs(scan.to_table([FileScanTask(file)])):
            yield Removal(record_id, chunk)


def _pairs(rows: Any) -> Iterator[tuple[str, int]]:  # Any: pyarrow's Table
    return zip(rows.column("record_id").to_pylist(), rows.column("chunk").to_pylist(), strict=True)


def write_rows(
    table: Table, partition: tuple[int | None, str | None], rows: Any
) -> Iterator[DataFile]:  # Any: pyarrow's Table
    """Write rows of one partition to files."""
    metadata, spec = table.metadata, table.spec()
    values = [PartitionFieldValue(field, value) for field, value in zip(spec.fields, partition, strict=True)]
    key = PartitionKey(values, spec, metadata.schema())
    task = WriteTask(uuid.uuid4(), 0, metadata.schema(), rows.to_batches(), partition_key=key)
    return write_file(table.io, metadata, iter([task]))


def commit_files(
    table: Table, properties: Mapping[str, str], removed: Sequence[DataFile], added: Iterable[DataFile]
) -> None:
    """Commit a snapshot with these properties of its own, in which files take the place of others."""
    with table.transaction() as transaction:
        update = transaction.update_snapshot(snapshot_properties=dict(properties))
        with update.overwrite() if removed else update.merge_append() as files:
            for file in removed:
                files.delete_data_file(file)
            for file in added:
                files.append_data_file(file)
