"""DuckDB in this process: one database in memory, within limits that all questions share.

It reads files of this host, which needs none of its extensions: these come over the network. Files of an object store
are refused. Through file systems of Python, DuckDB reads wrong bytes: it seeks and reads in two steps, on handles that
several of its threads share.
"""

# pyiceberg's classes get their signatures while they are made, duckdb's are partly unknown; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import duckdb
from pyiceberg.expressions import AlwaysTrue, And, EqualTo
from pyiceberg.table import Table

from auditord.archive.pruning import finished_rows, open_rows
from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.lake.dialect import VIEW, DuckDbDialect
from auditord.lake.engines import Work
from auditord.store.aggregates import Folding, merged
from auditord.store.aggregates_sql import compile_aggregate
from auditord_hookspecs import AggregateQuery, Aggregates

_ROWS_AT_ONCE: Final = 1_000


class LakeUnreadable(StoreUnavailable):
    """Another engine has marked rows of the lake as deleted, and left them in their files.

    Remedy:
        let it rewrite the files: `rewrite_data_files` in Spark, `optimize` in Trino.
    """


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The most that all questions take together.

    Args:
        memory: in bytes; what needs more goes to the disk.
        threads: that compute.
        spill: the folder for what goes to the disk.
    """

    memory: int
    threads: int
    spill: Path


class DuckDb:
    """The database, opened when it is first asked. Its methods block.

    Args:
        limits: of memory and threads.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._lock = Lock()
        self._database: duckdb.DuckDBPyConnection | None = None

    def sums(self, table: Table, query: AggregateQuery, daemon: str | None, work: Work) -> Aggregates:
        """Sums over the newest snapshot; see :meth:`auditord.lake.engines.Engine.sums`."""
        files = _files(table, query, daemon)
        if not files:
            return merged(query, ())
        with self.reading(files) as connection:
            work.begin(lambda: _interrupt(connection))
            return sums_over(connection, query, daemon)

    def close(self) -> None:
        """Close it; questions that run end with an error."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    @contextmanager
    def reading(self, paths: Sequence[str]) -> Generator[duckdb.DuckDBPyConnection, None, None]:
        """A connection that has the rows of Parquet files as :data:`auditord.lake.dialect.VIEW` names them.

        Args:
            paths: of the files, at least one.

        Raises:
            StoreUnavailable: something cannot be read, or the limits are too narrow.
        """
        try:
            with closing(self._opened().cursor()) as connection:
                connection.read_parquet(list(paths)).create_view("lake")
                connection.execute(VIEW)
                yield connection
        except duckdb.OutOfMemoryException as error:
            raise StoreUnavailable(f"The question needs more than lake.memory, or the disk is full: {error}") from error
        except (duckdb.IOException, duckdb.InterruptException, duckdb.ConnectionException) as error:
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
    limits.spill.mkdir(parents=True, exist_ok=True)
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


def sums_over(connection: duckdb.DuckDBPyConnection, query: AggregateQuery, daemon: str | None) -> Aggregates:
    """The answer over the rows that a connection of :meth:`DuckDb.reading` has."""
    compiled = compile_aggregate(query, DuckDbDialect(daemon))
    statement, folding = compiled.statement, Folding(query, compiled.parts)
    connection.execute(statement.sql.replace("%s", "?"), statement.parameters)
    while rows := connection.fetchmany(_ROWS_AT_ONCE):
        folding.add(rows)
    return folding.result()


def _interrupt(connection: duckdb.DuckDBPyConnection) -> None:
    with suppress(duckdb.Error):  # it has been closed
        connection.interrupt()


def _files(table: Table, query: AggregateQuery, daemon: str | None) -> Sequence[str]:
    """The paths of the files that may hold rows that count."""
    rows = [finished_rows(query), *(() if query.as_of is None else (open_rows(query),))]
    of_daemon = AlwaysTrue() if daemon is None else EqualTo(term="daemon", value=daemon)
    tasks = [task for each in rows for task in table.scan(And(of_daemon, each)).plan_files()]
    if any(task.delete_files for task in tasks):
        raise LakeUnreadable(
            f"Another engine has deleted rows of the lake {table.location()} and left them in their files: let it "
            "rewrite them (rewrite_data_files in Spark, optimize in Trino)."
        )
    io: Any = table.io  # Any: pyiceberg types it as any FileIO
    located = [io.parse_location(task.file.file_path, io.properties) for task in tasks]
    if any(scheme != "file" for scheme, _, _ in located):
        raise ConfigurationError(
            f"lake: the files of {table.location()} are in an object store, and DuckDB inside of the daemon reads "
            "those of this host alone: ask such a lake by Spark or Trino"
        )
    return [path for _, _, path in located]
