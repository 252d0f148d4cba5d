"""One SQLite file: writes in groups through one thread, reads beside them."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from auditord.database.connections import open_for_reading, open_for_writing, set_up_writer
from auditord.database.faults import translated
from auditord.database.migrations import Migrations, load_migrations, migrate, refuse_foreign, require_current
from auditord.database.readers import Readers, Snapshots
from auditord.database.writer import Together, Writer
from auditord.errors import StoreDamaged, StoreUnavailable

P = TypeVar("P")
T = TypeVar("T")

MOST_LOG: Final = 1 << 30
"""Bytes of log above which slow readers are asked to go."""

CHECKED_BYTES: Final = 32 << 20
"""A file that is no larger is checked whenever it is opened for writing, in a tenth of a second."""

_PAGES_AT_ONCE: Final = 4_000  # 16 MiB, some milliseconds

READERS_PATIENCE: Final = 300.0
"""Seconds that any reader may take, however large the log grows."""


class Database:
    """A file with its threads. Make one with :meth:`open` or :meth:`open_read_only`, and :meth:`close` it.

    Every method raises :class:`StoreUnavailable` when the file cannot be used at the moment; its text names the file
    and what to do.
    """

    def __init__(self, path: Path, writer: Callable[[Snapshots], Writer] | None) -> None:
        """Use :meth:`open`."""
        self.path: Final = path
        snapshots = Snapshots(path, time.monotonic, most_log=MOST_LOG, patience=READERS_PATIENCE)
        self._writer = None if writer is None else writer(snapshots)
        self._readers = Readers(path, snapshots, None if self._writer is None else self._writer.give_up)
        self.read: Final = self._readers.read
        """Do work that only reads, and briefly."""
        self.stream: Final = self._readers.stream
        """The answer to a query, page by page."""

    @classmethod
    def open(cls, path: Path, migrations: str, *, max_page_count: int | None = None) -> "Database":
        """Open the file for reading and writing; make it, or migrate it, where needed.

        Args:
            path: the file; its folder must exist.
            migrations: the package that holds the ``NNNN_slug.sql`` files.
            max_page_count: pages that the file may have at most: a test's way to fill a disk.

        Raises:
            SchemaMismatch: the file is another program's, or newer than this version.
            StoreDamaged: it is not large, was looked at, and found damaged.
            StoreUnavailable: it cannot be opened, or not be written.
        """
        known = load_migrations(migrations)
        connection = open_for_writing(path)
        try:
            _prepare(connection, known, path, max_page_count)
        except BaseException:
            connection.close()
            raise
        return cls(path, lambda snapshots: Writer(connection, path, snapshots.open, snapshots.relieve_log))

    @classmethod
    def open_read_only(cls, path: Path, migrations: str) -> "Database":
        """Open a file for reading, beside a daemon that may be writing it.

        Raises:
            SchemaMismatch: the file is another program's, newer, or older and not migrated yet.
            StoreUnavailable: it is not there or cannot be opened.
        """
        connection = open_for_reading(path)
        try:
            require_current(connection, load_migrations(migrations), path)
        finally:
            connection.close()
        return cls(path, None)

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Queue work for the writer's thread; see :meth:`write`. For callers that must not wait themselves."""
        return self._refuse(work) if self._writer is None else self._writer.submit(work)

    def gathering(self, work: Together[P, T]) -> "Callable[[P], asyncio.Future[T]]":
        """Queues one part of work at a time; parts that wait together are done together."""
        return self._refuse if self._writer is None else self._writer.gathering(work)

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do work in the writer's thread and return its result after the commit.

        All waiting work shares one transaction. If work raises, it alone is undone, and its exception raised here. It
        must not begin or end transactions, and must let SQLite's errors through, except those about its own values.
        A caller that is cancelled takes nothing back: the work is done, or was undone whole.
        """
        return await self.submit(work)

    async def give_room_back(self) -> None:
        """Let the file shrink by some of what nothing occupies any more; to be called again and again."""
        if await self.read(free_pages):
            await self.write(lambda connection: give_room_back(connection, _PAGES_AT_ONCE))

    async def close(self) -> None:
        """Finish queued writes, end all readers, release the file."""
        if self._writer is not None:
            self._writer.stop()
        self._readers.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._release)

    def _refuse(self, _part: object) -> NoReturn:
        raise StoreUnavailable(f"The database {self.path} is open for reading only.")

    def _release(self) -> None:
        self._readers.close()
        if self._writer is not None:
            self._writer.join()  # the last connection to be closed empties the log


_UNDO_IN_MEMORY: Final = "PRAGMA temp_store = MEMORY"
"""A savepoint keeps each page that is changed behind it: ids are random, so a record changes two or three. In temporary
files these copies took two fifths of the time of a bulk. Not for migrations, which may sort a whole table."""


def _prepare(connection: sqlite3.Connection, migrations: Migrations, path: Path, max_page_count: int | None) -> None:
    with translated(path):
        refuse_foreign(connection, migrations, path)
        if path.stat().st_size <= CHECKED_BYTES:
            refuse_damaged(connection, path)
            _let_it_shrink(connection)
        set_up_writer(connection, max_page_count)
        migrate(connection, migrations, path)
        connection.execute(_UNDO_IN_MEMORY)


def _let_it_shrink(connection: sqlite3.Connection) -> None:
    """Rewrite a file of a version that could not return free pages; a large file stays unchanged."""
    ((shrinks,), (pages,)) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("auto_vacuum", "page_count"))
    if pages and not shrinks:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("VACUUM")


def free_pages(connection: sqlite3.Connection) -> int:
    """Pages that hold nothing and can be given back to the file system."""
    (incremental,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(free) if incremental else 0


def give_room_back(connection: sqlite3.Connection, most: int) -> None:
    """Return a limited number of free pages to the file system."""
    for _ in range(min(free_pages(connection), most)):
        connection.execute("PRAGMA incremental_vacuum(1)")  # the sqlite3 module makes only one step of it


def refuse_damaged(connection: sqlite3.Connection, path: Path) -> None:
    """Return unless SQLite's quick check finds something wrong in the file.

    Raises:
        StoreDamaged: it does; the first finding is named.
    """
    (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        text = " ".join(finding.split())
        raise StoreDamaged(
            f"The database {path} is not available: it is damaged; see `auditord database check` ({text})."
        )


def findings(path: Path) -> list[str]:
    """The faults that SQLite's full check finds in a file, beside a process that may be writing it; at most 20.

    Raises:
        StoreUnavailable: the file cannot be opened.
        SchemaMismatch: it is no SQLite database.
    """
    try:
        with closing(open_for_reading(path)) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    except (StoreDamaged, sqlite3.DatabaseError) as error:  # the first where not even its schema can be read
        return [str(error.__cause__ or error)]
    return [] if found == ["ok"] else found
