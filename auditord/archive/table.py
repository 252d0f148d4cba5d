"""The table of the archive: made, appended to, read as of a snapshot, rewritten where rows no longer count."""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, In, LessThan
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import DataScan, FileScanTask, Table

from auditord.archive.catalog import NAMESPACE, TABLE_PROPERTIES, CatalogTable, NoTable
from auditord.archive.cleaning import Leftovers, delete_unused, forget_snapshots, leftovers_of
from auditord.archive.ordering import by_bounds
from auditord.archive.schema import PARTITIONS, RECORD_COLUMNS, SCHEMA, records_of
from auditord.archive.writing import (
    FILE_RECORDS,
    SMALL_FILES,
    NewRows,
    Partition,
    commit_files,
    partition_of_file,
    put_together,
    rewritten,
    rows_in,
    small_files,
    written,
)
from auditord.store.archived import ArchivedRecord, Removal
from auditord_hookspecs.query import Order

_arrow: Any = import_module("pyarrow")  # Any: it ships no types

TABLE: Final = f"{NAMESPACE}.records"
"""The name in the catalog."""

CHUNK: Final = "auditord.chunk"
"""The snapshot's property that holds the last chunk in it."""
ARCHIVE: Final = "auditord.archive"
"""The table's property that holds the id of the archive."""

_FILES_AT_ONCE: Final = 4
_EVERYTHING: Final = AlwaysTrue()


