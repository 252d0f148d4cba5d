"""The lake's table, which several daemons write.

Each record has one row, with the version in its daemon's store. A change rewrites the file of the old row without it
(copy-on-write), in the commit that adds the new row. So every snapshot is exact. DuckDB, Spark and Trino read it as a
plain table, without a view, and skip irrelevant months and sites. With versions and tombstones, they would first have
to find the latest version of every record in all months, since a correction may move a record to another month. Only
changes pay the price. Most records arrive finished and are only appended, open records are few and in partitions of
their own (a null month), and corrections and deletions are rare.

The summary of each snapshot holds the last batch and the last release of each daemon (:data:`POSITIONS`), so that rows
and numbers change together or not at all. Commits are optimistic. If another daemon committed first, the commit is
rebuilt from the newest snapshot and retried.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
import stamina
from msgspec.structs import replace
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from auditord.database.instants import from_micros
from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.lake.catalog import NAMESPACE, TABLE, TABLE_PROPERTIES, CatalogTable
from auditord.lake.cleaning import delete_strays, expire
from auditord.lake.counting import RowCounts, refuse_rewritten
from auditord.lake.data_files import open_files
from auditord.lake.positions import (
    POSITIONS,
    LakePosition,
    beyond,
    newest_with_positions,
    positions_of,
    properties_of,
    refuse_mixed,
)
from auditord.lake.pruning import match_daemon, match_stops
from auditord.lake.reading import count_released, read_keys, read_rows, stream_rows
from auditord.lake.schema import PARTITIONS, RECORD_COLUMNS, SCHEMA, records_of
from auditord.lake.writing import (
    FILE_RECORDS,
    SMALL_FILES,
    Partition,
    Rewritten,
    assign_releases,
    clear_releases,
    commit_files,
    files_with,
    mask_free,
    mask_replaced,
    mask_unreleased,
    merge_files,
    month_number,
    months_of,
    partition_of_file,
    remove_rows,
    small_files,
    write_batch,
)
from auditord.store.lake import (
    LakeBatch,
    LakeOvertaken,
    LakeRecord,
    LakeSnapshot,
    LakeUnavailable,
    Released,
    ReleasedRow,
)
from auditord_hookspecs.wording import counted

T = TypeVar("T")

_ROWS_AT_ONCE: Final = 100_000
"""Rows that get release numbers in one commit, unless a single file has more."""

_PATIENCE: Final = 300.0
"""Seconds for which a commit is retried while other daemons commit first."""


class LakeFacts(msgspec.Struct, frozen=True):
    """Figures about the newest snapshot.

    Args:
        snapshot_id: 0 if there is no snapshot.
        records: number of records of all daemons.
        files: number of data files.
        size: total size of the data files, in bytes.
        positions: by daemon.
    """

    snapshot_id: int
    committed_at: datetime | None
    records: int
    files: int
    size: int
    positions: Mapping[str, LakePosition]


class LakeMoved(LakeUnavailable):
    """Another process syncs the records of the same store.

    Remedy:
        none: one process finishes its batch, the other starts again with its next run.
    """


class LakeTable(CatalogTable):
    """The lake's table. All methods block, and raise StoreUnavailable if the catalog or the files are unavailable."""

    def __init__(self, properties: Mapping[str, str], warehouse: str) -> None:
        super().__init__(properties, warehouse)
        self.counts: Final = RowCounts(self.location)

    def open(self) -> str:
        """Create the table unless it exists, and return its id."""
        for attempt in stamina.retry_context(on=StoreUnavailable, attempts=3):  # another daemon may be creating it too
            with attempt, self.translate_errors():
                catalog = self.connect()
                if not catalog.table_exists(TABLE):
                    with suppress(NamespaceAlreadyExistsError):
                        catalog.create_namespace(NAMESPACE)
                    with suppress(TableAlreadyExistsError):
                        catalog.create_table(TABLE, SCHEMA, self.location, PARTITIONS, properties=TABLE_PROPERTIES)
        with self.load() as table:
            return str(table.metadata.table_uuid)

    def position(self, daemon: str) -> LakePosition | None:
        """Return a daemon's position in the newest snapshot, or None if the snapshot does not know the daemon."""
        with self.load() as table:
            return positions_of(table).get(daemon)

    def write(self, daemon: str, before: LakePosition, batch: LakeBatch) -> None:
        """Commit a batch that follows the daemon's position ``before``.

        Raises:
            LakeMoved: the daemon's position has changed; nothing is done.
        """
        with self.load() as table:
            added = list(write_batch(table, daemon, batch))

        def commit(table: Table) -> None:
            self._refuse_moved(table, daemon, before)
            months = months_of(batch)
            rewritten = remove_rows(
                table, _tasks(table, daemon, months) if months else (), mask_replaced(daemon, batch)
            )
            _commit(table, {daemon: replace(before, batch=batch.number)}, rewritten, added)

        self._try(commit)

    def forget(self, daemon: str, before: LakePosition | None, released: Released) -> None:
        """Delete all rows of a daemon except its released records, and set its position to batch 0.

        ``before`` is its position before ``released`` was read: the rows are the only copies of later releases.

        Raises:
            ConfigurationError: the rows belong to another store, or this store's rows have another daemon's name.
            LakeMoved: the daemon's position has changed; nothing is done.
        """

        def commit(table: Table) -> None:
            state = released.state
            refuse_mixed(positions_of(table), daemon, state.store_id)
            self._refuse_moved(table, daemon, before)
            rewritten = remove_rows(table, _tasks(table, daemon), mask_unreleased(daemon, released))
            release = state.release if before is None else max(state.release, before.release)
            rows = int(table.scan(match_daemon(daemon), selected_fields=("daemon",)).count())
            after = LakePosition(state.store_id, 0, is_filling=True, release=release, rows=rows)
            _commit(table, {daemon: after}, rewritten, ())

        self._try(commit)

    def finish(self, daemon: str, filled: LakePosition) -> None:
        """Note that the full sync of a daemon's existing records is complete.

        Raises:
            LakeMoved: the daemon's position has changed; nothing is done.
        """

        def commit(table: Table) -> None:
            self._refuse_moved(table, daemon, filled)
            _commit(table, {daemon: replace(filled, is_filling=False)}, Rewritten((), ()), ())

        self._try(commit)

    def remove(self, daemon: str, *, with_released: bool = False) -> int:
        """Delete all rows of a daemon and its position, and return the number of deleted rows.

        Raises:
            ConfigurationError: the daemon has released rows, and ``with_released`` is false; nothing is deleted.
        """

        def commit(table: Table) -> int:
            only_here = int(table.scan(And(match_daemon(daemon), NotNull(term="release"))).count())
            if only_here and not with_released:
                raise ConfigurationError(
                    f"{counted(only_here, 'record')} of {daemon} may exist only in the lake, and would be lost: run "
                    "`auditord lake recall` on that daemon's host, or use --released."
                )
            rewritten = remove_rows(table, _tasks(table, daemon), mask_unreleased(daemon, None))
            _commit(table, {daemon: None}, rewritten, ())
            return _records_in(rewritten.removed) - _records_in(rewritten.added)

        return self._try(commit)

    def mark(self, daemon: str, before: LakePosition, is_old: Callable[[Partition], bool], upto: int) -> LakePosition:
        """Give release numbers to the next rows of a daemon in old partitions, and return the new position.

        The position stays the same if there are no such rows.

        Args:
            daemon: the daemon.
            before: its position.
            is_old: returns whether a partition is old.
            upto: rows of later batches are left out, since the store would not delete their records yet.

        Raises:
            LakeMoved: the daemon's position has changed; nothing is done.
        """

        def commit(table: Table) -> LakePosition:
            self._refuse_moved(table, daemon, before)
            free, early = mask_free(daemon, upto), LessThanOrEqual(term="batch", value=upto)
            planned = table.scan(And(match_daemon(daemon), IsNull(term="release"), early)).plan_files()
            old = [task for task in planned if is_old(partition_of_file(task.file))]
            old.sort(key=lambda each: _sort_key(partition_of_file(each.file)))
            # The rows of the first files get release numbers in this commit.
            groups, rows = defaultdict[Partition, list[FileScanTask]](list), 0
            for task in files_with(table, old, free):
                if rows and rows + task.file.record_count > _ROWS_AT_ONCE:
                    break
                groups[partition_of_file(task.file)].append(task)
                rows += task.file.record_count
            if not groups:
                return before
            changed, behind = assign_releases(table, list(groups.values()), free, before.release + 1)
            after = replace(before, release=behind - 1)
            _commit(table, {daemon: after}, changed, ())
            return after

        return self._try(commit)

    def unmark(self, daemon: str, before: LakePosition, rows: Collection[ReleasedRow]) -> LakePosition:
        """Clear the release number of some rows and return the new position.

        The position's release number grows by one if any row has changed.

        Raises:
            LakeMoved: the daemon's position has changed; nothing is done.
        """

        def commit(table: Table) -> LakePosition:
            self._refuse_moved(table, daemon, before)
            months = {month_number(from_micros(row.stop_time)) for row in rows}
            changed = clear_releases(table, _tasks(table, daemon, months), daemon, rows, before.batch)
            if not changed.removed:
                return before
            after = replace(before, release=before.release + 1)
            _commit(table, {daemon: after}, changed, ())
            return after

        return self._try(commit)

    def newest(self) -> LakeSnapshot:
        """Return the newest snapshot; its number is 0 if there is none."""
        with self.load() as table:
            snapshot = table.current_snapshot()
            number, sequence = (0, 0) if snapshot is None else (snapshot.snapshot_id, snapshot.sequence_number or 0)
            return LakeSnapshot(str(table.metadata.table_uuid), self.location, number, sequence)

    def releases(self, daemon: str, snapshot_id: int, numbers: range) -> Iterator[Sequence[LakeRecord]]:
        """Yield the rows of a daemon with these release numbers, one release at a time."""
        low, high = (
            GreaterThanOrEqual(term="release", value=numbers.start),
            LessThan(term="release", value=numbers.stop),
        )
        with self.load() as table:
            rows = read_rows(table, snapshot_id, And(match_daemon(daemon), And(low, high)), RECORD_COLUMNS)
        rows = rows.sort_by("release")
        place = 0
        for _, size in sorted(Counter(rows["release"].to_pylist()).items()):
            yield [copy for batch in rows.slice(place, size).to_batches() for copy in records_of(batch)]
            place += size

    def find(
        self, table: Table, snapshot_id: int | None, daemon: str, wanted: Collection[ReleasedRow]
    ) -> Sequence[LakeRecord]:
        """Return single rows of a daemon from a loaded table, from the newest snapshot if ``snapshot_id`` is None."""
        keys, months = {(row.record_id, row.release) for row in wanted}, defaultdict[int, list[ReleasedRow]](list)
        for row in wanted:
            months[month_number(from_micros(row.stop_time))].append(row)
        found = list[LakeRecord]()
        for rows in months.values():
            ids, numbers = {row.record_id for row in rows}, {row.release for row in rows}
            stops = [from_micros(row.stop_time) for row in rows]
            named = And(
                In(term="record_id", literals=ids),
                And(In(term="release", literals=numbers), match_stops(min(stops), max(stops))),
            )
            read = read_rows(table, snapshot_id, And(match_daemon(daemon), named), RECORD_COLUMNS)
            copies = [copy for batch in read.to_batches() for copy in records_of(batch)]
            found += [copy for copy in copies if (copy.record.record_id, copy.release) in keys]
        return found

    def missing(self, daemon: str, released: Released) -> Collection[ReleasedRow]:
        """Return the released records of a daemon that the store's snapshot has and the newest one lacks.

        Raises:
            ConfigurationError: records are missing, and the store's snapshot has expired.
        """
        state, newest = released.state, self.newest().snapshot_id
        with self.load() as table:
            if table.snapshot_by_id(state.snapshot_id) is not None:
                where = And(match_daemon(daemon), NotNull(term="release"))
                old, new = (
                    {task.file.file_path: task for task in table.scan(where, snapshot_id=each).plan_files()}
                    for each in (state.snapshot_id, newest)
                )
                removed = read_keys(table, [old[path] for path in old.keys() - new.keys()], where)
                lost = removed and removed - read_keys(table, [new[path] for path in new.keys() - old.keys()], where)
                return {row for row in lost if row.release <= state.release}.difference(released.recalled)
            count = count_released(table, daemon, released)
        if count < state.records:
            raise ConfigurationError(
                f"lake: {state.records - count} of the records that this record store has released were changed after "
                f"its backup was made, and the lake {self.location} no longer has snapshot {state.snapshot_id}: "
                "restore the folder or bucket of the lake, and its catalog, from a backup of the same night as the "
                "record store's."
            )
        return ()

    def partitions(self) -> Mapping[Partition, Sequence[DataFile]]:
        """Return the data files of the newest snapshot by partition, in order."""
        files = defaultdict[Partition, list[DataFile]](list)
        with self.load() as table:
            for task in table.scan().plan_files():
                files[partition_of_file(task.file)].append(task.file)
        return {each: files[each] for each in sorted(files, key=_sort_key)}

    def rows(self, where: BooleanExpression, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of the newest snapshot that match a condition, as pyarrow RecordBatches."""
        with self.load() as table:
            yield from stream_rows(table, where, columns)

    def compact(self, daemon: str) -> int:
        """Merge small files that hold rows of a daemon, and return by how many the number of files shrank."""
        with self.load() as table:
            groups = small_files(_tasks(table, daemon), FILE_RECORDS, SMALL_FILES)
            merged = merge_files(table, groups)

        def commit(table: Table) -> int:
            if {file.file_path for file in merged.removed} <= {task.file.file_path for task in _tasks(table, daemon)}:
                _commit(table, {}, merged, ())
                return len(merged.removed) - len(merged.added)
            return 0  # another daemon has rewritten one of them

        return self._try(commit) if groups else 0

    def expire(self, keep_since: datetime, needed: int = 0) -> int:
        """Expire old snapshots, delete the files that only they needed, and return the number of deleted files.

        Args:
            keep_since: later snapshots are kept, up to a few hundred. Tagged snapshots are always kept.
            needed: the snapshot from which the record store reads its released records. It is kept.

        Raises:
            LakeOvertaken: another daemon committed first; nothing is deleted.
        """
        with self.load() as table:
            newest = newest_with_positions(table)
            return expire(table, keep_since, {needed} if newest is None else {needed, newest.snapshot_id})

    def delete_strays(self, made_before: datetime) -> int:
        """Delete the files of failed commits, which are found by listing all files, and return their number.

        Args:
            made_before: later files are kept, since they may belong to a commit in progress.
        """
        with self.load() as table:
            return delete_strays(table, made_before)

    def has(self, snapshot_id: int) -> bool:
        """Return whether the table still has a snapshot."""
        with self.load() as table:
            return table.snapshot_by_id(snapshot_id) is not None

    def tag(self, prefix: str, wanted: Mapping[str, int]) -> Collection[str]:
        """Add and remove tags with a prefix until they have exactly the wanted names. Existing tags are not moved.

        Args:
            prefix: of the tags.
            wanted: snapshot ids by tag name without the prefix.

        Returns:
            The names that could not be added because their snapshot has expired.
        """

        def commit(table: Table) -> Collection[str]:
            existing = {name.removeprefix(prefix) for name in table.metadata.refs if name.startswith(prefix)}
            expired = {name for name in wanted.keys() - existing if table.snapshot_by_id(wanted[name]) is None}
            added, removed = wanted.keys() - existing - expired, existing - wanted.keys()
            if added or removed:
                with table.manage_snapshots() as changes:
                    for name in sorted(removed):
                        changes.remove_tag(prefix + name)
                    for name in sorted(added):
                        changes.create_tag(wanted[name], prefix + name)
            return expired

        return self._try(commit)

    def facts(self) -> LakeFacts:
        """Return figures about the newest snapshot."""
        with self.load() as table:
            snapshot = table.current_snapshot()
            if snapshot is None:
                return LakeFacts(0, None, 0, 0, 0, {})
            summary = properties_of(snapshot)
            records, files, size = (
                int(summary.get(name, 0)) for name in ("total-records", "total-data-files", "total-files-size")
            )
            committed_at = from_micros(snapshot.timestamp_ms * 1_000)
            return LakeFacts(snapshot.snapshot_id, committed_at, records, files, size, positions_of(table))

    def check_rows(self, daemon: str | None = None) -> None:
        """Raise LakeMiscounted if another program has deleted or added rows of a daemon, or of any if it is None."""
        with self.load() as table:
            self.counts.refuse_changed(table, daemon)

    def check_files(self) -> None:
        """Raise LakeDamaged if a data file of any daemon is not the one that was written.

        Raises:
            LakeRefused: a manifest has other rows than the list of manifests says.
        """
        with self.load() as table:
            refuse_rewritten(table)
            if files := [task.file for task in table.scan().plan_files()]:
                open_files(table, files)

    def check_released(self, daemon: str, released: Released) -> None:
        """Raise LakeMiscounted unless the newest snapshot has a row for each released record of a daemon."""
        with self.load() as table:
            newest = table.current_snapshot()
            self.counts.refuse_miscounted(table, 0 if newest is None else newest.snapshot_id, daemon, released)

    def count_unaccounted(self) -> Mapping[str, int]:
        """Count the rows, by daemon, that belong to no recorded batch: another program wrote them.

        Only files that may hold such a row are read. In a sound table these are none.
        """
        with self.load() as table:
            rows = table.scan(beyond(positions_of(table)), selected_fields=("daemon",)).to_arrow()
        counts: Any = rows["daemon"].value_counts()  # Any: pyarrow's
        return {each["values"]: each["counts"] for each in counts.to_pylist()}

    def _refuse_moved(self, table: Table, daemon: str, position: LakePosition | None) -> None:
        if positions_of(table).get(daemon) != position:
            batch = 0 if position is None else position.batch
            raise LakeMoved(f"The lake {self.location} is no longer at batch {batch} of {daemon}.")

    def _try(self, commit: Callable[[Table], T]) -> T:
        """Run a commit, and run it again from the newest snapshot whenever another daemon committed first."""
        for attempt in stamina.retry_context(
            on=LakeOvertaken, attempts=None, timeout=_PATIENCE, wait_initial=0.05, wait_max=5.0
        ):
            with attempt, self.load() as table:
                return commit(table)
        raise AssertionError("the last attempt ends or raises")


def _tasks(table: Table, daemon: str, months: Iterable[int | None] | None = None) -> Sequence[FileScanTask]:
    """Return the files that may hold rows of a daemon, of these months only if they are given."""
    tasks = table.scan(EqualTo(term="daemon", value=daemon)).plan_files()
    wanted = None if months is None else set(months)
    return [task for task in tasks if wanted is None or task.file.partition[0] in wanted]


def _commit(
    table: Table, moved: Mapping[str, LakePosition | None], rewritten: Rewritten, added: Sequence[DataFile]
) -> None:
    """Commit files together with changed positions of daemons.

    The files of a failed commit stay until they are cleaned up. If only the answer to a commit was lost, the commit is
    reported as failed although the table refers to its files.
    """
    more = _records_in((*rewritten.added, *added)) - _records_in(rewritten.removed)
    now = {
        **positions_of(table),
        **{name: each and replace(each, rows=each.rows + more) for name, each in moved.items()},
    }
    positions = {daemon: each for daemon, each in now.items() if each is not None}
    text = msgspec.json.encode(positions).decode()
    commit_files(table, {POSITIONS: text}, rewritten.removed, (*rewritten.added, *added))


def _records_in(files: Iterable[DataFile]) -> int:
    return sum(file.record_count for file in files)


def _sort_key(partition: Partition) -> tuple[int, str]:
    month, site = partition
    return -1 if month is None else month, site or ""
