"""Roll back a spool to a backup, as far as a restored store needs it.

Collectors must read again everything that they have read since the backup, so their checkpoints and memory are the
backup's. The restored store lacks the entries that were queued at that time, so they are queued again, ahead of all
present entries. Entries quarantined at that time may have reached the lost store later, so they are quarantined again.
"""

import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from auditord.database.connections import open_for_writing, translate_errors

_MEMORY: Final = ("checkpoint", "prefix", "seen", "pending")
"""Tables with the collectors' state."""

_BEFORE: Final = """
(SELECT coalesce(min(entry_id), 1) FROM main.queue) - 1 - (SELECT max(entry_id) FROM backup.queue) + entry_id
"""
"""New id of a queued entry of the backup, which keeps their order and precedes all present entries."""


class SetBack(msgspec.Struct, frozen=True):
    """Number of entries that were queued or quarantined again."""

    queued: int
    quarantined: int


def set_back(spool: Path, backup: Path | None, senders: Collection[str] = (), *, plugins: bool = False) -> SetBack:
    """Roll back a spool in one transaction. Safe to repeat.

    Without a backup, collectors read their sources from the beginning, and nothing is queued again.

    Args:
        spool: the file, which no daemon may be using.
        backup: a copy of the backup's spool, with the schema of this version; None to start over.
        senders: the senders whose entries are queued again.
        plugins: whether the state of plugins is taken from the backup as well.

    Raises:
        StoreUnavailable: a file cannot be used.
    """
    with closing(open_for_writing(spool)) as connection, translate_errors(spool):
        if backup is not None:
            connection.execute("ATTACH ? AS backup", (str(backup),))
        connection.execute("BEGIN IMMEDIATE")
        for table in (*_MEMORY, "plugin_state") if plugins else _MEMORY:
            connection.execute(f"DELETE FROM main.{table}")  # noqa: S608 our own names
            if backup is not None:
                connection.execute(f"INSERT INTO main.{table} SELECT * FROM backup.{table}")  # noqa: S608 the same
        queued = quarantined = 0
        names = ", ".join(_columns(connection, "queue")[1:])
        copy = (
            f"INSERT INTO main.queue (entry_id, {names}) SELECT {_BEFORE}, {names} FROM backup.queue WHERE sender = ?"  # noqa: S608 the same
        )
        for sender in senders:
            queued += connection.execute(copy, (sender,)).rowcount
        if backup is not None:
            names = ", ".join(_columns(connection, "quarantine")[1:])
            copy = f"INSERT OR IGNORE INTO main.quarantine ({names}) SELECT {names} FROM backup.quarantine"  # noqa: S608 the same
            quarantined = connection.execute(f"{copy} ORDER BY quarantine_id").rowcount
        connection.execute("DELETE FROM main.taken_over")  # numbers of the lost store's outbox, which will be reused
        connection.execute("COMMIT")
    return SetBack(queued, quarantined)


def _columns(connection: sqlite3.Connection, table: str) -> Sequence[str]:
    """Return the columns of a table, the row number first."""
    return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?) ORDER BY cid", (table,))]
