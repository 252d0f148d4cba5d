"""Reading of data files, which other programs can damage or replace: errors name the file, and no row is missing."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import VoidTransform
from typing_extensions import override

from auditord.lake.schema import SCHEMA
from auditord.store.lake import LakeUnavailable
from auditord_hookspecs.wording import counted

_datasets: Any = import_module("pyarrow.dataset")  # Any: it ships no types

# pyarrow's errors are subclasses of these.
_UNREADABLE: Final = (ArithmeticError, LookupError, MemoryError, NotImplementedError, OSError, TypeError, ValueError)

_BOUNDED: Final = {
    name: SCHEMA.find_field(name).field_id
    for name in (
        *("record_id", "start_time", "stop_time", "runtime", "site", "user_group", "user_name", "more"),
        *("release", "daemon", "batch"),
    )
}
"""Columns by which queries skip files, with their numbers."""
_NO_PARTITION: Final[tuple[Any, None]] = VoidTransform(), None  # Any: pyiceberg's generic class


class LakeDamaged(LakeUnavailable):
    """A data file of the lake cannot be read, or does not have the rows that the table says.

    Remedy:
        restore the file, or the lake and its catalog, from their backup; or roll the table back to a snapshot without
        the file: the next run syncs the records that are not released again.
    """

    summary: ClassVar[str] = (
        "a data file of the lake (table auditord.lake) is damaged, or another program has replaced it"
    )


class LakeScan(ArrowScan):
    """A scan that reads whole tasks."""

    @override
    def to_table(self, tasks: Iterable[FileScanTask]) -> Any:  # Any: pyarrow's Table
        wanted = list(tasks)
        try:
            rows: Any = super().to_table(wanted)
        except _UNREADABLE as error:
            if len(wanted) > 1:
                for task in wanted:  # the damaged file raises
                    self.to_table([task])
            raise _unreadable(", ".join(task.file.file_path for task in wanted), error) from error
        is_whole = isinstance(self._bound_row_filter, AlwaysTrue) and not any(task.delete_files for task in wanted)
        if is_whole and rows.num_rows != sum(task.file.record_count for task in wanted):
            for task in wanted if len(wanted) > 1 else ():
                self.to_table([task])
            raise _blame_count(wanted[0].file.file_path, rows.num_rows, wanted[0].file.record_count)
        return rows


def open_files(table: Table, files: Sequence[DataFile]) -> tuple[Any, Sequence[str], bool]:
    """Return data files as a pyarrow Dataset, their paths, and whether they are files of this host.

    Their rows and bounds are compared with those of the table first. This reads only the ends of the files, and finds
    files that were replaced or exchanged. Sizes are compared on this host, where they cost nothing.

    Raises:
        LakeDamaged: a file cannot be read or has other rows.
    """
    io: Any = table.io  # Any: pyiceberg types it as any FileIO
    located = [io.parse_location(file.file_path, io.properties) for file in files]
    paths, (scheme, netloc, _) = [path for _, _, path in located], located[0]
    filesystem, schema = io.fs_by_scheme(scheme, netloc), table.schema().as_arrow()
    try:
        for path, file in zip(paths, files, strict=True) if scheme == "file" else ():
            if Path(path).stat().st_size != file.file_size_in_bytes:
                raise LakeDamaged(
                    f"The data file {path} of the lake does not have the size with which it was written: another "
                    "program has replaced it. Restore it from a backup."
                )
        dataset = _datasets.dataset(paths, schema, format="parquet", filesystem=filesystem)
        dataset.count_rows()  # reads the ends of all files in parallel, and remembers them
        for fragment, file in zip(dataset.get_fragments(), files, strict=True):
            if fragment.metadata.num_rows != file.record_count:
                raise _blame_count(fragment.path, fragment.metadata.num_rows, file.record_count)
            if not _is_as_recorded(fragment.metadata, file, table.specs()[file.spec_id]):
                raise LakeDamaged(
                    f"The data file {fragment.path} of the lake has other values than those that were written to it: "
                    "another program has replaced it. Restore it from a backup."
                )
    except _UNREADABLE as error:
        raise _unreadable(f"one of {len(paths):,}", error) from error
    return dataset, paths, scheme == "file"


def _is_as_recorded(metadata: Any, file: DataFile, spec: PartitionSpec) -> bool:  # Any: pyarrow's FileMetaData
    """Return whether a Parquet file has the bounds, nulls and partition by which queries would skip it."""
    names, values = metadata.schema.names, file.value_counts or {}
    row_groups = [metadata.row_group(each) for each in range(metadata.num_row_groups)]
    partitions = {field.source_id: (field.transform, file.partition[at]) for at, field in enumerate(spec.fields)}
    for name, number in _BOUNDED.items():
        if name not in names:
            continue
        column = names.index(name)
        groups = [each.column(column).statistics for each in row_groups]
        nulls: int | None = None
        if all(each is not None and each.has_null_count for each in groups):
            nulls = sum(each.null_count for each in groups)
        ends = [end for each in groups if each is not None and each.has_min_max for end in (each.min_raw, each.max_raw)]
        lower, upper = (bounds.get(number) for bounds in (file.lower_bounds or {}, file.upper_bounds or {}))
        transform, partition = partitions.get(number, _NO_PARTITION)
        # Unknown, or as the table says. A partition has no nulls or, if it is that of nulls, nothing else.
        nulls_wanted = {None, (file.null_value_counts or {}).get(number, nulls)}
        if not isinstance(transform, VoidTransform):
            nulls_wanted &= {None, file.record_count if partition is None else 0}
        partition_of = transform.transform(SCHEMA.find_field(number).field_type)
        if (
            values.get(number, file.record_count) != file.record_count
            or nulls not in nulls_wanted
            or not _are_within_bounds(ends, lower, upper)
            or any(partition_of(end.decode() if isinstance(end, bytes) else end) != partition for end in ends)
        ):
            return False
    return True


def _are_within_bounds(ends: Sequence[Any], lower: bytes | None, upper: bytes | None) -> bool:  # Any: of all types
    if lower is None or upper is None:
        return True
    if all(isinstance(end, int) for end in ends):
        least, most = (int.from_bytes(each, "little", signed=True) for each in (lower, upper))
        return all(least <= end <= most for end in ends)
    return all(lower <= end <= upper for end in ends)  # texts, whose bounds may be cut


def _unreadable(path: str, error: BaseException) -> LakeDamaged:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return LakeDamaged(
        f"A data file of the lake cannot be read: {path} ({text:.400}). If other files of the storage can be read, "
        "restore it from a backup."
    )


def _blame_count(path: str, found: int, expected: int) -> LakeDamaged:
    return LakeDamaged(
        f"The data file {path} of the lake has {counted(found, 'row')}, but {expected:,} were written to it: "
        "another program has replaced it. Restore it from a backup."
    )
