"""Servers that speak PostgreSQL's protocol and cannot keep the records: each is refused in one sentence.

On a distributed engine a sum is no longer of one moment, and reads no longer stream. Behind a pooler in transaction
mode the locks of a session are anybody's, so that two daemons may run one plugin at the same time.
"""

import re
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from auditord.database.postgres.address import Address
from auditord.errors import SchemaMismatch

_OLDEST_SERVER: Final = 140_000

_FOREIGN: Final = re.compile(r"CockroachDB|-YB-|YugabyteDB|Greenplum|Redshift|Materialize|CrateDB|QuestDB")
"""Other engines, as their ``version()`` names them."""

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
    """Return if the server is a PostgreSQL that is new enough, and the tables are its own.

    Raises:
        SchemaMismatch: it is not.
    """
    version, has_citus, has_timescale = await _row(connection, _LOOK)
    if foreign := _FOREIGN.search(version):
        name = _NAMES.get(foreign[0], foreign[0])
        raise SchemaMismatch(f"The server of {where} is {name}, which is not supported: {_ADVICE}.")
    if connection.info.server_version < _OLDEST_SERVER:
        major = connection.info.server_version // 10_000
        raise SchemaMismatch(f"The server of {where} is PostgreSQL {major}: auditord needs 14 or later.")
    if has_citus and (await _row(connection, _DISTRIBUTED))[0]:
        raise SchemaMismatch(f"Citus distributes tables of auditord in {where}, where sums would be torn: {_ADVICE}.")
    if has_timescale and (await _row(connection, _HYPERTABLES))[0]:
        raise SchemaMismatch(f"Tables of auditord in {where} are TimescaleDB's hypertables, not its own: {_ADVICE}.")


async def refuse_shared_sessions(connection: AsyncConnection[TupleRow], address: Address) -> None:
    """Return unless a pooler gives this session's server process to others between two transactions.

    A pooler makes up the process id of the handshake, so only behind one a second connection is made. It begins while
    the first one rests: if it meets the same process, that one belongs to no session.

    Raises:
        SchemaMismatch: it does.
    """
    (pid,) = await _row(connection, "SELECT pg_backend_pid()")
    if pid == connection.info.backend_pid:
        return
    async with await AsyncConnection.connect(autocommit=True, **address.parameters()) as other:
        pids = {pid, *[(await _row(each, "SELECT pg_backend_pid()"))[0] for each in [connection, other] * 3]}
    if len(pids) != 2:  # noqa: PLR2004 a process for each of the two
        raise SchemaMismatch(
            f"A pooler in transaction mode in front of {address.where} breaks the locks and settings of "
            "sessions: give this database pool_mode=session there, or point store.url to the server itself."
        )


async def _row(connection: AsyncConnection[TupleRow], query: LiteralString) -> Any:  # Any: as the query's columns
    return await (await connection.execute(query)).fetchone()
