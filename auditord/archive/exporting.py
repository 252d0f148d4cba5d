"""The archive as plain Parquet files in hive folders, for programs that know no Iceberg."""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, IsNull, LessThan, LessThanOrEqual

from auditord.archive.table import ArchiveTable
from auditord.archive.writing import Partition, month_name
from auditord.errors import ConfigurationError
from auditord.store.archived import Counted, Removal

_arrow: Any = import_module("pyarrow")  # Any: it ships no types
_parquet: Any = import_module("pyarrow.parquet")  # Any: the same

_NO_SITE: Final = "__HIVE_DEFAULT_PARTITION__"
_OURS: Final = ("site", "chunk")
"""Columns that are left out: the folder names the site, chunks mean nothing elsewhere."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    records: int
    files: int


def export(table: ArchiveTable, counted: Counted, folder: Path) -> Exported:
    """Write what counts of the archive to ``site=<site>/month=<YYYY-MM>/records.parquet`` in a new folder.

    Raises:
        ConfigurationError: there is something in the folder already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty: name a new folder")
    partitions = sorted({file.partition for file in table.files(counted.state.snapshot_id)}, key=_named)
    written = [_write(table, counted, partition, folder / _path(partition)) for partition in partitions]
    return Exported(sum(written), sum(map(bool, written)))


def rows_that_count(table: ArchiveTable, counted: Counted, where: BooleanExpression) -> Iterator[Any]:
    """The rows for which a condition is true, in parts (pyarrow's RecordBatch)."""
    chunks = LessThanOrEqual(term="chunk", value=counted.state.chunk)
    for batch in table.rows(counted.state.snapshot_id, And(chunks, where), ("*",)):
        keys = zip(batch.column("record_id").to_pylist(), batch.column("chunk").to_pylist(), strict=True)
        kept = [Removal(*key) not in counted.removals for key in keys]
        yield batch if all(kept) else batch.filter(_arrow.array(kept))


def of_partition(partition: Partition) -> BooleanExpression:
    """The condition that a row is in a partition."""
    month, site = partition
    of_site = IsNull(term="site") if site is None else EqualTo(term="site", value=site)
    begin, end = (f"{month_name(each)}-01T00:00:00+00:00" for each in (month, month + 1))
    of_month = And(GreaterThanOrEqual(term="stop_time", value=begin), LessThan(term="stop_time", value=end))
    return And(of_site, of_month)


def _write(table: ArchiveTable, counted: Counted, partition: Partition, file: Path) -> int:
    records, writer = 0, None
    try:
        for batch in rows_that_count(table, counted, of_partition(partition)):
            plain = _arrow.Table.from_batches([batch]).drop_columns(list(_OURS))
            if writer is None:
                file.parent.mkdir(parents=True, exist_ok=True)
                writer = _parquet.ParquetWriter(file, plain.schema, compression="zstd")
            writer.write_table(plain)
            records += plain.num_rows
    finally:
        if writer is not None:
            writer.close()
    return records


def _path(partition: Partition) -> str:
    month, site = partition
    return f"site={_NO_SITE if site is None else quote(site, safe='')}/month={month_name(month)}/records.parquet"


def _named(partition: Partition) -> tuple[int, str]:
    return partition[0], partition[1] or ""


def ids_of(table: ArchiveTable, counted: Counted, month: str, site: str | None) -> Sequence[str]:
    """The ids of the records that stopped in a month (``2024-02``), of one site or of all."""
    partitions = {file.partition for file in table.files(counted.state.snapshot_id)}
    wanted = [each for each in partitions if month_name(each[0]) == month and site in {None, each[1]}]
    return [
        record_id
        for partition in wanted
        for batch in rows_that_count(table, counted, of_partition(partition))
        for record_id in batch.column("record_id").to_pylist()
    ]
