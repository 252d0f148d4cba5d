"""Numbered migrations in plain SQL, packaged beside the code that uses the tables.

A package of migrations holds files ``0001_slug.sql``, ``0002_slug.sql``, … without gaps. The first one sets
``PRAGMA application_id``, by which a file is known as one of ours; ``PRAGMA user_version`` says how far one is.
"""

import logging
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import msgspec

from auditord.database.long_steps import Watch, watched
from auditord.database.sql_files import load_scripts
from auditord.errors import SchemaMismatch

_log: Final = logging.getLogger(__name__)

BEFORE_1_0: Final = 0x61756472
"""The application id of record stores that were made before version 1.0: "audr"."""

_APPLICATION_ID = re.compile(r"^PRAGMA application_id = (0x[0-9a-fA-F]+|\d+);", re.MULTILINE)


class Migrations(msgspec.Struct, frozen=True):
    """The scripts in order, and the number that marks the files they make."""

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
    """Return if the file is empty, or one of these migrations' and not newer; it is not touched.

    Raises:
        SchemaMismatch: with what the file is instead.
    """
    version = _version(connection)
    mark: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if (mark, version, tables) == (0, 0, 0):
        return
    if mark == BEFORE_1_0 != migrations.application_id:
        raise SchemaMismatch(
            f"{path} was made by a version of auditord before 1.0: `auditord database copy` takes over what version "
            "0.1.0 has made; nothing else was ever released."
        )
    if mark != migrations.application_id:
        raise SchemaMismatch(f"{path} is another program's database: name another file, auditord leaves it alone.")
    if version > len(migrations.scripts):
        raise SchemaMismatch(
            f"{path} has schema {version}, this version of auditord knows up to {len(migrations.scripts)}: "
            "install the newer version again, or restore the backup from before it."
        )


def is_of_first_release(connection: sqlite3.Connection) -> bool:
    """Return whether the file is a record store as version 0.1.0 made it."""
    mark: int = connection.execute("PRAGMA application_id").fetchone()[0]
    return (mark, _version(connection)) == (BEFORE_1_0, 1)


def require_current(connection: sqlite3.Connection, migrations: Migrations, path: Path) -> None:
    """Return if the schema is exactly the one that this version knows.

    Raises:
        SchemaMismatch: it is foreign, newer or older.
    """
    refuse_foreign(connection, migrations, path)
    if (version := _version(connection)) < len(migrations.scripts):
        raise SchemaMismatch(
            f"{path} has schema {version}, this version of auditord needs {len(migrations.scripts)}: "
            "start the daemon once, it migrates the file."
        )


def migrate(connection: sqlite3.Connection, migrations: Migrations, path: Path) -> None:
    """Bring the schema up to date: all missing migrations in one transaction, or none.

    Raises:
        MigrationInterrupted: SIGTERM, SIGINT, or the end of the task that waits for this thread.
    """
    version, newest = _version(connection), len(migrations.scripts)
    if 0 < version < newest:
        _log.info(
            "migrating %s from schema %d to %d; millions of records take minutes. It may be interrupted: nothing has "
            "changed then",
            path, version, newest,
        )  # fmt: skip
    watch = Watch()
    with watched(connection, watch) if version < newest else nullcontext():
        _migrate(connection, migrations, path, watch)


def _migrate(connection: sqlite3.Connection, migrations: Migrations, path: Path, watch: Watch) -> None:
    newest = len(migrations.scripts)
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)  # another process may have been faster
        for number, script in enumerate(migrations.scripts[version:], version + 1):
            watch.begin(f"migrating {path}: step to schema {number} of {newest}")
            if version:
                _log.info("migrating %s: step to schema %d of %d", path, number, newest)
            for statement in _statements(script):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(migrations.scripts):d}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    # executescript() commits before it begins, which would tear the migrations apart.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version
