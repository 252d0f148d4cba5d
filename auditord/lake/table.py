"""The table of the lake, which several daemons write.

A record has one row, as its store has it: a change takes the former row out, by writing its file once more without it
(copy-on-write), in the commit that adds the new one. So every snapshot is exact, and DuckDB, Spark and Trino read it as
a plain table, without a view, and skip the months and sites that a question is not about. With versions and tombstones
each of them would have to find the latest version of every record first, in all months, since a correction may move a
record to another one. The price is paid by changes alone: records mostly come finished and are only appended; open ones
are few and in partitions of their own (a null month); corrections and deletions are rare.

The summary of each snapshot says which batch of each daemon is the last in it (:data:`POSITIONS`): rows and numbers
change together or not at all. Commits are optimistic: where another daemon was faster, what depends on the newest
snapshot is read again and the commit is tried again.
"""

# pyiceberg's classes get their signatures while they are made, and pyarrow ships no types; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import stamina
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThan, LessThan, Or
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from auditord.archive.catalog import NAMESPACE, TABLE_PROPERTIES, CatalogTable
from auditord.archive.schema import PARTITIONS
from auditord.archive.writing import commit_files, small_files
from auditord.database.instants import from_micros
from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.lake.cleaning import clean
from auditord.lake.schema import SCHEMA, add_columns
from auditord.lake.writing import FILE_RECORDS, SMALL_FILES, Rewritten, joined, months_of, without, written
from auditord.store.archived import ArchiveOvertaken
from auditord.store.lake import LakeBatch

TABLE: Final = f"{NAMESPACE}.lake"
"""The name in the catalog."""

POSITIONS: Final = "auditord.positions"
"""The snapshot's property: by daemon, the id of its store, the number of its last batch, whether it is being filled."""

_PATIENCE: Final = 300.0
"""Seconds for which a commit is tried again while other daemons are faster."""


@dataclass(frozen=True, slots=True)
class LakePosition:
    """The part of a store that the lake has.

    Args:
        store_id: of the store.
        batch: the number of its last batch.
        is_filling: whether records that the store had all along are still to come.
    """

    store_id: str
    batch: int
    is_filling: bool = False


@dataclass(frozen=True, slots=True)
class LakeFacts:
    """The newest snapshot.

    Args:
        snapshot_id: 0 while there is none.
        committed_at: when it was made.
        records: in it, of all daemons.
        files: that have them.
        size: of these files, in bytes.
        positions: by daemon.
    """

    snapshot_id: int
    committed_at: datetime | None
    records: int
    files: int
    size: int
    positions: Mapping[str, LakePosition]


class LakeMoved(StoreUnavailable):
    """Another process syncs the records of the same store.

    Remedy:
        none: one of them ends its batch, the other begins anew with the next run.
    """


