"""Numbered migrations of SQLite files in plain SQL, packaged beside the code that uses the tables.

A package of migrations has files ``0001_slug.sql``, ``0002_slug.sql``, … without gaps. The first one sets
``PRAGMA application_id``, which identifies files of auditord. ``PRAGMA user_version`` is the number of migrations that
have been applied.

A :class:`Watch` logs the progress of long statements, and interrupts them when the process is asked to end. SQLite
calls it every million virtual machine steps, in the thread that executes the statement, which neither the event loop
nor its signal handlers can interrupt.
"""

import logging
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from anyio import from_thread

from auditord.database.sql_files import load_scripts
from auditord.errors import MigrationInterrupted, SchemaMismatch

_log: Final = logging.getLogger(__name__)

_COMMENT: Final = re.compile(r"--[^\n]*")
_AROUND: Final = re.compile(r" ?([(),]) ?")
_OWN_TABLE: Final = re.compile(r"sqlite_(sequence|stat[1-4])")
"""SQLite's own tables, which a schema may gain by AUTOINCREMENT or ANALYZE."""

_SHOWN: Final = 10
"""The most faults of a schema in a message."""

_APPLICATION_ID = re.compile(r"^PRAGMA application_id = (0x[0-9a-fA-F]+|\d+);", re.MULTILINE)


class Migrations(msgspec.Struct, frozen=True):
    """The scripts in order, and the application id of the files that they make."""

    application_id: int
    scripts: Sequence[str]


def load_migrations(package: str) -> Migrations:
    """Read the ``.sql`` files of a package.

    Raises:
        ValueError: they are not numbered 1, 2, 3, … or the first one does not set the application id.
    """
    files = load_scripts(package)
    scripts = [file.sql for file in files]
    mark = _APPLICATION_ID.search(scripts[0])
    if mark is None:
        raise ValueError(f"{files[0].name} in {package} must set PRAGMA application_id")
    return Migrations(int(mark[1], 0), scripts)


def refuse_foreign(connection: sqlite3.Connection, migrations: Migrations, path: Path) -> None:
    """Check that the file is empty, or was made by these migrations, without changing it.

    Raises:
        SchemaMismatch: the file is another program's, or newer.
    """
    version = _version(connection)
    mark: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if (mark, version, tables) == (0, 0, 0):
        return
    if mark != migrations.application_id:
        raise SchemaMismatch(f"{path} is another program's database: name another file; this one was not changed.")
    if version > len(migrations.scripts):
        raise SchemaMismatch(
            f"{path} has schema {version}, this version of auditord knows up to {len(migrations.scripts)}: "
            "install the newer version again, or restore a backup from before the upgrade."
        )


def require_current(connection: sqlite3.Connection, migrations: Migrations, path: Path) -> None:
    """Raise SchemaMismatch unless the schema is exactly the one that this version makes."""
    refuse_foreign(connection, migrations, path)
    if (version := _version(connection)) < len(migrations.scripts):
        raise SchemaMismatch(
            f"{path} has schema {version}, this version of auditord needs {len(migrations.scripts)}: "
            "start the daemon once to migrate the file."
        )


def find_schema_faults(connection: sqlite3.Connection, migrations: Migrations) -> Sequence[str]:
    """Return the triggers, views, tables and indexes that differ from what the applied migrations make.

    A trigger that another program added would change records silently. Comments and spaces do not count: a later
    version may word the comments of a script better.
    """
    wanted, found = _make_schema(tuple(migrations.scripts[: _version(connection)])), _read_schema(connection)
    differing = [
        (name, "changed" if name in wanted else "foreign") for name in found if found[name] != wanted.get(name)
    ]
    missing = [(name, "missing") for name in wanted if name not in found]
    return [f"the {kind} {name} is {fault}" for (kind, name), fault in sorted(differing + missing)]


@cache
def _make_schema(scripts: tuple[str, ...]) -> Mapping[tuple[str, str], str]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for script in scripts:
            connection.executescript(script)
        return _read_schema(connection)


