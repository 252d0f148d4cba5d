"""The memory of plugins between their runs, and turns among the users of one database."""

import fcntl
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import msgspec

from auditord.database.database import Database
from auditord.database.instants import to_micros
from auditord.errors import StoreUnavailable

POLL_SECONDS: Final = 0.2
"""Seconds between two looks of a process that waits for a turn."""

_LOAD: Final = "SELECT value FROM plugin_state WHERE task = ?"
_SAVE: Final = "INSERT OR REPLACE INTO plugin_state (task, value, saved_at) VALUES (?, ?, ?)"


class Occasion(msgspec.Struct, frozen=True):
    """The reason for a run: a tick of the clock, or (without tick and interval) a demand, which is always met.

    Args:
        daemon: the spool id of the daemon that is to run.
        tick: the latest instant of the cron line; left out if another daemon has run for this tick.
        within: left out if another daemon's last run began less than this before the turn was asked for.
    """

    daemon: str
    tick: datetime | None = None
    within: timedelta | None = None


class HeldTurn(msgspec.Struct, frozen=True):
    """A turn that is taken.

    Args:
        task: the plugin.
        host: of the holder.
        process: its process id there.
        since: when it got the turn, by the database's clock.
        expired: it has not renewed its lease in time; the next one that asks takes over.
    """

    task: str
    host: str
    process: int
    since: datetime
    expired: bool


class PluginMemory(Protocol):
    """The memory of one plugin. Its methods raise :class:`StoreUnavailable` when the database does not answer."""

    async def load(self) -> Any:  # Any: the JSON that the plugin stored
        """The state that was saved last, or None."""
        ...

    async def save(self, state: Any, now: datetime) -> None:  # Any: the JSON that the plugin stores
        """Keep the state, durably.

        Raises:
            TypeError: it is no JSON.
            TurnLost: another process has taken over the turn; nothing is kept.
        """
        ...

    async def note_run(self, occasion: Occasion) -> None:
        """Keep with the turn that a run for this occasion went well, for the clocks of other daemons.

        Raises:
            TurnLost: another process has taken over the turn.
        """
        ...


def as_json(state: Any) -> bytes:  # Any: what a plugin wants to be kept
    """The text of a state.

    Raises:
        TypeError: it is no JSON.
    """
    return json.dumps(state, separators=(",", ":")).encode()


class SqliteMemory:
    """Implements :class:`PluginMemory` on the table ``plugin_state`` of a file."""

    def __init__(self, database: Database, task: str) -> None:
        self._database = database
        self._task = task

    async def load(self) -> Any:  # Any: the JSON that the plugin stored
        """The state that was saved last, or None."""
        row = await self._database.read(lambda connection: connection.execute(_LOAD, (self._task,)).fetchone())
        return None if row is None else json.loads(row[0])

    async def save(self, state: Any, now: datetime) -> None:  # Any: the JSON that the plugin stores
        """Keep the state."""
        row = (self._task, as_json(state), to_micros(now))
        await self._database.write(lambda connection: connection.execute(_SAVE, row))

    async def note_run(self, occasion: Occasion) -> None:
        """Keep nothing: one daemon uses the file."""


@asynccontextmanager
async def sqlite_memory(
    database: Database, task: str, waiting: Callable[[], None] | None
) -> AsyncGenerator[SqliteMemory, None]:
    """The memory of a plugin in a file, with its turn unless ``waiting`` is None.

    Nothing is kept of the occasions of runs: one daemon uses the file.
    """
    async with AsyncExitStack() as stack:
        if waiting is not None:
            await stack.enter_async_context(file_turn(database.path, task, waiting))
        yield SqliteMemory(database, task)


@asynccontextmanager
async def file_turn(database: Path, task: str, waiting: Callable[[], None]) -> AsyncGenerator[None, None]:
    """Hold the turn of a plugin among all processes that use an SQLite file; it ends with the process.

    Args:
        database: the SQLite file; the locked file lies beside it.
        task: the plugin.
        waiting: called once if another process has the turn.

    Raises:
        StoreUnavailable: the locked file cannot be made.
    """
    descriptor = _open(database.with_name(f"{database.name}.{task}.lock"))
    try:
        if not _locked(descriptor):
            waiting()
            while not _locked(descriptor):  # noqa: ASYNC110 the lock is another process's
                await anyio.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)  # the file stays: removing it would let two processes each lock a file of this name


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if os.geteuid() == 0:  # a command of root must not lock the daemon's own user out
            folder = path.parent.stat()
            os.fchown(descriptor, folder.st_uid, folder.st_gid)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be used: {error.strerror}.") from error
    return descriptor


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
