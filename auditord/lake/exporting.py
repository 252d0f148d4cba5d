"""Export of a daemon's finished records to plain Parquet files, for programs without Iceberg.

The layout ``hive`` has a folder for each site and month, and the columns of the table. ``auditor`` has a file for each
month, as in AUDITOR's own archive: meta and components as JSON, times in milliseconds.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import FileScanTask

from auditord.database.instants import to_micros
from auditord.errors import ConfigurationError
from auditord.lake.data_files import LakeScan
from auditord.lake.pruning import match_daemon
from auditord.lake.schema import records_of, values_of
from auditord.lake.table import LakeTable
from auditord.lake.writing import Partition, month_name, partition_of_file
from auditord.store.lake import Released, ReleasedRow

_arrow: Any = import_module("pyarrow")  # Any: it ships no types
_parquet: Any = import_module("pyarrow.parquet")  # Any: the same

_NO_SITE: Final = "__HIVE_DEFAULT_PARTITION__"
_OURS: Final = ("site", "release", "daemon", "batch")
"""Columns left out. The folder names the site, and the others have no meaning outside the lake."""
_KEYS: Final = ("record_id", "release", "stop_time")

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
"""Schema of a file in AUDITOR's archive."""


class Exported(msgspec.Struct, frozen=True):
    """The result of an export."""

    records: int
    files: int


class Layout(msgspec.Struct, frozen=True):
    """The files of an export.

    Args:
        path: returns the path of a partition's file below the folder; several partitions may share a file.
        rows: converts a pyarrow RecordBatch of the table to a pyarrow Table for the file.
        compression: of the files.
    """

    path: Callable[[Partition], str]
    rows: Callable[[Any], Any]
    compression: str


def export(
    table: LakeTable,
    daemon: str,
    folder: Path,
    layout: Layout,
    progressed: Callable[[int, int], None] = lambda _done, _total: None,
) -> Exported:
    """Write the finished records of a daemon in the newest snapshot to files in a new folder.

    ``progressed`` is called with the number of files processed so far and the total.

    Raises:
        ConfigurationError: the folder is not empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} is not empty: name a new folder")
    files: defaultdict[str, list[Iterator[Any]]] = defaultdict(list)
    for partition, rows in _by_partition(table, match_daemon(daemon)).items():
        files[layout.path(partition)].append(rows)
    written: list[int] = []
    for path, parts in files.items():
        file = folder / path
        records, writer = 0, None
        try:
            for plain in map(layout.rows, chain.from_iterable(parts)):
                if writer is None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    writer = _parquet.ParquetWriter(file, plain.schema, compression=layout.compression)
                writer.write_table(plain)
                records += plain.num_rows
        finally:
            if writer is not None:
                writer.close()
        written.append(records)
        progressed(len(written), len(files))
    return Exported(sum(written), sum(map(bool, written)))


def ids_of(table: LakeTable, daemon: str, released: Released, month: str, site: str | None) -> Sequence[str]:
    """Return the ids of the released records of a month (``2024-02``), at one site or at all sites if it is None."""
    found, where = list[str](), match_daemon(daemon, released.state.release)
    for (number, at), batches in _by_partition(table, where, *_KEYS).items():
        if month_name(number or 0) == month and site in {None, at}:
            for batch in batches:
                rows = zip(*[values_of(batch.column(name)) for name in _KEYS], strict=True)
                kept = {ReleasedRow(*each) for each in rows}.difference(released.recalled)
                found += [row.record_id for row in kept]
    return found


def _by_partition(table: LakeTable, where: BooleanExpression, *columns: str) -> Mapping[Partition, Iterator[Any]]:
    """Return matching rows of finished records in one snapshot, the newest, as pyarrow RecordBatches by partition."""
    tasks = defaultdict[Partition, list[FileScanTask]](list)
    with table.load() as loaded:
        scan = loaded.scan(where, selected_fields=columns or ("*",))
        reader = LakeScan(loaded.metadata, loaded.io, scan.projection(), scan.row_filter)
        for task in scan.plan_files():
            tasks[partition_of_file(task.file)].append(task)
    finished = sorted((month, site or "", (month, site)) for month, site in tasks if month is not None)
    return {each: _batches(table, reader, tasks[each]) for *_, each in finished}


def _batches(table: LakeTable, reader: LakeScan, tasks: Iterable[FileScanTask]) -> Iterator[Any]:
    with table.translate_errors():
        for task in tasks:
            yield from reader.to_table([task]).to_batches()


def _hive_path(partition: Partition) -> str:
    month, site = partition
    return f"site={_NO_SITE if site is None else quote(site, safe='')}/month={month_name(month or 0)}/records.parquet"


def _hive_rows(batch: Any) -> Any:
    return _arrow.Table.from_batches([batch]).drop_columns(list(_OURS))


def _auditor_path(partition: Partition) -> str:
    return f"auditor_{month_name(partition[0] or 0).replace('-', '_')}.parquet"


class _Texts(msgspec.Struct):
    """Members of a record's wire text as raw JSON."""

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
"""Layouts by the name for `auditord lake export --layout`."""
