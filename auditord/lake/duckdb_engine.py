"""DuckDB in this process: one database in memory, within limits that all questions share.

It reads files of this host, which needs none of its extensions: these come over the network. Files of an object store
are read by Arrow, which hands over the columns that are asked for. DuckDB's own way there is an extension; through file
systems of Python it reads wrong bytes: it seeks and reads in two steps, on handles that several of its threads share.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from glob import escape
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeAlias

import duckdb
import msgspec
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.table import Table
from typing_extensions import override

from auditord.database.durable_files import make_private_folder
from auditord.errors import StoreUnavailable
from auditord.lake.dialect import VIEW, DuckDbDialect
from auditord.lake.engines import PAGE, Chosen, Engine, Rows, Work
from auditord.lake.pruning import chosen_rows, finished_rows, open_rows
from auditord.store.sql import Sql
from auditord_hookspecs import AggregateQuery

_datasets: Any = import_module("pyarrow.dataset")  # Any: it ships no types

_UNREADABLE: Final = (
    *(duckdb.IOException, duckdb.InterruptException, duckdb.ConnectionException),
    *(duckdb.InvalidInputException, OSError),  # what Arrow raises, through DuckDB and beside it
)

Files: TypeAlias = Callable[[duckdb.DuckDBPyConnection], None]
"""Shows a connection the rows of files as ``lake``."""


class LakeUnreadable(StoreUnavailable):
    """Another engine has marked rows of the lake as deleted, and left them in their files.

    Remedy:
        let it rewrite the files: `rewrite_data_files` in Spark, `optimize` in Trino.
    """


class EngineLimits(msgspec.Struct, frozen=True):
    """The most that all questions take together.

    Args:
        memory: in bytes; what needs more goes to the disk.
        threads: that compute.
        spill: the folder of temporary files.
    """

    memory: int
    threads: int
    spill: Path


class DuckDb(Engine):
    """The database, opened when it is first asked. Its methods block."""

    dialect = DuckDbDialect

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._lock = Lock()
        self._database: duckdb.DuckDBPyConnection | None = None

    @contextmanager
    @override
    def _asked(
        self, table: Table, query: AggregateQuery, chosen: Chosen, work: Work, *, with_open: bool
    ) -> Generator[Rows, None, None]:
        files = _files(table, [finished_rows(query), *([open_rows(query)] if with_open else [])], chosen)
        if files is None:
            yield lambda _: iter(())
            return
        with self.reading(files) as connection:
            work.begin(lambda: _interrupt(connection))
            yield rows_in(connection)

    @override
    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    @contextmanager
    def reading(self, files: Files) -> Generator[duckdb.DuckDBPyConnection, None, None]:
        """A connection that has the rows of Parquet files as :data:`auditord.lake.dialect.VIEW` names them.

        Raises:
            StoreUnavailable: something cannot be read, or the limits are too narrow.
        """
        try:
            with closing(self._opened().cursor()) as connection:
                files(connection)
                connection.execute(VIEW)
                yield connection
        except duckdb.OutOfMemoryException as error:
            raise StoreUnavailable(f"The question needs more than lake.memory, or the disk is full: {error}") from error
        except _UNREADABLE as error:
            raise StoreUnavailable(f"The lake cannot be read now: {error}") from error
        except duckdb.FatalException as error:
            self.close()  # it refuses all from now on
            raise StoreUnavailable(f"DuckDB has failed, and is started anew: {error}") from error

    def _opened(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._database is None:
                self._database = _open(self._limits)
            return self._database


def _open(limits: EngineLimits) -> duckdb.DuckDBPyConnection:
    make_private_folder(limits.spill)
    return duckdb.connect(
        config={
            "memory_limit": f"{limits.memory}B",
            "threads": limits.threads,
            "temp_directory": str(limits.spill),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "preserve_insertion_order": False,
        }
    )


def rows_in(connection: duckdb.DuckDBPyConnection) -> Rows:
    """The answers about the rows that a connection of :meth:`DuckDb.reading` has."""
    return partial(_rows, connection)


def _rows(connection: duckdb.DuckDBPyConnection, statement: Sql) -> Iterator[Sequence[Any]]:  # Any: of all types
    connection.execute(statement.sql.replace("%s", "?"), statement.parameters)
    while rows := connection.fetchmany(PAGE):
        yield from rows


def files_of_host(paths: Sequence[str]) -> Files:
    """Files of this host, at least one."""

    def add(connection: duckdb.DuckDBPyConnection) -> None:
        connection.read_parquet([escape(path) for path in paths]).create_view("lake")

    return add


def _files_of_store(paths: Sequence[str], schema: Any, filesystem: Any) -> Files:  # Any: pyarrow's
    """Files of an object store, which Arrow reads."""

    def add(connection: duckdb.DuckDBPyConnection) -> None:
        connection.register("lake", _datasets.dataset(paths, schema, format="parquet", filesystem=filesystem))

    return add


def _interrupt(connection: duckdb.DuckDBPyConnection) -> None:
    with suppress(duckdb.Error):  # it has been closed
        connection.interrupt()


def _files(table: Table, rows: Sequence[BooleanExpression], chosen: Chosen) -> Files | None:
    """The files that may hold chosen rows for which one of the conditions is true; None if there are none."""
    scans = [table.scan(And(chosen_rows(chosen), each), snapshot_id=chosen.snapshot_id) for each in rows]
    tasks = [task for scan in scans for task in scan.plan_files()]
    if any(task.delete_files for task in tasks):
        raise LakeUnreadable(
            f"Another engine has deleted rows of the lake {table.location()} and left them in their files: let it "
            "rewrite them (rewrite_data_files in Spark, optimize in Trino)."
        )
    io: Any = table.io  # Any: pyiceberg types it as any FileIO
    files = dict.fromkeys(task.file.file_path for task in tasks)  # one may hold rows of several conditions
    located = [io.parse_location(file, io.properties) for file in files]
    paths = [path for _, _, path in located]
    if not paths:
        return None
    if all(scheme == "file" for scheme, _, _ in located):
        return files_of_host(paths)
    scheme, netloc, _ = located[0]
    return _files_of_store(paths, table.schema().as_arrow(), io.fs_by_scheme(scheme, netloc))
