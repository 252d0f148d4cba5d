"""Sums over a snapshot of the lake, the same integers as the record stores give."""

# pyiceberg's classes get their signatures while they are made, duckdb's are partly unknown; mypy checks the rest.
# pyright: reportArgumentType=false, reportCallIssue=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import duckdb
from pyiceberg.expressions import AlwaysTrue, And, EqualTo
from pyiceberg.table import Table

from auditord.archive.pruning import finished_rows, open_rows
from auditord.database.instants import from_micros
from auditord.errors import ConfigurationError, StoreUnavailable
from auditord.lake.dialect import DuckDbDialect
from auditord.lake.engine import DuckDb
from auditord.lake.table import LakeTable, positions_of
from auditord.store.aggregates import Folding, merged
from auditord.store.aggregates_sql import compile_aggregate
from auditord_hookspecs import AggregateQuery, Aggregates
from auditord_hookspecs.aggregates import LakeSnapshot

_BETWEEN_INTERRUPTS: Final = 0.1
"""Seconds: an interrupt that comes before a statement has begun is forgotten."""
_ROWS_AT_ONCE: Final = 1_000


class LakeUnreadable(StoreUnavailable):
    """Another engine has marked rows of the lake as deleted, and left them in their files.

    Remedy:
        let it rewrite the files: `rewrite_data_files` in Spark, `optimize` in Trino.
    """


class LakeReader:
    """Asks the lake, in threads of its own.

    Args:
        table: of the lake.
        daemon: whose records count; None: those of all.
        database: computes.
    """

    def __init__(self, table: LakeTable, daemon: str | None, database: DuckDb) -> None:
        self._table = table
        self._daemon = daemon
        self._database = database
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="lake")

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Sums over the newest snapshot. Whoever does not wait for the answer ends the work on it.

        Raises:
            StoreUnavailable: the lake has nothing yet or cannot be read now, or the limits are too narrow.
        """
        loop, work = asyncio.get_running_loop(), _Work()
        answer = loop.run_in_executor(self._threads, self._answer, work, query)

        def leave() -> None:
            if not answer.done():
                work.interrupt()
                loop.call_later(_BETWEEN_INTERRUPTS, leave)
            elif not answer.cancelled():
                answer.exception()  # nobody asks for it any more

        try:
            return await asyncio.shield(answer)
        finally:
            leave()

    def close(self) -> None:
        """Wait for what is asked, and let go of all."""
        self._threads.shutdown()
        self._database.close()

    def _answer(self, work: "_Work", query: AggregateQuery) -> Aggregates:
        with self._table.loaded() as table:
            snapshot = self._newest(table)
            files = _files(table, snapshot.number, query, self._daemon)
        if not files:
            return replace(merged(query, ()), snapshot=snapshot)
        with self._database.reading(files) as connection:
            work.begin(connection)
            return replace(sums_over(connection, query, self._daemon), snapshot=snapshot)

    def _newest(self, table: Table) -> LakeSnapshot:
        """The newest snapshot.

        Raises:
            StoreUnavailable: there is none, or the daemon has not carried anything yet.
        """
        newest = table.current_snapshot()
        if newest is None or (self._daemon is not None and self._daemon not in positions_of(table)):
            raise StoreUnavailable(
                f"The lake {self._table.location} has no records{'' if self._daemon is None else ' of ' + self._daemon}"
                " yet: they come with the next run, or `auditord lake run`."
            )
        return LakeSnapshot(newest.snapshot_id, from_micros(newest.timestamp_ms * 1_000))


def sums_over(connection: duckdb.DuckDBPyConnection, query: AggregateQuery, daemon: str | None) -> Aggregates:
    """The answer over the rows that a connection of :meth:`DuckDb.reading` has."""
    compiled = compile_aggregate(query, DuckDbDialect(daemon))
    statement, folding = compiled.statement, Folding(query, compiled.parts)
    connection.execute(statement.sql.replace("%s", "?"), statement.parameters)
    while rows := connection.fetchmany(_ROWS_AT_ONCE):
        folding.add(rows)
    return folding.result()


class _Work:
    """A connection that can be interrupted from another thread, before and after it is there."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._is_left = False

    def begin(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        if self._is_left:
            raise StoreUnavailable("Nobody waits for the answer any more.")

    def interrupt(self) -> None:
        self._is_left = True
        if self._connection is not None:
            with suppress(duckdb.Error):  # it has been closed
                self._connection.interrupt()


def _files(table: Table, snapshot_id: int, query: AggregateQuery, daemon: str | None) -> Sequence[str]:
    """The paths of the files that may hold rows that count."""
    rows = [finished_rows(query), *(() if query.as_of is None else (open_rows(query),))]
    of_daemon = AlwaysTrue() if daemon is None else EqualTo(term="daemon", value=daemon)
    tasks = [task for each in rows for task in table.scan(And(of_daemon, each), snapshot_id=snapshot_id).plan_files()]
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
