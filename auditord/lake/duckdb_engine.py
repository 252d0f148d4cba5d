"""DuckDB in this process: one database in memory, with limits that all queries share.

DuckDB reads files of this host without extensions, which it would download. Arrow reads files of an object store and
hands over the columns that the query needs. DuckDB's own access to object stores is an extension. Through Python's file
systems DuckDB reads wrong bytes: it seeks and reads in two steps, on handles that several of its threads share.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from glob import escape
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeAlias

import duckdb
import msgspec
from pyiceberg.expressions import And
from pyiceberg.table import Table
from typing_extensions import override

from auditord.database.durable_files import make_private_folder
from auditord.lake.data_files import open_files
from auditord.lake.dialect import VIEW, DuckDbDialect
from auditord.lake.engines import PAGE, Chosen, Engine, Rows, Work
from auditord.lake.pruning import match_chosen, match_finished, match_open
from auditord.store.dialects import Sql
from auditord.store.lake import LakeUnavailable
from auditord_hookspecs import AggregateQuery

# A damaged or foreign Parquet file causes errors of many classes, also while DuckDB decodes names that are no UTF-8.
_UNREADABLE: Final = (duckdb.Error, OSError, UnicodeDecodeError)

Files: TypeAlias = Callable[[duckdb.DuckDBPyConnection], None]
"""Makes the rows of files available to a connection as ``lake``."""


class LakeUnreadable(LakeUnavailable):
    """Another engine has marked rows of the lake as deleted but left them in their files.

    Remedy:
        let that engine rewrite the files: `rewrite_data_files` in Spark, `optimize` in Trino.
    """


class EngineLimits(msgspec.Struct, frozen=True):
    """Limits for all queries together.

    Args:
        memory: in bytes; queries that need more spill to disk.
        threads: number of threads that compute.
        spill: folder for temporary files.
    """

    memory: int
    threads: int
    spill: Path


class DuckDb(Engine):
    """The database, opened by the first query. Its methods block."""

    dialect = DuckDbDialect

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._lock = Lock()
        self._database: duckdb.DuckDBPyConnection | None = None

    @contextmanager
    @override
    def _ask(
        self, table: Table, query: AggregateQuery, chosen: Chosen, work: Work, *, with_open: bool
    ) -> Generator[Rows, None, None]:
        rows = [match_finished(query), *([match_open(query)] if with_open else [])]
        scans = [table.scan(And(match_chosen(chosen), each), snapshot_id=chosen.snapshot_id) for each in rows]
        tasks = [task for scan in scans for task in scan.plan_files()]
        if any(task.delete_files for task in tasks):
            raise LakeUnreadable(
                f"Another engine has deleted rows of the lake {table.location()} but left them in the data files: let "
                "it rewrite these (rewrite_data_files in Spark, optimize in Trino)."
            )
        files = {task.file.file_path: task.file for task in tasks}  # a file may match several conditions
        if not files:
            yield lambda _: iter(())
            return
        dataset, paths, is_local = open_files(table, list(files.values()))

        def register(connection: duckdb.DuckDBPyConnection) -> None:
            connection.register("lake", dataset)

        with self.reading(files_of_host(paths) if is_local else register) as connection:
            work.begin(connection.interrupt, duckdb.Error)
            yield rows_in(connection)

    @override
    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    @contextmanager
    def reading(self, files: Files) -> Generator[duckdb.DuckDBPyConnection, None, None]:
        """Yield a connection that has the rows of Parquet files as the view :data:`auditord.lake.dialect.VIEW`.

        Raises:
            StoreUnavailable: the files cannot be read, or the limits are too low.
        """
        try:
            with self._lock:
                if self._database is None:
                    make_private_folder(self._limits.spill)
                    self._database = duckdb.connect(
                        config={
                            "memory_limit": f"{self._limits.memory}B",
                            "threads": self._limits.threads,
                            "temp_directory": str(self._limits.spill),
                            "autoinstall_known_extensions": False,
                            "autoload_known_extensions": False,
                            "preserve_insertion_order": False,
                        }
                    )
                database = self._database
            with closing(database.cursor()) as connection:
                files(connection)
                connection.execute(VIEW)
                yield connection
        except duckdb.OutOfMemoryException as error:
            raise LakeUnavailable(f"The query needs more than lake.memory, or the disk is full: {error}") from error
        except duckdb.FatalException as error:
            self.close()  # the database refuses all further statements
            raise LakeUnavailable(f"DuckDB failed and will be restarted: {error}") from error
        except _UNREADABLE as error:
            raise LakeUnavailable(f"The lake cannot be read now: {error}") from error


def rows_in(connection: duckdb.DuckDBPyConnection) -> Rows:
    """Return a function that runs statements on a connection of :meth:`DuckDb.reading`."""
    return partial(_rows, connection)


def _rows(connection: duckdb.DuckDBPyConnection, statement: Sql) -> Iterator[Sequence[Any]]:  # Any: of all types
    connection.execute(*statement.to_query())
    while rows := connection.fetchmany(PAGE):
        yield from rows


def files_of_host(paths: Sequence[str]) -> Files:
    """Return access to files of this host, at least one."""

    def add(connection: duckdb.DuckDBPyConnection) -> None:
        connection.read_parquet([escape(path) for path in paths]).create_view("lake")

    return add
