"""Turns of plugins in PostgreSQL: leases with a fencing number, measured by the database's clock.

A holder renews its lease while it runs, and gives up some seconds before the lease expires. Another process can take
over when the lease has expired or the holder's session has ended, which releases the session's advisory lock. Each
holder locks its own fencing number, so a session that outlives its host does not block others. Late writes of a former
holder are refused.

Taking a turn is one statement, so that a host that fails in the middle leaves no row locked.
"""

import json
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn

import anyio
import psycopg

from auditord.database.memory import POLL_SECONDS, HeldTurn, Occasion, as_json
from auditord.database.postgres import Connection, Server
from auditord.database.postgres.faults import translate_errors
from auditord.database.postgres.server import ANSWER_WITHIN, limit_time
from auditord.errors import RanElsewhere, StoreUnavailable, TurnLost, plain_errors
from auditord_hookspecs.wire import format_time

LEASE: Final = 20.0
"""Seconds without a renewal after which a holder loses its turn."""

GIVE_UP: Final = 15.0
"""Seconds without an answer after which a holder ends its run, before another process can have taken over."""

RENEWAL: Final = 5.0
"""Seconds from one renewal to the next."""

SHORTEST: Final = 1.0
"""Minimum timeout in seconds for a renewal that is late because the process was blocked."""

_RELEASE_WITHIN: Final = 2.0

_KEY: Final = "hashtextextended('auditord turn ' || task || ' ' || fencing, 0)"

_RECENT: Final = """
coalesce(last_daemon <> %(daemon)s
    AND coalesce(last_tick >= %(tick)s::timestamptz, last_run > %(asked)s::timestamptz - %(within)s::interval), false)
"""

_ASK: Final = "INSERT INTO auditord.turns (task) VALUES (%s) ON CONFLICT (task) DO NOTHING"
_NOW: Final = "SELECT clock_timestamp()"
_LAST: Final = f"SELECT last_run FROM auditord.turns WHERE task = %(task)s AND {_RECENT}"  # noqa: S608 no input
_TAKE: Final = f"""
UPDATE auditord.turns
SET fencing = fencing + 1, host = %(host)s, process = %(process)s, since = clock_timestamp(),
    expires_at = clock_timestamp() + %(lease)s
WHERE task = %(task)s AND NOT {_RECENT}
    AND (host IS NULL OR expires_at <= clock_timestamp() OR pg_try_advisory_xact_lock({_KEY}))
RETURNING fencing, pg_advisory_lock({_KEY})
"""  # noqa: S608 no input
_RENEW: Final = """
UPDATE auditord.turns SET expires_at = clock_timestamp() + %(lease)s
WHERE task = %(task)s AND fencing = %(fencing)s
"""
_NOTE: Final = """
UPDATE auditord.turns
SET last_run = since, last_tick = coalesce(%(tick)s, last_tick), last_daemon = %(daemon)s
WHERE task = %(task)s AND fencing = %(fencing)s
"""
_RELEASE: Final = """
UPDATE auditord.turns SET host = NULL, process = NULL, since = NULL, expires_at = NULL
WHERE task = %(task)s AND fencing = %(fencing)s
"""
_HELD: Final = """
SELECT task, host, process, since, expires_at <= clock_timestamp() FROM auditord.turns WHERE host IS NOT NULL
"""


class Turn:
    """A turn that this process holds until another one takes it over.

    Args:
        connection: in autocommit mode; its session holds the lock.
        task: the plugin.
        fencing: the fencing number of this holder.
        where: the database, for messages.
    """

    def __init__(self, connection: Connection, task: str, fencing: int, where: str) -> None:
        self.fencing: Final = fencing
        self._connection = connection
        self._task = task
        self._where = where

    async def note_run(self, occasion: Occasion) -> None:
        """Save that a run for this occasion succeeded."""
        with translate_errors(self._where), limit_time(self._connection, ANSWER_WITHIN):
            await self.write(_NOTE, {"tick": occasion.tick, "daemon": occasion.daemon})

    async def write(self, statement: str, values: Mapping[str, object]) -> None:
        """Run a statement that changes one row if ``%(task)s`` still has the fencing number ``%(fencing)s``.

        Raises:
            TurnLost: no row was changed.
        """
        cursor = await self._connection.execute(
            statement.encode(), {**values, "task": self._task, "fencing": self.fencing}
        )
        if cursor.rowcount != 1:
            holder = next((turn for turn in await list_turns(self._connection) if turn.task == self._task), None)
            who = "another process" if holder is None else f"process {holder.process} on {holder.host}"
            when = "" if holder is None else f" at {format_time(holder.since)}"
            raise TurnLost(
                f"{who} took over the turn{when}, since this daemon did not renew it for {LEASE:g} s; this run saves "
                f"nothing more. Check the network to the database {self._where} and the load of this host."
            )

    async def renew(self, taken: float) -> NoReturn:
        """Renew the lease until cancelled. Raise once another process has the turn (TurnLost), or may soon take it.

        Args:
            taken: when the turn was requested, by the event loop's clock.
        """
        renewed = taken
        while True:
            await anyio.sleep_until(renewed + RENEWAL)
            started = anyio.current_time()
            try:
                with (
                    translate_errors(self._where),
                    limit_time(self._connection, max(renewed + GIVE_UP - started, SHORTEST)),
                ):
                    await self.write(_RENEW, {"lease": timedelta(seconds=LEASE)})
            except StoreUnavailable as error:
                raise StoreUnavailable(
                    f"the run ends and gives up its turn, since another daemon may take over: {error}"
                ) from error
            renewed = started

    async def release(self) -> None:
        """Release the turn. If the connection is broken, the end of its session releases it."""
        with (
            anyio.CancelScope(shield=True),
            suppress(psycopg.Error, TurnLost),
            limit_time(self._connection, _RELEASE_WITHIN),
        ):
            await self.write(_RELEASE, {})


