"""Pieces of work that touch several tables of the spool in one transaction."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from auditord.spool import memory, quarantine, queue
from auditord.spool.encoding import Prepared, Row
from auditord.spool.values import SpoolStatistics


def keep(
    connection: sqlite3.Connection, task: str, prepared: Prepared, destinations: Sequence[str], now: datetime
) -> int:
    """Keep a collector's batch; returns how many of its records are new to the queue."""
    queued = queue.put(connection, prepared.rows, destinations)
    quarantine.settle_jobs(connection, task, prepared.settled)
    quarantine.set_aside(connection, prepared.set_aside, now)
    memory.remember(connection, task, prepared.seen, now)
    memory.keep_pending(connection, task, prepared.pending)
    if prepared.checkpoint is not None:
        memory.save(connection, task, prepared.checkpoint, now)
    return queued


def release(
    connection: sqlite3.Connection, quarantine_id: int, rows: Sequence[Row], destinations: Sequence[str]
) -> None:
    """Queue what became of an entry of the quarantine, and forget the entry."""
    queue.put(connection, rows, destinations)
    quarantine.discard(connection, [quarantine_id])


def take_over(connection: sqlite3.Connection, rows: Mapping[int, Row], destinations: Sequence[str]) -> None:
    """Queue the rows of the store's outbox, by their numbers there, that have not been queued yet.

    The outbox is in another database: a number that was taken over is kept until :func:`forget_taken`.
    """
    mark = "INSERT OR IGNORE INTO taken_over VALUES (?, ?)"
    fresh = [row for number, row in rows.items() if connection.execute(mark, (number, row.record_id)).rowcount > 0]
    queue.put(connection, fresh, destinations)


def forget_taken(connection: sqlite3.Connection, numbers: Collection[int]) -> None:
    """Forget numbers that are not in the outbox any more."""
    connection.executemany("DELETE FROM taken_over WHERE number = ?", [(number,) for number in numbers])


def statistics(connection: sqlite3.Connection) -> SpoolStatistics:
    """Count what the spool holds."""
    counters = quarantine.counters(connection)
    return SpoolStatistics(
        queues=queue.statistics(connection),
        quarantined=quarantine.counts(connection),
        checkpoints=memory.checkpoints_saved(connection),
        refused_bodies=counters.get("refused_bodies", 0),
        dropped_bodies=counters.get("dropped_bodies", 0),
    )
