"""The memory of plugins between their runs, and turns among the users of one database."""

import fcntl
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import msgspec

from auditord.database.database import Database
from auditord.database.instants import to_micros
from auditord.errors import StoreUnavailable

POLL_SECONDS: Final = 0.2
"""Seconds between two attempts to take a turn that another process holds."""

_LOAD: Final = "SELECT value FROM plugin_state WHERE task = ?"
_SAVE: Final = "INSERT OR REPLACE INTO plugin_state (task, value, saved_at) VALUES (?, ?, ?)"


class Occasion(msgspec.Struct, frozen=True):
    """Why a run starts: on schedule, or (without tick and interval) by an explicit request, which is never skipped.

    Args:
        daemon: the spool id of the daemon that wants to run.
        tick: the latest instant of the cron line. The run is skipped if another daemon has run for this tick.
        within: the run is skipped if another daemon's last run began less than this before the turn was requested.
    """

    daemon: str
    tick: datetime | None = None
    within: timedelta | None = None


class HeldTurn(msgspec.Struct, frozen=True):
    """A turn that a process holds.

    Args:
        task: the plugin.
        host: the host of the holder.
        process: the process id of the holder.
        since: when the holder got the turn, by the database's clock.
        expired: whether the lease has expired, so that the next process that wants the turn takes it over.
    """

    task: str
    host: str
    process: int
    since: datetime
    expired: bool


class PluginMemory(Protocol):
    """The memory of one plugin. Its methods raise :class:`StoreUnavailable` if the database does not answer."""

    async def load(self) -> Any:  # Any: the JSON that the plugin stored
        """Return the state that was saved last, or None."""
        ...

    async def save(self, state: Any, now: datetime) -> None:  # Any: the JSON that the plugin stores
        """Save the state durably.

        Raises:
            TypeError: the state cannot be encoded as JSON.
            TurnLost: another process has taken over the turn. Nothing is saved.
        """
        ...

    async def note_run(self, occasion: Occasion) -> None:
        """Save that a run for this occasion succeeded, so that other daemons can skip theirs.

        Raises:
            TurnLost: another process has taken over the turn.
        """
        ...


def as_json(state: Any) -> bytes:  # Any: what a plugin wants to be kept
    """Encode a state.

    Raises:
        TypeError: the state cannot be encoded as JSON.
    """
    return json.dumps(state, separators=(",", ":")).encode()


class SqliteMemory:
    """Implements :class:`PluginMemory` on the table ``plugin_state`` of a file."""

    def __init__(self, database: Database, task: str) -> None:
        self._database = database
        self._task = task

    async def load(self) -> Any:  # Any: the JSON that the plugin stored
        """Return the state that was saved last, or None."""
        row = await self._database.read(lambda connection: connection.execute(_LOAD, (self._task,)).fetchone())
        return None if row is None else json.loads(row[0])

    async def save(self, state: Any, now: datetime) -> None:  # Any: the JSON that the plugin stores
        row = (self._task, as_json(state), to_micros(now))
        await self._database.write(lambda connection: connection.execute(_SAVE, row))

    async def note_run(self, occasion: Occasion) -> None:
        """Do nothing, since only one daemon uses the file."""


@asynccontextmanager
async def sqlite_memory(
    database: Database, task: str, waiting: Callable[[], None] | None
) -> AsyncGenerator[SqliteMemory, None]:
    """Open the memory of a plugin in a file, with its turn unless ``waiting`` is None."""
    async with nullcontext() if waiting is None else file_turn(database.path, task, waiting):
        yield SqliteMemory(database, task)


@asynccontextmanager
async def file_turn(database: Path, task: str, waiting: Callable[[], None]) -> AsyncGenerator[None, None]:
    """Hold the turn of a plugin among all processes that use an SQLite file. The end of the process releases it.

    Args:
        database: the SQLite file. The lock file is in the same folder.
        task: the plugin.
        waiting: called once if another process has the turn.

    Raises:
        StoreUnavailable: the lock file cannot be created.
    """
    path = database.with_name(f"{database.name}.{task}.lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if os.geteuid() == 0:  # a command run by root must not lock out the daemon's user
            folder = path.parent.stat()
            os.fchown(descriptor, folder.st_uid, folder.st_gid)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be used: {error.strerror}.") from error
    try:
        if not _try_lock(descriptor):
            waiting()
            while not _try_lock(descriptor):  # noqa: ASYNC110 the lock is another process's
                await anyio.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)  # the file stays: if it were deleted, two processes could lock two files with this name


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
