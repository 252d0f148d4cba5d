"""Page-by-page copies of a snapshot of an SQLite file while others write to it.

The source connection holds a read transaction for the whole copy. So all pages belong to one snapshot, and the copy
does not restart with each write of others. The price is that the file's log grows with every write during the copy.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio.from_thread
import msgspec

from auditord.database.connections import open_for_reading, translate_errors
from auditord.database.database import refuse_damaged
from auditord.database.durable_files import sync
from auditord.database.migrations import load_migrations, refuse_changed, require_current
from auditord.store.copying import Progress

_PAGES: Final = 64
"""Pages per step: half a megabyte, copied in a millisecond or two."""

Advance = Callable[[int, int], None]
"""Takes the bytes done and the total, returns when the copy may continue, and raises to end it."""


@contextmanager
def snapshot(path: Path, migrations: str) -> Generator[sqlite3.Connection, None, None]:
    """Open a connection that sees one snapshot of the file until the context ends.

    Raises:
        SchemaMismatch: the file belongs to another program or version, or its schema was changed.
        StoreUnavailable: the file is missing or cannot be read.
    """
    with closing(open_for_reading(path)) as connection, translate_errors(path):
        require_current(connection, load_migrations(migrations), path)
        refuse_changed(connection, load_migrations(migrations), path)  # a restore would refuse the copy
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master")  # the first read begins the transaction
        yield connection


def copy_snapshot(connection: sqlite3.Connection, target: Path, advance: Advance) -> None:
    """Copy all pages to a new file, check it, and synchronise it to disk. Blocks.

    Raises:
        StoreDamaged: the source is damaged, and so is the copy.
        StoreUnavailable: one of the files cannot be used, for example because the disk is full.
    """
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    (page_size,) = connection.execute("PRAGMA page_size").fetchone()

    def progress(_status: int, remaining: int, total: int) -> None:
        advance((total - remaining) * page_size, total * page_size)

    with closing(sqlite3.connect(target, isolation_level=None)) as copy, translate_errors(target):
        copy.execute("PRAGMA synchronous = OFF")  # it is synchronised as a whole below
        connection.backup(copy, pages=_PAGES, progress=progress)
        copy.execute("PRAGMA journal_mode = DELETE")  # a single file, readable on a read-only file system
        refuse_damaged(copy, target)
    sync(target)


class Pace:
    """Reports the progress of a copy in a thread, and limits its rate.

    Args:
        show: receives the bytes done and the total.
        rate: bytes per second; None for no limit.
        clock: in seconds.
        sleep: takes seconds.
    """

    def __init__(
        self,
        show: Callable[[int, int], None],
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._show = show
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._began = clock()

    def __call__(self, done: int, total: int) -> None:
        """Report progress, and wait as long as the rate requires."""
        anyio.from_thread.check_cancelled()
        self._show(done, total)
        if self._rate is not None and (early := done / self._rate - (self._clock() - self._began)) > 0:
            self._sleep(early)


class Pacing(msgspec.Struct, frozen=True):
    """Progress and rate limit (bytes per second) for all steps of a backup."""

    progress: Progress
    rate: float | None

    def __call__(self, phase: str) -> Pace:
        return Pace(partial(self.progress.note_progress, phase), self.rate)

    def checking(self, size: int) -> Progress:
        """Return a progress for verifying the records of a copy of ``size`` bytes."""
        return _Checking(self("checking"), size)


class _Checking(msgspec.Struct, frozen=True):
    pace: Pace
    size: int

    def note_progress(self, phase: str, done: int, total: int) -> None:
        del phase
        self.pace(self.size * done // max(total, 1), self.size)