@dataclass(frozen=True, slots=True)
class Head:
    """The newest snapshot of the table.

    Args:
        snapshot_id: 0 while there is none.
        sequence: its place in the order of all.
        chunk: the last one in it.
    """

    snapshot_id: int
    sequence: int
    chunk: int


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file of a snapshot.

    Args:
        partition: of all its rows.
        rows: how many.
        size: in bytes.
        path: its URL.
    """

    partition: Partition
    rows: int
    size: int
    path: str


class ArchiveTable(CatalogTable):
    """The table, through its catalog. Every method blocks, and raises StoreUnavailable if it cannot be used now.

    Args:
        catalog: SQLAlchemy's URL of the catalog.
        warehouse: URL of the folder for the table's files.
    """

    def __init__(self, catalog: str, warehouse: str) -> None:
        location = f"{warehouse.rstrip('/')}/{TABLE.replace('.', '/')}"
        properties = {"type": "sql", "uri": catalog, "warehouse": warehouse}
        super().__init__(TABLE, location, properties, "archive", "archive.folder and archive.catalog")

    def archive_id(self) -> str | None:
        """The id that the table has; None if there is no table."""
        try:
            with self.loaded() as table:
                return table.properties[ARCHIVE]
        except NoTable:
            return None

    def create(self, archive_id: str) -> None:
        """Make the table."""
        with self.faults():
            with suppress(NamespaceAlreadyExistsError):
                self.connected().create_namespace(NAMESPACE)
            properties = {**TABLE_PROPERTIES, ARCHIVE: archive_id}
            self.connected().create_table(TABLE, SCHEMA, self.location, PARTITIONS, properties=properties)

    def head(self) -> Head:
        """The newest snapshot."""
        with self.loaded() as table:
            return _head(table)

    def require(self, snapshot_id: int) -> None:
        """Return if there is a snapshot.

        Raises:
            ArchiveOvertaken: it is not there any more.
        """
        with self.loaded(snapshot_id):
            pass

    def new_rows(self) -> NewRows:
        """Rows for :meth:`append`, none yet."""
        with self.loaded() as table:
            return NewRows(table.schema().as_arrow())

    def append(self, rows: NewRows, head: Head) -> Head:
        """Append rows, whose chunks follow the head's, and commit; returns the new head.

        Raises:
            ArchiveOvertaken: the head is another one by now.
        """
        with self.loaded() as table:
            return _commit(table, head, rows.last_chunk, (), written(table, rows))

    def remove(self, removals: Collection[Removal], head: Head) -> Head:
        """Rewrite the files that hold rows which count no more, without them, and commit; returns the new head.

        Raises:
            ArchiveOvertaken: the head is another one by now.
        """
        with self.loaded() as table:
            files = [task.file for task in table.scan(_one_of(removals)).plan_files()]
            return _commit(table, head, head.chunk, files, rewritten(table, files, removals))

    def compact(self, head: Head) -> Head:
        """Put small files of a month and site together, and commit; returns the new head, or the same.

        Raises:
            ArchiveOvertaken: the head is another one by now.
        """
        with self.loaded() as table:
            groups = small_files(table.scan().plan_files(), FILE_RECORDS, SMALL_FILES)
            files = [task.file for group in groups for task in group]
            return _commit(table, head, head.chunk, files, put_together(table, groups)) if files else head

    def leftovers(self) -> Leftovers:
        """The files that hold what is not in the table any more, or never was."""
        with self.loaded() as table:
            return leftovers_of(table)

    def seal(self, head: Head) -> Head:
        """Commit a snapshot that changes nothing, and names no removed file; returns the new head.

        A process that still writes to the table cannot commit behind it.

        Raises:
            ArchiveOvertaken: the head is another one by now.
        """
        with self.loaded() as table:
            return _commit(table, head, head.chunk, (), ())

    def clean(self, files: Collection[Path]) -> int:
        """Forget all snapshots but the newest, and delete those of the files that it does not need; returns how many.

        Args:
            files: that were there before the newest snapshot was made.
        """
        with self.loaded() as table:
            forget_snapshots(table)
            return delete_unused(table, files)

    def rows(
        self, snapshot_id: int, where: BooleanExpression = _EVERYTHING, columns: Sequence[str] = RECORD_COLUMNS
    ) -> Iterator[Any]:  # Any: pyarrow's RecordBatch
        """The rows of a snapshot for which a condition is true, in parts; some files are in memory at a time."""
        if snapshot_id:
            with self.loaded(snapshot_id) as table:
                scan = table.scan(where, selected_fields=tuple(columns), snapshot_id=snapshot_id)
                reader, tasks = _reader(table, scan), list(scan.plan_files())
                schema = scan.projection().as_arrow()
                for first in range(0, len(tasks), _FILES_AT_ONCE):  # the reader reads all that it is given at once
                    batches = reader.to_record_batches(tasks[first : first + _FILES_AT_ONCE])
                    yield from _arrow.RecordBatchReader.from_batches(schema, batches).cast(schema)

    def records(self, snapshot_id: int, where: BooleanExpression = _EVERYTHING) -> Iterator[ArchivedRecord]:
        """The rows of a snapshot for which a condition is true, as records."""
        for batch in self.rows(snapshot_id, where):
            yield from records_of(batch)

    def chunks(self, snapshot_id: int, numbers: range) -> Iterator[Sequence[ArchivedRecord]]:
        """The rows of some chunks of a snapshot as records, chunk by chunk; one chunk of records is in memory."""
        within = And(GreaterThanOrEqual(term="chunk", value=numbers.start), LessThan(term="chunk", value=numbers.stop))
        if batches := list(self.rows(snapshot_id, within)):
            rows = _arrow.Table.from_batches(batches).sort_by("chunk")
            del batches
            place = 0
            for _, size in sorted(Counter(rows.column("chunk").to_pylist()).items()):
                yield [copy for batch in rows.slice(place, size).to_batches() for copy in records_of(batch)]
                place += size

    def records_by(
        self, snapshot_id: int, where: BooleanExpression, order: Order
    ) -> Iterator[tuple[Any, Iterator[ArchivedRecord]]]:  # Any: values of a column
        """The records of each file, with a value that none of its rows precedes in an order (None: not known)."""
        with self.loaded(snapshot_id) as table:
            scan = table.scan(where, selected_fields=RECORD_COLUMNS, snapshot_id=snapshot_id)
            reader = _reader(table, scan)
            for bound, task in by_bounds(table, scan.plan_files(), order):
                yield bound, self._records_of(reader, task)

    def _records_of(self, reader: ArrowScan, task: FileScanTask) -> Iterator[ArchivedRecord]:
        with self.faults():  # read lazily, where records_by is no longer on the stack
            for batch in reader.to_record_batches([task]):
                yield from records_of(batch)

    def find(self, snapshot_id: int, wanted: Collection[Removal]) -> Sequence[ArchivedRecord]:
        """Single rows of a snapshot."""
        found = self.records(snapshot_id, _one_of(wanted))
        return [each for each in found if Removal(each.record.record_id, each.chunk) in wanted]

    def gone(self, before: int, after: int) -> set[Removal]:
        """The rows of one snapshot that another one does not have."""
        if not before:
            return set()
        with self.loaded(before) as table:
            old, new = (
                {task.file.file_path: task.file for task in table.scan(snapshot_id=each).plan_files()}
                for each in (before, after)
            )
            taken = set(rows_in(table, (old[path] for path in old.keys() - new.keys())))
            return taken and taken.difference(rows_in(table, (new[path] for path in new.keys() - old.keys())))

    def files(self, snapshot_id: int, where: BooleanExpression = _EVERYTHING) -> Sequence[FileFacts]:
        """The files of a snapshot that may hold rows for which a condition is true."""
        if not snapshot_id:
            return ()
        with self.loaded(snapshot_id) as table:
            files = [task.file for task in table.scan(where, snapshot_id=snapshot_id).plan_files()]
            return [
                FileFacts(partition_of_file(file), file.record_count, file.file_size_in_bytes, file.file_path)
                for file in files
            ]


def _reader(table: Table, scan: DataScan) -> ArrowScan:
    return ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)


def _head(table: Table) -> Head:
    snapshot = table.current_snapshot()
    if snapshot is None:
        return Head(0, 0, 0)
    properties = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return Head(snapshot.snapshot_id, snapshot.sequence_number or 0, int(properties[CHUNK]))


def _commit(table: Table, head: Head, chunk: int, removed: Sequence[DataFile], added: Iterable[DataFile]) -> Head:
    if _head(table) != head:
        raise CommitFailedException("the newest snapshot is another one")
    commit_files(table, {CHUNK: str(chunk)}, removed, added)
    return _head(table)


def _one_of(removals: Collection[Removal]) -> BooleanExpression:
    """A condition for these rows and few others; the chunks tell which files."""
    chunks, ids = {each.chunk for each in removals}, {each.record_id for each in removals}
    return And(In(term="chunk", literals=chunks), In(term="record_id", literals=ids))
