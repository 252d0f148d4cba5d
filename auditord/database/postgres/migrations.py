"""Migrations of a database: its schema version, and bringing it up to date."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from auditord.database.postgres.engines import refuse_unsupported
from auditord.database.postgres.sessions import end_others, refuse_others
from auditord.database.sql_files import Script
from auditord.errors import NoTables, SchemaMismatch

_LOCK: Final = 0x61756472  # "audr"; one migration at a time

_HAS_MIGRATIONS: Final = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = 'auditord' AND tablename = 'migrations')
"""
"""A query of the catalogue, since ``to_regclass`` may overlook the schema that another session has just committed."""

_APPLIED: Final = "SELECT version, name, applied_at FROM auditord.migrations ORDER BY version"


class Applied(msgspec.Struct, frozen=True):
    """A migration that a database has had."""

    version: int
    name: str
    applied_at: datetime


async def applied(connection: AsyncConnection[TupleRow]) -> Sequence[Applied]:
    """The migrations that the database has had, in order; none if it is not one of ours yet."""
    found = await (await connection.execute(_HAS_MIGRATIONS)).fetchone()
    if not found or not found[0]:
        return ()
    return [Applied(*row) for row in await (await connection.execute(_APPLIED)).fetchall()]


async def is_of_first_release(connection: AsyncConnection[TupleRow]) -> bool:
    """Return whether the tables are those of version 0.1.0."""
    return [each.name for each in await applied(connection)] == ["0001_records"]


def refuse_older(known: Sequence[Applied], scripts: Sequence[Script], where: str) -> None:
    """Return unless the tables were made before version 1.0.

    Raises:
        SchemaMismatch: they were.
    """
    if known and known[0].name != scripts[0].name:
        raise SchemaMismatch(
            f"The database {where} was made by a version of auditord before 1.0: `auditord database copy` takes over "
            "what version 0.1.0 has made; nothing else was ever released."
        )


async def migrate(
    connection: AsyncConnection[TupleRow],
    scripts: Sequence[Script],
    where: str,
    now: Callable[[], datetime],
    *,
    end_sessions: bool = False,
    begins: Callable[[Script], None] = lambda _: None,
) -> Sequence[Script]:
    """Bring the schema up to date, all missing scripts in one transaction or none; return those that ran.

    Daemons that connect meanwhile wait for its end, and are refused then if they are older.

    Args:
        connection: in autocommit mode.
        scripts: all that this version knows.
        where: the database, for messages.
        now: for the note of when each was run.
        end_sessions: whether other sessions of auditord are ended; without, they are a reason to change nothing.
        begins: is notified of each script.

    Raises:
        SchemaMismatch: the schema is newer than these scripts, or the server is not supported.
        DaemonsConnected: other daemons use tables that would change.
    """
    await refuse_unsupported(connection, where)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute("SET LOCAL statement_timeout = 0")  # a large table takes its time
        # Without, the server would go on with a step whose client has been killed, or has left.
        await connection.execute("SET LOCAL client_connection_check_interval = '1s'")
        known = await applied(connection)
        refuse_older(known, scripts, where)
        version = len(known)
        refuse_newer(version, scripts, where)
        if 0 < version < len(scripts):
            await connection.execute("LOCK TABLE auditord.migrations IN ACCESS EXCLUSIVE MODE")
            await (end_others(connection) if end_sessions else refuse_others(connection, where))
        for script in scripts[version:]:
            begins(script)
            await connection.execute(script.sql)
            await connection.execute(
                "INSERT INTO auditord.migrations (version, name, applied_at) VALUES (%s, %s, %s)",
                (script.version, script.name, now()),
            )
    return scripts[version:]


def as_script(scripts: Sequence[Script]) -> str:
    """The scripts as an administrator would run them with psql, in one transaction."""
    parts = ["BEGIN;"]
    for script in scripts:
        row = f"({script.version:d}, '{script.name}', now())"
        parts += [script.sql.rstrip(), f"INSERT INTO auditord.migrations (version, name, applied_at) VALUES {row};"]  # noqa: S608 names of our own files
    return "\n\n".join([*parts, "COMMIT;"]) + "\n"


async def require_current(connection: AsyncConnection[TupleRow], scripts: Sequence[Script], where: str) -> None:
    """Return if the schema is exactly the one that these scripts make.

    Raises:
        NoTables: there is none.
        SchemaMismatch: it is older or newer, or the server is not supported.
    """
    await refuse_unsupported(connection, where)
    known = await applied(connection)
    refuse_older(known, scripts, where)
    version = len(known)
    refuse_newer(version, scripts, where)
    remedy = "run `auditord database migrate`, then start again."
    if not version:
        raise NoTables(f"The database {where} has no tables yet: {remedy}")
    if version < len(scripts):
        needs = f"has schema {version}, this version of auditord needs {len(scripts)}"
        raise SchemaMismatch(f"The database {where} {needs}: {remedy}")


def refuse_newer(version: int, scripts: Sequence[Script], where: str) -> None:
    """Return if these scripts know the schema.

    Raises:
        SchemaMismatch: a newer version of auditord has been at work.
    """
    if version > len(scripts):
        raise SchemaMismatch(
            f"The database {where} has schema {version}, this version of auditord knows up to {len(scripts)}: "
            "install the newer version again, or restore the backup from before it."
        )
