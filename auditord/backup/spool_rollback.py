"""Setting a spool back to a backup, as far as a restored store needs it.

Collectors must read again everything they have read since the backup, so their checkpoints and remembered state are
the backup's. The store's copy lacks the entries that were queued then: they are queued again, ahead of all present
entries. Entries that were in quarantine then may have reached the lost store since, so they are in quarantine again.
"""

import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from auditord.database.connections import open_for_writing, translated

_MEMORY: Final = ("checkpoint", "seen", "pending")
"""Tables of what collectors know of their sources."""

_BEFORE: Final = """
(SELECT coalesce(min(entry_id), 1) FROM main.queue) - 1 - (SELECT max(entry_id) FROM backup.queue) + entry_id
"""
"""The place of an entry of the backup: in their order, before all that wait now."""


class SetBack(msgspec.Struct, frozen=True):
    """The entries that wait again, and those that are in quarantine again."""

    queued: int
    quarantined: int


def set_back(spool: Path, backup: Path, senders: Collection[str], *, plugins: bool = False) -> SetBack:
    """Set a spool back in one transaction; safe to repeat.

    Args:
        spool: the file, which no daemon uses.
        backup: a copy of the backup's, with the schema of this version.
        senders: those whose entries wait again.
        plugins: whether what plugins remember is the backup's, too.

    Raises:
        StoreUnavailable: a file cannot be used.
    """
    with closing(open_for_writing(spool)) as connection, translated(spool):
        connection.execute("ATTACH ? AS backup", (str(backup),))
        connection.execute("BEGIN IMMEDIATE")
        for table in (*_MEMORY, "plugin_state") if plugins else _MEMORY:
            connection.execute(f"DELETE FROM main.{table}")  # noqa: S608 our own names
            connection.execute(f"INSERT INTO main.{table} SELECT * FROM backup.{table}")  # noqa: S608 the same
        queued = sum(_queue_again(connection, sender) for sender in senders)
        quarantined = _quarantine_again(connection)
        connection.execute("DELETE FROM main.taken_over")  # numbers of the lost store's outbox, which come again
        connection.execute("COMMIT")
    return SetBack(queued, quarantined)


def forget_sources(spool: Path) -> None:
    """Let collectors know nothing of their sources, so that they read all of them again; safe to repeat.

    Raises:
        StoreUnavailable: it cannot be used.
    """
    with closing(open_for_writing(spool)) as connection, translated(spool):
        connection.execute("BEGIN IMMEDIATE")
        for table in (*_MEMORY, "taken_over"):
            connection.execute(f"DELETE FROM {table}")  # noqa: S608 our own names
        connection.execute("COMMIT")


def _queue_again(connection: sqlite3.Connection, sender: str) -> int:
    names = ", ".join(_columns(connection, "queue")[1:])
    copy = f"INSERT INTO main.queue (entry_id, {names}) SELECT {_BEFORE}, {names} FROM backup.queue WHERE sender = ?"  # noqa: S608 our own names
    return connection.execute(copy, (sender,)).rowcount


def _quarantine_again(connection: sqlite3.Connection) -> int:
    names = ", ".join(_columns(connection, "quarantine")[1:])
    copy = f"INSERT OR IGNORE INTO main.quarantine ({names}) SELECT {names} FROM backup.quarantine"  # noqa: S608 the same
    return connection.execute(f"{copy} ORDER BY quarantine_id").rowcount


def _columns(connection: sqlite3.Connection, table: str) -> Sequence[str]:
    """Return the columns of a table; the first one numbers its rows."""
    return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?) ORDER BY cid", (table,))]
