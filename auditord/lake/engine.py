"""DuckDB in this process: one database in memory, within limits that all questions share.

It reads files of this host, which needs none of its extensions: these come over the network. Files of an object store
are refused. Through file systems of Python, DuckDB reads wrong bytes: it seeks and reads in two steps, on handles that
several of its threads share.
"""

from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import duckdb

from auditord.errors import StoreUnavailable
from auditord.lake.dialect import VIEW


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
