"""What plugins keep in PostgreSQL.

A turn is an advisory lock of the connection that also saves the state: who has lost the lock can save nothing, and is
cancelled.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, NoReturn

import anyio

from auditord.database.memory import POLL_SECONDS, as_json
from auditord.database.postgres import Connection, Server
from auditord.database.postgres.faults import translated
from auditord.database.postgres.server import ANSWER_WITHIN
from auditord.database.postgres.sockets import limited
from auditord.errors import plain_errors

LOOK_SECONDS: Final = 5.0
"""How often it is looked whether the lock is still held."""

_LOAD: Final = "SELECT value FROM auditord.plugin_state WHERE task = %s"
_SAVE: Final = """
INSERT INTO auditord.plugin_state (task, value, saved_at) VALUES (%s, %s, %s)
ON CONFLICT (task) DO UPDATE SET value = excluded.value, saved_at = excluded.saved_at
"""
_LOCK: Final = "SELECT pg_try_advisory_lock(hashtextextended('auditord plugin ' || %s, 0))"


class PostgresMemory:
    """Implements :class:`auditord.database.memory.PluginMemory` on one connection.

    Args:
        connection: in autocommit mode.
        task: the plugin.
        where: the database, for messages.
    """

    def __init__(self, connection: Connection, task: str, where: str) -> None:
        self._connection = connection
        self._task = task
        self._where = where

    async def load(self) -> Any:  # Any: the JSON that the plugin stored
        """What was saved last, or None."""
        with translated(self._where), limited(self._connection, ANSWER_WITHIN):
            row = await (await self._connection.execute(_LOAD, (self._task,))).fetchone()
        return None if row is None else json.loads(row[0])

    async def save(self, state: Any, now: datetime) -> None:  # Any: the JSON that the plugin stores
        """Keep the state."""
        row = (self._task, as_json(state).decode(), now)
        with translated(self._where), limited(self._connection, ANSWER_WITHIN):
            await self._connection.execute(_SAVE, row)


@asynccontextmanager
async def memory(server: Server, task: str, waiting: Callable[[], None] | None) -> AsyncGenerator[PostgresMemory, None]:
    """The memory of a plugin, with its turn unless ``waiting`` is None; see :meth:`RecordStore.memory`."""
    async with server.own_connection() as connection:
        if waiting is None:
            yield PostgresMemory(connection, task, server.where)
            return
        await _take_turn(connection, task, waiting)
        with plain_errors():
            async with anyio.create_task_group() as group:
                group.start_soon(_look_after, connection, server.where)
                yield PostgresMemory(connection, task, server.where)
                group.cancel_scope.cancel()


async def _take_turn(connection: Connection, task: str, waiting: Callable[[], None]) -> None:
    if await _try_lock(connection, task):
        return
    waiting()
    while not await _try_lock(connection, task):  # noqa: ASYNC110 the lock is another process's
        await anyio.sleep(POLL_SECONDS)


async def _try_lock(connection: Connection, task: str) -> bool:
    with limited(connection, ANSWER_WITHIN):
        row = await (await connection.execute(_LOCK, (task,))).fetchone()
    return bool(row and row[0])


async def _look_after(connection: Connection, where: str) -> NoReturn:
    """Raise as soon as the connection is lost, and the lock with it: somebody else may have the turn now."""
    while True:
        await anyio.sleep(LOOK_SECONDS)
        with translated(where), limited(connection, ANSWER_WITHIN):
            await connection.execute("SELECT 1")
