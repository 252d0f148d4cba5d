"""Sessions of other auditord processes on a database, which must not go on beside a change of its tables."""

from collections.abc import Sequence
from typing import Any, Final

import anyio
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from auditord.database.postgres.address import APPLICATION
from auditord.errors import DaemonsConnected

_PATIENCE: Final = 5.0
"""Seconds for sessions to end whose daemons have been stopped a moment ago."""

_BETWEEN_LOOKS: Final = 0.1

# Without those that wait for this session: they have just connected, and look at the tables' version at its end.
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
    """Return once no other auditord is connected to the database.

    Raises:
        DaemonsConnected: one is, and stays.
    """
    deadline = anyio.current_time() + _PATIENCE
    while others := await _others(connection):
        if anyio.current_time() > deadline:
            hosts = ", ".join(f"{host} ({count})" for host, count in others)
            raise DaemonsConnected(
                f"The database {where} is in use by auditord from {hosts}: stop those daemons first. An older one "
                "would keep writing in the old form, and new tables and columns would lack its rows"
            )
        await anyio.sleep(_BETWEEN_LOOKS)


async def end_others(connection: AsyncConnection[TupleRow]) -> None:
    """End the sessions of all other auditord processes; what they had not committed is undone.

    Raises:
        StoreUnavailable: the user may not end them.
    """
    await connection.execute(_END, (APPLICATION,))


async def _others(connection: AsyncConnection[TupleRow]) -> Sequence[tuple[Any, ...]]:  # Any: columns of all types
    await connection.execute("SELECT pg_stat_clear_snapshot()")  # a transaction would see what it saw first
    return await (await connection.execute(_OTHERS, (APPLICATION,))).fetchall()