def _read_schema(connection: sqlite3.Connection) -> Mapping[tuple[str, str], str]:
    """Return the statements of a schema by type and name, without comments and SQLite's own tables and indexes."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {
        (kind, name): _AROUND.sub(r"\1", " ".join(_COMMENT.sub("", sql).split()))
        for kind, name, sql in rows
        if not (kind == "table" and _OWN_TABLE.fullmatch(name))
    }


def refuse_changed(connection: sqlite3.Connection, migrations: Migrations, path: Path) -> None:
    """Raise SchemaMismatch unless the schema is that of the migrations that were applied to the file."""
    if faults := find_schema_faults(connection, migrations):
        raise SchemaMismatch(
            f"{path} was changed by another program: {'; '.join(faults[:_SHOWN])}. Stop the daemon and remove the "
            "foreign parts (DROP …; in sqlite3), or restore a backup."
        )


def migrate(connection: sqlite3.Connection, migrations: Migrations, path: Path) -> None:
    """Apply all pending migrations in one transaction.

    Raises:
        SchemaMismatch: the schema was changed by another program.
        MigrationInterrupted: by SIGTERM or SIGINT, or because the task that waits for this thread was cancelled.
    """
    refuse_changed(connection, migrations, path)
    version, newest = _version(connection), len(migrations.scripts)
    if 0 < version < newest:
        _log.info(
            "migrating %s from schema %d to %d; millions of records take minutes. It may be interrupted, which "
            "changes nothing",
            path, version, newest,
        )  # fmt: skip
    watch = Watch()
    with watch_statements(connection, watch) if version < newest else nullcontext():
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _version(connection)  # another process may have been faster
            for number, script in enumerate(migrations.scripts[version:], version + 1):
                watch.begin(f"migrating {path}: step to schema {number} of {newest}")
                if version:
                    _log.info("migrating %s: step to schema %d of %d", path, number, newest)
                statement = ""
                for line in script.splitlines(keepends=True):  # executescript() would commit the transaction
                    statement += line
                    if sqlite3.complete_statement(statement):
                        connection.execute(statement)
                        statement = ""
            connection.execute(f"PRAGMA user_version = {newest:d}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


_STEPS: Final = 1_000_000
"""Steps of SQLite's virtual machine between two calls of the watch: some ten milliseconds."""

SAID_EVERY: Final = 30.0
"""Seconds between two log messages."""

_ASKED_BY: Final = (signal.SIGTERM, signal.SIGINT)


class Watch:
    """Logs the progress of statements, and can interrupt them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._said = clock()
        self._doing = ""
        self.stopped = False

    def begin(self, doing: str) -> None:
        """Set the step whose progress is logged from now on."""
        self._doing, self._began = doing, self._clock()
        self._said = self._began

    def stop(self, *_: object) -> None:
        """Interrupt the running statement at the next call."""
        self.stopped = True

    def __call__(self) -> bool:
        """Log the progress if it is time. Return whether SQLite should interrupt the statement."""
        now = self._clock()
        if now - self._said >= SAID_EVERY:
            self._said = now
            _log.info("%s: still running after %.0f s", self._doing, now - self._began)
        if threading.current_thread() is not threading.main_thread():
            try:
                from_thread.check_cancelled()
            except RuntimeError:
                pass  # not a worker thread
            except BaseException:  # noqa: BLE001 the event loop's cancellation, which is raised again in the task
                return True
        return self.stopped


@contextmanager
def watch_statements(connection: sqlite3.Connection, watch: Watch) -> Generator[None, None, None]:
    """Watch all statements of a connection. In the main thread, SIGTERM and SIGINT interrupt them.

    Raises:
        MigrationInterrupted: a statement was interrupted.
    """
    connection.set_progress_handler(watch, _STEPS)
    former: dict[signal.Signals, Any] = {}  # Any: as the signal module types handlers
    if threading.current_thread() is threading.main_thread():
        former = {number: signal.signal(number, watch.stop) for number in _ASKED_BY}
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        raise MigrationInterrupted("the migration was interrupted; nothing has changed") from error
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        connection.set_progress_handler(None, 0)
