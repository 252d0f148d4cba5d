"""Pieces of work that touch several tables of the spool in one transaction."""

import sqlite3
from collections.abc import Sequence
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
    memory.carry(connection, task, prepared.pending)
    if prepared.checkpoint is not None:
        memory.save(connection, task, prepared.checkpoint, now)
    return queued


def release(
    connection: sqlite3.Connection, quarantine_id: int, rows: Sequence[Row], destinations: Sequence[str]
) -> None:
    """Queue what became of an entry of the quarantine, and forget the entry."""
    queue.put(connection, rows, destinations)
    quarantine.discard(connection, [quarantine_id])


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
