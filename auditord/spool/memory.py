"""The memory of instances between runs, and work on several tables; all inside the caller's transaction."""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final

from auditord.database.instants import from_micros, to_micros
from auditord.spool import quarantine, queue
from auditord.spool.encoding import Prepared, Row
from auditord.spool.values import LastRun, SpoolStatistics
from auditord_hookspecs import RunReport

_SAVE: Final = "INSERT OR REPLACE INTO checkpoint (task, value, saved_at) VALUES (?, ?, ?)"
_LOAD: Final = "SELECT value FROM checkpoint WHERE task = ?"

_REMEMBER: Final = """
    INSERT INTO seen VALUES (?, ?, ?)
    ON CONFLICT (task, key) DO UPDATE SET expires_at = max(expires_at, excluded.expires_at)
"""
# One parameter for all keys: SQLite limits how many a statement may have.
_SEEN: Final = """
    SELECT key FROM seen WHERE task = ? AND expires_at > ? AND key IN (SELECT value FROM json_each(?))
"""

RUNS_KEPT: Final = 20
"""Of each instance."""

_RUN: Final = """
    INSERT INTO run (task, started_at, duration, error, records, quarantined, skipped) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_FORGET: Final = """
    DELETE FROM run WHERE task = ?1
        AND number <= (SELECT number FROM run WHERE task = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)
"""
_INSTANCE: Final = """
    INSERT INTO instance VALUES (?1, ?2, iif(?3 IS NULL, ?4, NULL), ?3 IS NOT NULL)
    ON CONFLICT (task) DO UPDATE SET
        kind = ?2,
        last_success_at = coalesce(excluded.last_success_at, last_success_at),
        failures = iif(?3 IS NULL, 0, failures + 1)
"""
_RUNS: Final = """
    SELECT task, kind, started_at, duration, error, records, quarantined, skipped, last_success_at, failures
    FROM run JOIN instance USING (task) ORDER BY task, number DESC
"""


def save(connection: sqlite3.Connection, task: str, value: bytes, now: datetime) -> None:
    """Keep a checkpoint."""
    connection.execute(_SAVE, (task, value, to_micros(now)))


def load(connection: sqlite3.Connection, task: str) -> Any:  # Any: the JSON that the collector stored
    """The checkpoint that :func:`save` kept, or None."""
    row = connection.execute(_LOAD, (task,)).fetchone()
    return None if row is None else json.loads(row[0])


def remember(connection: sqlite3.Connection, task: str, keys: Mapping[str, datetime], now: datetime) -> None:
    """Remember keys, each until its instant; forget all whose time is over."""
    rows = [(task, key, to_micros(expires)) for key, expires in keys.items()]
    connection.executemany(_REMEMBER, rows)
    connection.execute("DELETE FROM seen WHERE expires_at <= ?", (to_micros(now),))


def seen(connection: sqlite3.Connection, task: str, keys: Iterable[str], now: datetime) -> frozenset[str]:
    """The keys among these that are remembered."""
    rows = connection.execute(_SEEN, (task, to_micros(now), json.dumps(list(keys))))
    return frozenset(key for (key,) in rows)


def keep_pending(connection: sqlite3.Connection, task: str, values: Mapping[str, bytes | None]) -> None:
    """Set or (None) forget values that a collector keeps between runs."""
    gone = [(task, key) for key, value in values.items() if value is None]
    connection.executemany("DELETE FROM pending WHERE task = ? AND key = ?", gone)
    kept = [(task, key, value) for key, value in values.items() if value is not None]
    connection.executemany("INSERT OR REPLACE INTO pending VALUES (?, ?, ?)", kept)


def pending(connection: sqlite3.Connection, task: str) -> dict[str, Any]:  # Any: the JSON that the collector stored
    """The values that a collector keeps, by key."""
    rows = connection.execute("SELECT key, value FROM pending WHERE task = ?", (task,))
    return {key: json.loads(value) for key, value in rows}


def record_run(connection: sqlite3.Connection, report: RunReport) -> None:
    """Keep how a run ended, and forget the oldest of its instance."""
    ended, duration = report.started + report.duration, report.duration // timedelta(microseconds=1)
    counts = (report.records, report.quarantined, json.dumps(report.skipped).encode())
    connection.execute(_RUN, (report.task, to_micros(report.started), duration, report.error, *counts))
    connection.execute(_FORGET, (report.task, RUNS_KEPT))
    connection.execute(_INSTANCE, (report.task, report.kind, report.error, to_micros(ended)))


def last_runs(connection: sqlite3.Connection) -> dict[str, list[LastRun]]:
    """The last runs of every instance, the newest first."""
    found = map(_run, connection.execute(_RUNS))
    return {task: list(runs) for task, runs in groupby(found, lambda run: run.task)}


def _run(row: Sequence[Any]) -> LastRun:  # Any: SQLite's column types
    task, kind, started, duration, error, records, quarantined, skipped, success, failures = row
    when = (from_micros(started), timedelta(microseconds=duration))
    last_success = None if success is None else from_micros(success)
    return LastRun(task, kind, *when, error, records, quarantined, json.loads(skipped), last_success, failures)


def checkpoints_saved(connection: sqlite3.Connection) -> dict[str, datetime]:
    """The time at which each collector's checkpoint was saved last."""
    rows = connection.execute("SELECT task, saved_at FROM checkpoint")
    return {task: from_micros(saved_at) for task, saved_at in rows}


# -- several tables --------------------------------------------------------------------------------------------------


def keep(
    connection: sqlite3.Connection, task: str, prepared: Prepared, destinations: Sequence[str], now: datetime
) -> int:
    """Keep a collector's batch; returns how many of its records are new to the queue."""
    queued = queue.put(connection, prepared.rows, destinations)
    quarantine.settle_jobs(connection, task, prepared.settled)
    quarantine.set_aside(connection, prepared.set_aside, now)
    remember(connection, task, prepared.seen, now)
    keep_pending(connection, task, prepared.pending)
    if prepared.checkpoint is not None:
        save(connection, task, prepared.checkpoint, now)
    return queued


def release(
    connection: sqlite3.Connection, quarantine_id: int, rows: Sequence[Row], destinations: Sequence[str]
) -> None:
    """Queue what became of an entry of the quarantine, and forget the entry."""
    queue.put(connection, rows, destinations)
    quarantine.discard(connection, [quarantine_id])


def take_over(connection: sqlite3.Connection, rows: Sequence[tuple[int, Row]], destinations: Sequence[str]) -> None:
    """Queue the rows of the store's outbox, with their numbers there, that have not been queued yet.

    The outbox is in another database: a number that was taken over is kept until :func:`forget_taken`.
    """
    mark = "INSERT OR IGNORE INTO taken_over VALUES (?, ?)"
    fresh = [row for number, row in rows if connection.execute(mark, (number, row.record_id)).rowcount > 0]
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
        checkpoints=checkpoints_saved(connection),
        refused_bodies=counters.get("refused_bodies", 0),
        dropped_bodies=counters.get("dropped_bodies", 0),
    )
