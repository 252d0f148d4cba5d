"""Open connections to an SQLite file, and translate SQLite's errors into messages for operators."""

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, LiteralString

from auditord.database.durable_files import make_private
from auditord.errors import SchemaMismatch, StoreDamaged, StoreUnavailable

_ADVICE: Final = {
    sqlite3.SQLITE_FULL: "there is no room left on its disk; free some space, then writing resumes",
    sqlite3.SQLITE_BUSY: "another process holds its lock; find it with `fuser` and end it, then writing resumes",
    sqlite3.SQLITE_LOCKED: "another process holds its lock; find it with `fuser` and end it, then writing resumes",
    sqlite3.SQLITE_PROTOCOL: "another process holds its lock; find it with `fuser` and end it",
    sqlite3.SQLITE_IOERR: "its disk reports an input/output error; look at the kernel's log and check the disk",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; the folder must exist, and this user must be allowed to use it",
    sqlite3.SQLITE_READONLY: "this user may not write to it; check owner and mode of the file and of its folder",
    sqlite3.SQLITE_PERM: "this user may not use it; check owner and mode of the file and of its folder",
    sqlite3.SQLITE_AUTH: "this user may not use it; check owner and mode of the file and of its folder",
    sqlite3.SQLITE_CORRUPT: "it is damaged and no longer written to; `auditord database check` says how to proceed",
    sqlite3.SQLITE_NOTADB: "it is damaged and no longer written to; `auditord database check` says how to proceed",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_INTERRUPT: "the query was interrupted",
}


def as_unavailable(error: BaseException, path: Path) -> StoreUnavailable | None:
    """Return an error with advice for the operator if the database is unavailable; None if only a statement failed.

    Violated constraints, values that do not fit and faulty SQL are such failures: the same call would fail again.
    """
    code = _primary_code(error)
    if code not in _ADVICE:
        return None
    kind = StoreDamaged if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} else StoreUnavailable
    return kind(f"The database {path} is not available: {_ADVICE[code]} ({error}).")


@contextmanager
def translate_errors(path: Path) -> Generator[None, None, None]:
    """Turn errors due to an unavailable database into StoreUnavailable, with advice for the operator."""
    try:
        yield
    except sqlite3.Error as error:
        if (unavailable := as_unavailable(error, path)) is not None:
            raise unavailable from error
        raise


def _primary_code(error: BaseException) -> int | None:
    # Extended codes, such as "I/O error while syncing", have the primary one in the low byte. Errors that the sqlite3
    # module itself raises, such as for an integer that is too large, have no code.
    code: object = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


_MINIMUM: Final = (3, 34, 0)  # the version in Enterprise Linux 9

_EVERY_CONNECTION: Final[tuple[LiteralString, ...]] = (
    # A backup tool or a command may hold the lock for a moment.
    "PRAGMA busy_timeout = 5000",
    # SQLite checks references only if it is told to.
    "PRAGMA foreign_keys = ON",
    # A mapped file turns an I/O error into SIGBUS, and its pages count as the daemon's memory.
    "PRAGMA mmap_size = 0",
    # Do not call functions in a schema that may have been manipulated.
    "PRAGMA trusted_schema = OFF",
)

_WRITING: Final[tuple[LiteralString, ...]] = (
    # For new files. A commit writes whole pages: with random ids, one for each record and index. Pages of 8 KiB would
    # save 30 bytes per record, but slow down single posts and reads by an eighth.
    "PRAGMA page_size = 4096",
    # For new files, and older ones after a VACUUM: pages of deleted rows can be returned a few at a time.
    "PRAGMA auto_vacuum = INCREMENTAL",
    # Readers and the writer never wait for each other, and a commit is one append and one fsync. The index of the log
    # is a mapped file. Exclusive locking would not need it, but lock out commands that read beside a daemon.
    "PRAGMA journal_mode = WAL",
    # Clients get their answer after the commit, so the commit must survive a power cut.
    "PRAGMA synchronous = FULL",
    # The random accesses of an insert are to the index on ids, whose hot pages fit into 16 MiB.
    "PRAGMA cache_size = -16384",
    # 16 MiB of log between checkpoints. A checkpoint syncs twice, so more of them would reduce the throughput.
    "PRAGMA wal_autocheckpoint = 4000",
    # After a burst, the log shrinks again.
    "PRAGMA journal_size_limit = 67108864",
)

_READING: Final[tuple[LiteralString, ...]] = (
    # A query that writes is a mistake: there is one writer.
    "PRAGMA query_only = ON",
    # Each connection has its own cache. Repeated reads are served by the kernel's cache.
    "PRAGMA cache_size = -1024",
)


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open a connection to the file, creating it if necessary. Nothing is set up or written yet.

    Raises:
        StoreUnavailable: the file cannot be opened or created.
        SchemaMismatch: it is not an SQLite database.
    """
    try:
        make_private(path)  # the log inherits its mode
    except OSError as error:
        raise StoreUnavailable(
            f"The database {path} cannot be used: {error.strerror}; its folder must exist, and user id {os.getuid()} "
            "must be allowed to write both."
        ) from error
    return _connect(path, "rw", _EVERY_CONNECTION)


def set_up_writer(connection: sqlite3.Connection) -> None:
    """Apply the settings of the only connection that writes. The file must be auditord's, since this changes it."""
    for pragma in _WRITING:
        connection.execute(pragma)


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write, while this process or another may be writing.

    Raises:
        StoreUnavailable: the file cannot be opened.
        SchemaMismatch: it is not an SQLite database.
    """
    return _connect(path, "ro", (*_EVERY_CONNECTION, *_READING))


def _connect(path: Path, mode: Literal["ro", "rw"], pragmas: tuple[LiteralString, ...]) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < _MINIMUM:
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old: auditord needs 3.34 or later.")
    connection = None
    try:
        # Transactions are begun and ended explicitly. Threads that share a connection take turns.
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
        )
        for pragma in pragmas:
            connection.execute(pragma)
        connection.execute("SELECT count(*) FROM sqlite_master")  # the first access to the file
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        if _primary_code(error) == sqlite3.SQLITE_NOTADB:
            text = f"{path} is not an SQLite database: name another file; this one was not changed."
            raise SchemaMismatch(text) from error
        try:
            path.stat()
        except FileNotFoundError:
            raise StoreUnavailable(
                f"There is no {path}. If nothing has been collected yet, the daemon creates it when it starts "
                "(auditord run). If it existed before, mount its disk, correct state_dir and store.url, or restore it: "
                "auditord manual backup."
            ) from error
        except OSError:  # such as a folder that this user may not search
            pass
        fault = StoreUnavailable(f"The database {path} cannot be opened: {error}.")
        raise as_unavailable(error, path) or fault from error
    return connection
