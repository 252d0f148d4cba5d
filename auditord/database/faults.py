"""SQLite's errors in the operator's words; some of them pass by themselves."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from auditord.errors import StoreDamaged, StoreUnavailable

_ADVICE: Final = {
    sqlite3.SQLITE_FULL: "there is no room left on its disk; make room, writing resumes by itself",
    sqlite3.SQLITE_BUSY: "another process holds its lock; find it with `fuser` and end it, writing resumes by itself",
    sqlite3.SQLITE_LOCKED: "another process holds its lock; find it with `fuser` and end it, writing resumes by itself",
    sqlite3.SQLITE_PROTOCOL: "another process holds its lock; find it with `fuser` and end it",
    sqlite3.SQLITE_IOERR: "its disk reports an input/output error; look at the kernel's log and check the disk",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; the folder must exist, and this user must be allowed to use it",
    sqlite3.SQLITE_READONLY: "this user may not write it; check owner and mode of the file and of its folder",
    sqlite3.SQLITE_PERM: "this user may not use it; check owner and mode of the file and of its folder",
    sqlite3.SQLITE_AUTH: "this user may not use it; check owner and mode of the file and of its folder",
    sqlite3.SQLITE_CORRUPT: "it is damaged and no longer written; `auditord database check` says how to proceed",
    sqlite3.SQLITE_NOTADB: "it is damaged and no longer written; `auditord database check` says how to proceed",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_INTERRUPT: "the query was interrupted",
}


def as_unavailable(error: BaseException, path: Path) -> StoreUnavailable | None:
    """The error in the operator's words if it says that the database is away; None if it is about one statement.

    Constraints, values that do not fit and faulty SQL stay what they are: the same call would fail again.
    """
    code = _primary_code(error)
    if code not in _ADVICE:
        return None
    kind = StoreDamaged if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} else StoreUnavailable
    return kind(f"The database {path} is not available: {_ADVICE[code]} ({error}).")


@contextmanager
def translated(path: Path) -> Generator[None, None, None]:
    """Inside, an error that says that the database is away is raised in the operator's words."""
    try:
        yield
    except sqlite3.Error as error:
        if (unavailable := as_unavailable(error, path)) is not None:
            raise unavailable from error
        raise


def is_foreign(error: BaseException) -> bool:
    """Return whether the file is no SQLite database at all."""
    return _primary_code(error) == sqlite3.SQLITE_NOTADB


def _primary_code(error: BaseException) -> int | None:
    # Extended codes, such as "I/O error while syncing", keep the primary one in the low byte. Errors that the sqlite3
    # module raises itself, such as an integer that is too large, have none.
    code: object = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None
