"""Reading of data files, which other programs can damage or replace: errors name the file, and no row is missing."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from typing_extensions import override

from auditord.errors import StoreUnavailable
from auditord_hookspecs.wording import counted

_datasets: Any = import_module("pyarrow.dataset")  # Any: it ships no types

# pyarrow's errors are subclasses of these.
_UNREADABLE: Final = (ArithmeticError, LookupError, MemoryError, NotImplementedError, OSError, TypeError, ValueError)


class LakeDamaged(StoreUnavailable):
    """A data file of the lake cannot be read, or does not have the rows that the table says.

    Remedy:
        restore the file, or the lake and its catalog, from their backup; or roll the table back to a snapshot without
        the file: the next run syncs the records that are not released again.
    """


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


def open_files(paths: Sequence[str], files: Sequence[DataFile], schema: Any, filesystem: Any) -> Any:  # Any: pyarrow's
    """Return Parquet files as a pyarrow Dataset, after their numbers of rows were compared with those of the table.

    This reads the ends of the files only. Sizes are compared on this host, where they cost nothing.

    Raises:
        LakeDamaged: a file cannot be read or has other rows.
    """
    try:
        for path, file in zip(paths, files, strict=True) if filesystem.type_name == "local" else ():
            if Path(path).stat().st_size != file.file_size_in_bytes:
                raise LakeDamaged(
                    f"The data file {path} of the lake does not have the size with which it was written: another "
                    "program has replaced it. Restore it from a backup."
                )
        dataset = _datasets.dataset(paths, schema, format="parquet", filesystem=filesystem)
        if dataset.count_rows() != sum(file.record_count for file in files):
            for fragment, file in zip(dataset.get_fragments(), files, strict=True):
                if (found := fragment.count_rows()) != file.record_count:
                    raise _blame_count(fragment.path, found, file.record_count)
    except _UNREADABLE as error:
        raise _unreadable(f"one of {len(paths):,}", error) from error
    return dataset


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
