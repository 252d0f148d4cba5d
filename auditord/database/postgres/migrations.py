"""Migrations of a PostgreSQL database: read and update its schema version, and refuse unsuitable databases.

Other auditord processes must not use the tables while they change. Some servers speak PostgreSQL's protocol but are not
supported. On a distributed engine, sums are not from one snapshot, and reads do not stream. Behind a pooler in
transaction mode, sessions share their locks, so two daemons could run one plugin at the same time.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, LiteralString

import anyio
import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from auditord.database.postgres.address import APPLICATION, Address
from auditord.database.sql_files import Script
from auditord.errors import DaemonsConnected, NoTables, SchemaMismatch

_LOCK: Final = 0x61756472  # "audr"; one migration at a time

_HAS_MIGRATIONS: Final = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = 'auditord' AND tablename = 'migrations')
"""
"""It queries the catalogue, since ``to_regclass`` may miss a schema that another session has just committed."""

_APPLIED: Final = "SELECT version, name, applied_at FROM auditord.migrations ORDER BY version"


class Applied(msgspec.Struct, frozen=True):
    """A migration that has been applied to a database."""

    version: int
    name: str
    applied_at: datetime


async def list_applied(connection: AsyncConnection[TupleRow]) -> Sequence[Applied]:
    """Return the applied migrations in order; none if the database has no tables of auditord."""
    found = await (await connection.execute(_HAS_MIGRATIONS)).fetchone()
    if not found or not found[0]:
        return ()
    return [Applied(*row) for row in await (await connection.execute(_APPLIED)).fetchall()]


async def migrate(
    connection: AsyncConnection[TupleRow],
    scripts: Sequence[Script],
    where: str,
    now: Callable[[], datetime],
    *,
    end_sessions: bool = False,
    begins: Callable[[Script], None] = lambda _: None,
) -> Sequence[Script]:
    """Apply all pending migrations in one transaction, and return them.

    Daemons that connect meanwhile wait for the end, and are then refused if they are older.

    Args:
        connection: in autocommit mode.
        scripts: all migrations of this version.
        where: the database, for messages.
        now: the clock for the time at which each was applied.
        end_sessions: whether to end other sessions of auditord. Otherwise, DaemonsConnected is raised if there are any.
        begins: is notified of each script.

    Raises:
        SchemaMismatch: the schema is newer than these scripts, or the server is not supported.
        DaemonsConnected: other daemons use tables that would change.
    """
    await refuse_unsupported(connection, where)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute("SET LOCAL statement_timeout = 0")  # a large table takes long
        # Else the server would continue with a step after its client has been killed.
        await connection.execute("SET LOCAL client_connection_check_interval = '1s'")
        version = len(await list_applied(connection))
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
    """Return the scripts as one transaction, for an administrator to run with psql."""
    parts = ["BEGIN;"]
    for script in scripts:
        row = f"({script.version:d}, '{script.name}', now())"
        parts += [script.sql.rstrip(), f"INSERT INTO auditord.migrations (version, name, applied_at) VALUES {row};"]  # noqa: S608 names of our own files
    return "\n\n".join([*parts, "COMMIT;"]) + "\n"


async def require_current(connection: AsyncConnection[TupleRow], scripts: Sequence[Script], where: str) -> None:
    """Check that the schema is exactly the one that these scripts make.

    Raises:
        NoTables: there is no schema.
        SchemaMismatch: the schema is older or newer, or the server is not supported.
    """
    await refuse_unsupported(connection, where)
    version = len(await list_applied(connection))
    refuse_newer(version, scripts, where)
    remedy = "run `auditord database migrate`, then start again."
    if not version:
        raise NoTables(f"The database {where} has no tables yet: {remedy}")
    if version < len(scripts):
        needs = f"has schema {version}, this version of auditord needs {len(scripts)}"
        raise SchemaMismatch(f"The database {where} {needs}: {remedy}")


def refuse_newer(version: int, scripts: Sequence[Script], where: str) -> None:
    """Raise SchemaMismatch if a newer version of auditord has migrated the schema."""
    if version > len(scripts):
        raise SchemaMismatch(
            f"The database {where} has schema {version}, this version of auditord knows up to {len(scripts)}: "
            "install the newer version again, or restore a backup from before the upgrade."
        )


_PATIENCE: Final = 5.0
"""Seconds for the sessions of daemons that have just been stopped to end."""

_BETWEEN_LOOKS: Final = 0.1

# Sessions that wait for this one do not count: they have just connected, and will check the schema version afterwards.
_OTHERS: Final = """
SELECT coalesce(host(client_addr), 'this host'), count(*)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %s AND pid <> pg_backend_pid()
    AND NOT pg_backend_pid() = ANY (pg_blocking_pids(pid))
GROUP BY 1 ORDER BY 1
"""
_END: Final = """
SELECT count(pg_terminate_backend(pid, 5000))
FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %s AND pid <> pg_backend_pid()
"""


