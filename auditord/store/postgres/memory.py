"""The memory of plugins in PostgreSQL.

A turn is a lease (:mod:`auditord.store.postgres.turns`): who has lost it can save nothing, and is cancelled.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from auditord.database.memory import Occasion, as_json
from auditord.database.postgres import Connection, Server
from auditord.database.postgres.faults import translated
from auditord.database.postgres.server import ANSWER_WITHIN, limited
from auditord.errors import plain_errors
from auditord.store.postgres.turns import Turn, taken

_LOAD: Final = "SELECT value FROM auditord.plugin_state WHERE task = %s"
_VALUES: Final = "%(task)s, %(value)s, %(now)s"
_REPLACE: Final = "ON CONFLICT (task) DO UPDATE SET value = excluded.value, saved_at = excluded.saved_at"
_SAVE: Final = f"INSERT INTO auditord.plugin_state (task, value, saved_at) VALUES ({_VALUES}) {_REPLACE}"  # noqa: S608 no input
# The lock makes the one who takes over wait for this transaction, and load what it has saved.
_SAVE_IN_TURN: Final = f"""
WITH held AS (SELECT 1 FROM auditord.turns WHERE task = %(task)s AND fencing = %(fencing)s FOR SHARE)
INSERT INTO auditord.plugin_state (task, value, saved_at) SELECT {_VALUES} FROM held {_REPLACE}
"""  # noqa: S608 no input


class PostgresMemory:
    """Implements :class:`auditord.database.memory.PluginMemory` on one connection.

    Args:
        connection: in autocommit mode.
        task: the plugin.
        where: the database, for messages.
        turn: in which it is saved.
    """

    def __init__(self, connection: Connection, task: str, where: str, turn: Turn | None) -> None:
        self._connection = connection
        self._task = task
        self._where = where
        self._turn = turn

    async def load(self) -> Any:  # Any: the JSON that the plugin stored
        """The state that was saved last, or None."""
        with translated(self._where), limited(self._connection, ANSWER_WITHIN):
            row = await (await self._connection.execute(_LOAD, (self._task,))).fetchone()
        return None if row is None else json.loads(row[0])

    async def save(self, state: Any, now: datetime) -> None:  # Any: the JSON that the plugin stores
        """Keep the state."""
        values = {"value": as_json(state).decode(), "now": now}
        with translated(self._where), limited(self._connection, ANSWER_WITHIN):
            if self._turn is None:
                await self._connection.execute(_SAVE, {**values, "task": self._task})
            else:
                await self._turn.write(_SAVE_IN_TURN, values)

    async def note_run(self, occasion: Occasion) -> None:
        """Keep that a run went well."""
        if self._turn is not None:
            await self._turn.note_run(occasion)


@asynccontextmanager
async def memory(
    server: Server, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None
) -> AsyncGenerator[PostgresMemory, None]:
    """The memory of a plugin, with its turn unless ``waiting`` is None; see :meth:`RecordStore.memory`."""
    async with server.own_connection() as connection:
        if waiting is None:
            yield PostgresMemory(connection, task, server.where, None)
            return
        with plain_errors():
            async with taken(connection, task, server.where, waiting, occasion) as turn:
                yield PostgresMemory(connection, task, server.where, turn)