@asynccontextmanager
async def hold_turn(
    connection: Connection, task: str, where: str, waiting: Callable[[], None], occasion: Occasion | None
) -> AsyncGenerator[Turn, None]:
    """Hold the turn of a plugin; see :meth:`auditord.store.store.RecordStore.memory`."""
    began, fencing = await _take(connection, task, waiting, occasion)
    turn = Turn(connection, task, fencing, where)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(turn.renew, began)
            yield turn
            group.cancel_scope.cancel()
    finally:
        await turn.release()


async def list_turns(connection: Connection) -> Sequence[HeldTurn]:
    """Return the turns that are held by any process."""
    return [HeldTurn(*row) for row in await (await connection.execute(_HELD)).fetchall()]


async def _take(
    connection: Connection, task: str, waiting: Callable[[], None], occasion: Occasion | None
) -> tuple[float, int]:
    with limit_time(connection, ANSWER_WITHIN):
        await connection.execute(_ASK, (task,))
        asked = await _first(connection, _NOW, {})
    values = {
        "task": task,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "lease": timedelta(seconds=LEASE),
        "asked": asked,
        "daemon": None if occasion is None else occasion.daemon,
        "tick": None if occasion is None else occasion.tick,
        "within": None if occasion is None else occasion.within,
    }
    waits = False
    while True:
        began = anyio.current_time()
        with limit_time(connection, ANSWER_WITHIN):
            fencing = await _first(connection, _TAKE, values)
            if fencing is not None:
                return began, fencing
            if (last := await _first(connection, _LAST, values)) is not None:
                raise RanElsewhere(f"{task}: another daemon has run it at {format_time(last)}")
        if not waits:
            waiting()
            waits = True
        await anyio.sleep(POLL_SECONDS)


async def _first(connection: Connection, statement: str, values: Mapping[str, object]) -> Any:  # Any: of any column
    row = await (await connection.execute(statement.encode(), values)).fetchone()
    return None if row is None else row[0]


_LOAD: Final = "SELECT value FROM auditord.plugin_state WHERE task = %s"
_VALUES: Final = "%(task)s, %(value)s, %(now)s"
_REPLACE: Final = "ON CONFLICT (task) DO UPDATE SET value = excluded.value, saved_at = excluded.saved_at"
_SAVE: Final = f"INSERT INTO auditord.plugin_state (task, value, saved_at) VALUES ({_VALUES}) {_REPLACE}"  # noqa: S608 no input
# Because of the lock, a process that takes over waits for this transaction, and loads the state that it saves.
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
        turn: the turn to check on writes; None writes without a turn.
    """

    def __init__(self, connection: Connection, task: str, where: str, turn: Turn | None) -> None:
        self._connection = connection
        self._task = task
        self._where = where
        self._turn = turn

    async def load(self) -> Any:  # Any: the JSON that the plugin stored
        """Return the state that was saved last, or None."""
        with translate_errors(self._where), limit_time(self._connection, ANSWER_WITHIN):
            row = await (await self._connection.execute(_LOAD, (self._task,))).fetchone()
        return None if row is None else json.loads(row[0])

    async def save(self, state: Any, now: datetime) -> None:  # Any: the JSON that the plugin stores
        values = {"value": as_json(state).decode(), "now": now}
        with translate_errors(self._where), limit_time(self._connection, ANSWER_WITHIN):
            if self._turn is None:
                await self._connection.execute(_SAVE, {**values, "task": self._task})
            else:
                await self._turn.write(_SAVE_IN_TURN, values)

    async def note_run(self, occasion: Occasion) -> None:
        """Save that a run succeeded, if this memory has a turn."""
        if self._turn is not None:
            await self._turn.note_run(occasion)


@asynccontextmanager
async def memory(
    server: Server, task: str, waiting: Callable[[], None] | None, occasion: Occasion | None
) -> AsyncGenerator[PostgresMemory, None]:
    """Open the memory of a plugin, with its turn unless ``waiting`` is None; see :meth:`RecordStore.memory`."""
    async with server.own_connection() as connection:
        if waiting is None:
            yield PostgresMemory(connection, task, server.where, None)
            return
        with plain_errors():
            async with hold_turn(connection, task, server.where, waiting, occasion) as turn:
                yield PostgresMemory(connection, task, server.where, turn)
