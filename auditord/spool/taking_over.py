"""Queueing what is in the record store's outbox, each entry once, though the two are different databases."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence

from auditord.spool import queue
from auditord.spool.encoding import Row


def take_over(connection: sqlite3.Connection, rows: Mapping[int, Row], destinations: Sequence[str]) -> None:
    """Queue the rows, by their numbers in the outbox, that have not been queued yet."""
    fresh = [row for number, row in rows.items() if _mark(connection, number, row)]
    queue.put(connection, fresh, destinations)


def _mark(connection: sqlite3.Connection, number: int, row: Row) -> bool:
    values = (number, row.record_id)
    return connection.execute("INSERT OR IGNORE INTO taken_over VALUES (?, ?)", values).rowcount > 0


def forget_taken(connection: sqlite3.Connection, numbers: Collection[int]) -> None:
    """Forget numbers that are not in the outbox any more."""
    connection.executemany("DELETE FROM taken_over WHERE number = ?", [(number,) for number in numbers])