async def refuse_others(connection: AsyncConnection[TupleRow], where: str) -> None:
    """Wait some seconds until no other auditord is connected to the database.

    Raises:
        DaemonsConnected: another one is still connected.
    """
    deadline = anyio.current_time() + _PATIENCE
    while True:
        await connection.execute("SELECT pg_stat_clear_snapshot()")  # else a transaction always sees its first result
        others = await (await connection.execute(_OTHERS, (APPLICATION,))).fetchall()
        if not others:
            return
        if anyio.current_time() > deadline:
            hosts = ", ".join(f"{host} ({count})" for host, count in others)
            raise DaemonsConnected(
                f"The database {where} is in use by auditord from {hosts}: stop those daemons first. An older one "
                "would continue to write in the old format, and new tables and columns would lack its data"
            )
        await anyio.sleep(_BETWEEN_LOOKS)


async def end_others(connection: AsyncConnection[TupleRow]) -> None:
    """End the sessions of all other auditord processes. Their open transactions are rolled back.

    Raises:
        StoreUnavailable: the user may not end them.
    """
    await connection.execute(_END, (APPLICATION,))


_OLDEST_SERVER: Final = 140_000

_FOREIGN: Final = re.compile(r"CockroachDB|-YB-|YugabyteDB|Greenplum|Redshift|Materialize|CrateDB|QuestDB")
"""Other engines, as named in the result of ``version()``."""

_NAMES: Final = {"-YB-": "YugabyteDB"}

_LOOK: Final = """
SELECT
    version(),
    to_regclass('pg_dist_partition') IS NOT NULL,
    to_regclass('timescaledb_information.hypertables') IS NOT NULL
"""

# https://docs.citusdata.com/en/stable/develop/api_metadata.html
_DISTRIBUTED: Final = """
SELECT count(*)
FROM pg_dist_partition
JOIN pg_class ON pg_class.oid = pg_dist_partition.logicalrelid
WHERE pg_class.relnamespace = to_regnamespace('auditord')
"""

# https://docs.timescale.com/api/latest/informational-views/hypertables/
_HYPERTABLES: Final = "SELECT count(*) FROM timescaledb_information.hypertables WHERE hypertable_schema = 'auditord'"

_ADVICE: Final = "keep the records in a plain PostgreSQL 14 or later (another database of the same server will do)"


async def refuse_unsupported(connection: AsyncConnection[TupleRow], where: str) -> None:
    """Raise SchemaMismatch unless the server is a recent PostgreSQL, the encoding UTF8 and the tables plain ones."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaMismatch(
            f"{where} has the encoding {encoding}, which cannot keep all names: create the database again with "
            "`createdb --encoding=UTF8 --locale=C.UTF-8 --template=template0`."
        )
    version, has_citus, has_timescale = await _row(connection, _LOOK)
    if foreign := _FOREIGN.search(version):
        name = _NAMES.get(foreign[0], foreign[0])
        raise SchemaMismatch(f"The server of {where} is {name}, which is not supported: {_ADVICE}.")
    if connection.info.server_version < _OLDEST_SERVER:
        major = connection.info.server_version // 10_000
        raise SchemaMismatch(f"The server of {where} is PostgreSQL {major}: auditord needs 14 or later.")
    if has_citus and (await _row(connection, _DISTRIBUTED))[0]:
        raise SchemaMismatch(
            f"Citus distributes tables of auditord in {where}, where sums would be inconsistent: {_ADVICE}."
        )
    if has_timescale and (await _row(connection, _HYPERTABLES))[0]:
        raise SchemaMismatch(f"Tables of auditord in {where} are TimescaleDB hypertables, not plain tables: {_ADVICE}.")


async def refuse_shared_sessions(connection: AsyncConnection[TupleRow], address: Address) -> None:
    """Raise SchemaMismatch if a pooler gives this session's server process to other sessions between transactions.

    A pooler makes up the process id in the handshake, so a real one means that there is none. Otherwise, a second
    connection is opened while the first one is idle. If both meet the same process, sessions share it.
    """
    (pid,) = await _row(connection, "SELECT pg_backend_pid()")
    if pid == connection.info.backend_pid:
        return
    async with await AsyncConnection.connect(autocommit=True, **address.parameters()) as other:
        pids = {pid, *[(await _row(each, "SELECT pg_backend_pid()"))[0] for each in [connection, other] * 3]}
    if len(pids) != 2:  # noqa: PLR2004 a process for each of the two
        raise SchemaMismatch(
            f"A pooler in transaction mode in front of {address.where} breaks the locks and settings of "
            "sessions: set pool_mode=session for this database there, or point store.url to the server itself."
        )


async def _row(connection: AsyncConnection[TupleRow], query: LiteralString) -> Any:  # Any: as the query's columns
    return await (await connection.execute(query)).fetchone()
