"""The archive as plain Parquet files, for programs that know no Iceberg, in one of two layouts.

``hive`` has a folder for each site and month in it, with the columns of the table. ``auditor`` has a file for each
month as AUDITOR's own archive: meta and components as JSON, times with milliseconds.
"""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, IsNull, LessThan, LessThanOrEqual

from auditord.archive.schema import records_of
from auditord.archive.table import ArchiveTable
from auditord.archive.writing import Partition, month_name
from auditord.database.instants import to_micros
from auditord.errors import ConfigurationError
from auditord.store.archived import Counted, Removal

_arrow: Any = import_module("pyarrow")  # Any: it ships no types
_parquet: Any = import_module("pyarrow.parquet")  # Any: the same

_NO_SITE: Final = "__HIVE_DEFAULT_PARTITION__"
_OURS: Final = ("site", "chunk")
"""Columns that are left out: the folder names the site, chunks mean nothing elsewhere."""

_TIME: Final = _arrow.timestamp("ms", tz="UTC")
_AUDITOR: Final = _arrow.schema(
    [
        _arrow.field(name, of_type, nullable=False)
        for name, of_type in {
            **dict.fromkeys(("record_id", "meta", "components"), _arrow.string()),
            **dict.fromkeys(("start_time", "stop_time"), _TIME),
            "runtime": _arrow.int64(),
        }.items()
    ]
)
"""The columns of a file of AUDITOR's archive."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    records: int
    files: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of an export.

    Args:
        path: of the file for a partition, below the folder; several partitions may share one.
        rows: a part of the table (pyarrow's RecordBatch) as a pyarrow Table for the file.
        compression: of the files.
    """

    path: Callable[[Partition], str]
    rows: Callable[[Any], Any]
    compression: str


def export(
    table: ArchiveTable,
    counted: Counted,
    folder: Path,
    layout: Layout,
    progressed: Callable[[int, int], None] = lambda _done, _total: None,
) -> Exported:
    """Write what counts of the archive to files in a new folder.

    Args:
        table: is read as of the snapshot that counts.
        counted: says what counts.
        folder: is made.
        layout: of the files.
        progressed: is called with the number of records that have been written, and of all.

    Raises:
        ConfigurationError: there is something in the folder already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty: name a new folder")
    files: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition in sorted({file.partition for file in table.files(counted.state.snapshot_id)}, key=_named):
        files[layout.path(partition)].append(partition)
    written: list[int] = []
    for path, partitions in files.items():
        written.append(_write(_rows(table, counted, partitions), folder / path, layout))
        progressed(sum(written), counted.state.records)
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


def _rows(table: ArchiveTable, counted: Counted, partitions: Sequence[Partition]) -> Iterator[Any]:
    for partition in partitions:
        yield from rows_that_count(table, counted, of_partition(partition))


def _write(rows: Iterator[Any], file: Path, layout: Layout) -> int:
    records, writer = 0, None
    try:
        for plain in map(layout.rows, rows):
            if writer is None:
                file.parent.mkdir(parents=True, exist_ok=True)
                writer = _parquet.ParquetWriter(file, plain.schema, compression=layout.compression)
            writer.write_table(plain)
            records += plain.num_rows
    finally:
        if writer is not None:
            writer.close()
    return records


def _hive_path(partition: Partition) -> str:
    month, site = partition
    return f"site={_NO_SITE if site is None else quote(site, safe='')}/month={month_name(month)}/records.parquet"


def _hive_rows(batch: Any) -> Any:
    return _arrow.Table.from_batches([batch]).drop_columns(list(_OURS))


def _auditor_path(partition: Partition) -> str:
    return f"auditor_{month_name(partition[0]).replace('-', '_')}.parquet"


class _Texts(msgspec.Struct):
    """Two members of a record's wire text, as they are written there."""

    meta: msgspec.Raw
    components: msgspec.Raw


def _auditor_rows(batch: Any) -> Any:
    columns: Mapping[str, list[str | int | None]] = {name: [] for name in _AUDITOR.names}
    for copy in records_of(batch):
        record, texts = copy.record, msgspec.json.decode(copy.document, type=_Texts)
        columns["record_id"].append(record.record_id)
        columns["meta"].append(bytes(texts.meta).decode())
        columns["components"].append(bytes(texts.components).decode())
        columns["start_time"].append(to_micros(record.start_time) // 1_000)
        columns["stop_time"].append(to_micros(copy.stop_time) // 1_000)
        columns["runtime"].append(record.runtime)
    arrays = [_arrow.array(columns[field.name], type=field.type) for field in _AUDITOR]
    return _arrow.Table.from_arrays(arrays, schema=_AUDITOR)


LAYOUTS: Final[Mapping[str, Layout]] = {
    "hive": Layout(_hive_path, _hive_rows, "zstd"),
    "auditor": Layout(_auditor_path, _auditor_rows, "gzip"),
}
"""By the names that `auditord archive export --layout` knows."""


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