class LakeTable(CatalogTable):
    """The table, through its catalog. Every method blocks, and raises StoreUnavailable if it cannot be used now.

    Args:
        catalog: properties of the catalog, as pyiceberg's ``load_catalog`` takes them.
        warehouse: URL of the folder for the table's files.
    """

    def __init__(self, catalog: Mapping[str, str], warehouse: str) -> None:
        location = f"{warehouse.rstrip('/')}/{TABLE.replace('.', '/')}"
        super().__init__(TABLE, location, catalog, "lake", "lake.catalog and lake.warehouse")

    def open(self) -> str:
        """Make the table, or the columns that a later version has added to it; returns the table's id."""
        for attempt in stamina.retry_context(on=StoreUnavailable, attempts=3):  # another daemon may make it as well
            with attempt, self.faults():
                self._create(self.connected())
        self._try(add_columns)
        with self.loaded() as table:
            return str(table.metadata.table_uuid)

    def _create(self, catalog: Catalog) -> None:
        if not catalog.table_exists(TABLE):
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(NAMESPACE)
            with suppress(TableAlreadyExistsError):
                catalog.create_table(TABLE, SCHEMA, self.location, PARTITIONS, properties=TABLE_PROPERTIES)

    def position(self, daemon: str) -> LakePosition | None:
        """The part of a daemon's store that the newest snapshot has; None if it says nothing about the daemon."""
        with self.loaded() as table:
            return positions_of(table).get(daemon)

    def write(self, daemon: str, before: LakePosition, batch: LakeBatch) -> None:
        """Put a batch into the table, after the position that the daemon has there.

        Raises:
            LakeMoved: it has another one by now; nothing is done.
        """
        with self.loaded() as table:
            added = list(written(table, daemon, batch))

        def commit(table: Table) -> None:
            self._refuse_moved(table, daemon, before)
            taken = without(table, _tasks(table, daemon, months_of(batch)), daemon, batch.known)
            _commit(table, {daemon: replace(before, batch=batch.number)}, taken, added)

        self._try(commit)

    def forget(self, daemon: str, store_id: str) -> None:
        """Take all rows of a daemon out, of whose store nothing is there from then on, until it is filled.

        Raises:
            ConfigurationError: the rows are of another store, or those of this store have another daemon's name.
        """

        def commit(table: Table) -> None:
            refuse_mixed(positions_of(table), daemon, store_id)
            taken = without(table, _tasks(table, daemon), daemon)
            _commit(table, {daemon: LakePosition(store_id, 0, is_filling=True)}, taken, ())

        self._try(commit)

    def finish(self, daemon: str, filled: LakePosition) -> None:
        """Note that all records of a daemon have come that it had when the filling began.

        Raises:
            LakeMoved: it has another position by now; nothing is done.
        """

        def commit(table: Table) -> None:
            self._refuse_moved(table, daemon, filled)
            _commit(table, {daemon: replace(filled, is_filling=False)}, Rewritten((), ()), ())

        self._try(commit)

    def remove(self, daemon: str) -> int:
        """Take all rows of a daemon out, and its name; returns how many there were."""
        before = self.facts().records

        def commit(table: Table) -> None:
            _commit(table, {daemon: None}, without(table, _tasks(table, daemon), daemon), ())

        self._try(commit)
        return before - self.facts().records

    def compact(self, daemon: str) -> int:
        """Put small files together that hold rows of a daemon; returns how many fewer there are.

        Raises:
            ArchiveOvertaken: another daemon was faster; nothing is done.
        """
        with self.loaded() as table:
            groups = small_files(_tasks(table, daemon), FILE_RECORDS, SMALL_FILES)
            if not groups:
                return 0
            put = joined(table, groups)
            _commit(table, {}, put, ())
            return len(put.removed) - len(put.added)

    def clean(self, keep_since: datetime, made_before: datetime) -> int:
        """Expire old snapshots and delete files that none needs; returns how many files.

        Args:
            keep_since: later snapshots stay, up to some hundred.
            made_before: later files stay, which may belong to a commit that is being made.

        Raises:
            ArchiveOvertaken: another daemon was faster; nothing is deleted.
        """
        with self.loaded() as table:
            return clean(table, keep_since, made_before)

    def facts(self) -> LakeFacts:
        """The newest snapshot."""
        with self.loaded() as table:
            snapshot = table.current_snapshot()
            if snapshot is None:
                return LakeFacts(0, None, 0, 0, 0, {})
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            records, files, size = (
                int(summary.get(name, 0)) for name in ("total-records", "total-data-files", "total-files-size")
            )
            committed_at = from_micros(snapshot.timestamp_ms * 1_000)
            return LakeFacts(snapshot.snapshot_id, committed_at, records, files, size, positions_of(table))

    def unaccounted(self) -> Mapping[str, int]:
        """Count the rows, by daemon, that came with no batch which the daemon has noted: somebody else wrote them.

        Only files that may hold such a row are read: none of a sound table, if names have at most 16 characters.
        """
        with self.loaded() as table:
            strange = table.scan(beyond(positions_of(table)), selected_fields=("daemon",)).to_arrow()
        counts: Any = strange["daemon"].value_counts()  # Any: pyarrow's
        return {each["values"]: each["counts"] for each in counts.to_pylist()}

    def lacking_columns(self) -> Sequence[str]:
        """The columns that the table of an earlier version does not have yet."""
        with self.loaded() as table:
            return sorted({field.name for field in SCHEMA.fields}.difference(table.schema().column_names))

    def _refuse_moved(self, table: Table, daemon: str, position: LakePosition) -> None:
        if positions_of(table).get(daemon) != position:
            raise LakeMoved(f"The lake {self.location} has another batch of {daemon} than {position.batch}.")

    def _try(self, commit: Callable[[Table], None]) -> None:
        """Commit, once more from the newest snapshot wherever another daemon was faster."""
        for attempt in stamina.retry_context(
            on=ArchiveOvertaken, attempts=None, timeout=_PATIENCE, wait_initial=0.05, wait_max=5.0
        ):
            with attempt, self.loaded() as table:
                commit(table)


def refuse_mixed(positions: Mapping[str, LakePosition], daemon: str, store_id: str) -> None:
    """Return unless two stores would be one daemon's, or one store two daemons'.

    Raises:
        ConfigurationError: they would.
    """
    there = positions.get(daemon)
    if there is not None and there.store_id != store_id:
        raise ConfigurationError(
            f"lake.name: the lake has records of another record store under the name {daemon}: choose another name; "
            f"or, if that store is lost and this one has its records, `auditord lake forget {daemon}`."
        )
    for other, position in positions.items():
        if other != daemon and position.store_id == store_id:
            raise ConfigurationError(
                f"lake.name: the lake has the records of this record store under the name {other}: they would be there "
                f"twice. Write lake.name: {other}; or, for the new name, `auditord lake forget {other}` first."
            )


def beyond(positions: Mapping[str, LakePosition]) -> BooleanExpression:
    """The rows of daemons without a position, or of a later batch than that, so that bounds of columns rule files out.

    A condition ``daemon NOT IN (…)`` would rule out none.
    """
    names = sorted(positions)
    if not names:
        return AlwaysTrue()
    outside = (LessThan(term="daemon", value=names[0]), GreaterThan(term="daemon", value=names[-1]))
    between = [
        And(GreaterThan(term="daemon", value=one), LessThan(term="daemon", value=next_one))
        for one, next_one in pairwise(names)
    ]
    later = [
        And(EqualTo(term="daemon", value=name), GreaterThan(term="batch", value=each.batch))
        for name, each in positions.items()
    ]
    return Or(*outside, *between, *later)


def positions_of(table: Table) -> Mapping[str, LakePosition]:
    """The positions in the newest snapshot, or in that before it which a daemon has made: other engines keep rows."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        properties = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if (text := properties.get(POSITIONS)) is not None:
            return {daemon: LakePosition(*each) for daemon, each in json.loads(text).items()}
        snapshot = None if snapshot.parent_snapshot_id is None else table.snapshot_by_id(snapshot.parent_snapshot_id)
    return {}


def _tasks(table: Table, daemon: str, months: Iterable[int | None] | None = None) -> Sequence[FileScanTask]:
    """The files that may hold rows of a daemon, and of these months."""
    tasks = table.scan(EqualTo(term="daemon", value=daemon)).plan_files()
    wanted = None if months is None else set(months)
    return [task for task in tasks if wanted is None or task.file.partition[0] in wanted]


def _commit(
    table: Table, moved: Mapping[str, LakePosition | None], taken: Rewritten, added: Sequence[DataFile]
) -> None:
    """Commit files, and the positions of daemons. Files of a commit that failed stay until they are cleaned up.

    A commit whose answer was lost may be said to have failed: then they are the table's.
    """
    now = {**positions_of(table), **moved}
    positions = {daemon: astuple(each) for daemon, each in now.items() if each is not None}
    commit_files(table, {POSITIONS: json.dumps(positions)}, taken.removed, (*taken.added, *added))
