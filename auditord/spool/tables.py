"""The spool's tables: send-queue, quarantine, and the state of instances between runs.

Each function runs its SQL within the transaction of its caller, :class:`auditord.spool.Spool`.
"""

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from auditord.database.instants import EPOCH, MICROSECOND, from_micros, to_micros
from auditord.errors import StoreUnavailable
from auditord.spool.encoding import (
    Generation,
    LastRun,
    Prepared,
    QuarantineEntry,
    Queued,
    QueueStatistics,
    Row,
    SetAside,
    SpoolStatistics,
    Stage,
    decode_entry,
    printable,
)
from auditord_hookspecs import InvalidRecord, Provenance, RunReport

# An insert with the same content as a queued one is not queued again. A replacement is: it may restore old content.
_PUT: Final = """
    INSERT INTO queue (sender, record_id, operation, body, alternate_id, limits, received_at, principal, agent, due_at)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0
    WHERE ?3 <> 'insert' OR NOT EXISTS (
        SELECT 1 FROM queue
        WHERE sender = ?1 AND record_id = ?2 AND operation = 'insert' AND body = ?4 AND alternate_id IS ?5
            AND limits IS ?6
    )
"""

# The oldest due entries. An entry never overtakes an earlier one of its record, under either id: which id a run gets
# depends on the stored state. (A due time beyond the longest wait comes from a wrong clock and is ignored.)
_CLAIM: Final = """
    SELECT entry_id, attempts, record_id, operation, body, alternate_id, received_at, principal, agent, limits
    FROM queue AS entry
    WHERE sender = ?1 AND (due_at <= ?2 OR due_at > ?4) AND NOT EXISTS (
        SELECT 1 FROM queue AS earlier
        WHERE earlier.sender = ?1 AND earlier.record_id IN (entry.record_id, entry.alternate_id)
            AND earlier.entry_id < entry.entry_id AND earlier.due_at > ?2 AND earlier.due_at <= ?4
    )
    ORDER BY entry_id
    LIMIT ?3
"""

# A sender asks for a single entry after failures. Next is one that has not failed, or else one that failed least often:
# otherwise a few entries that always fail would be due again before any other had its turn.
_CLAIM_ONE: Final = """
    SELECT entry_id, attempts, record_id, operation, body, alternate_id, received_at, principal, agent, limits
    FROM queue AS entry
    WHERE sender = ?1 AND (due_at <= ?2 OR due_at > ?4) AND attempts {attempts} AND NOT EXISTS (
        SELECT 1 FROM queue AS earlier
        WHERE earlier.sender = ?1 AND earlier.record_id IN (entry.record_id, entry.alternate_id)
            AND earlier.entry_id < entry.entry_id
    )
    ORDER BY {order}
    LIMIT ?3
"""
_CLAIM_NEW: Final = _CLAIM_ONE.format(attempts="= 0", order="entry_id")
_CLAIM_FAILED: Final = _CLAIM_ONE.format(attempts="> 0", order="attempts, entry_id")

_REFUSE: Final = """
    SELECT record_id, operation, body, alternate_id, received_at, principal, agent, limits
    FROM queue WHERE entry_id = ? AND sender = ?
"""

# Counted in an index, because the table is as large as the records in it.
_QUEUE_STATISTICS: Final = """
    SELECT depth.sender, depth.entries, oldest.received_at, oldest.attempts
    FROM (SELECT sender, count(*) AS entries, min(entry_id) AS oldest FROM queue GROUP BY sender) AS depth
    JOIN queue AS oldest ON oldest.entry_id = depth.oldest
"""


# One parameter for all ids, because SQLite limits their number.
_WAITING: Final = """
    SELECT record_id, operation, body, alternate_id, received_at, principal, agent, limits
    FROM queue WHERE sender = ? AND record_id IN (SELECT value FROM json_each(?)) ORDER BY entry_id
"""
_OCCUPIED: Final = "SELECT 1 FROM queue WHERE sender = ? LIMIT 1"

LONGEST_WAIT: Final = timedelta(hours=1)
"""Longest wait of an entry for its next attempt."""


def put(connection: sqlite3.Connection, rows: Sequence[Row], destinations: Sequence[str]) -> int:
    """Queue rows for every destination; return the number of rows that are new to at least one.

    Raises:
        StoreUnavailable: there are rows but no destination, so they would be lost.
    """
    if rows and not destinations:
        raise StoreUnavailable("no sender is enabled, so records cannot be kept: configure one under senders")
    count = 0
    for row in rows:
        new = 0
        for sender in destinations:
            values = (sender, row.record_id, row.operation, row.body, row.alternate_id, row.limits)
            new += connection.execute(_PUT, (*values, *_provenance_columns(row.provenance))).rowcount
        count += new > 0
    return count


def _provenance_columns(provenance: Provenance) -> tuple[int, str | None, str | None]:
    """Return the columns of a provenance: time of receipt, principal and agent."""
    agent = None if provenance.agent is None else printable(provenance.agent)
    return (provenance.received_at - EPOCH) // MICROSECOND, provenance.principal, agent


def claim(
    connection: sqlite3.Connection, sender: str, limit: int, now: datetime
) -> tuple[Sequence[Queued], Mapping[int, str]]:
    """Return the entries to send next, in order, and the reasons for unreadable ones by number.

    All of them stay in the queue until they are settled.
    """
    due = (now - EPOCH) // MICROSECOND
    arguments = (sender, due, limit, due + LONGEST_WAIT // MICROSECOND)
    entries, unreadable = list[Queued](), dict[int, str]()
    for statement in (_CLAIM_NEW, _CLAIM_FAILED) if limit == 1 else (_CLAIM,):
        for entry_id, attempts, *columns in connection.execute(statement, arguments):
            try:
                entries.append(Queued(entry_id, decode_entry(_row(columns)), attempts))
            except InvalidRecord as error:
                unreadable[entry_id] = f"this version of auditord cannot read it: {error}"
        if entries or unreadable:
            break
    return entries, unreadable


def _row(columns: Sequence[Any]) -> Row:  # Any: SQLite's column types
    record_id, operation, body, alternate_id, received_at, principal, agent, limits = columns
    provenance = Provenance(EPOCH + received_at * MICROSECOND, principal, agent)
    return Row(record_id, operation, body, alternate_id, provenance, limits)


def settle(
    connection: sqlite3.Connection, sender: str, outcomes: Mapping[int, str | None], now: datetime, number: int
) -> bool:
    """Delete delivered entries and quarantine refused ones; return whether the queue still has entries.

    Args:
        connection: of the spool.
        sender: the sender.
        outcomes: for each entry, the reason why it was refused; None if it was delivered.
        now: the current time.
        number: the generation of the record store, which has the delivered entries.
    """
    set_generation(connection, number)
    items = list[SetAside]()
    for entry_id, reason in outcomes.items():
        if reason is None:
            continue
        found = connection.execute(_REFUSE, (entry_id, sender)).fetchone()
        if found is None:
            raise LookupError(f"the queue of {sender} holds no entry {entry_id}")
        row = _row(found)
        what = (row.operation, row.alternate_id, row.provenance)
        items.append(SetAside(Stage.ENTRY, sender, row.record_id, row.body, reason, *what, limits=row.limits))
    set_aside(connection, items, now)
    settled = [(entry_id, sender) for entry_id in outcomes]
    connection.executemany("DELETE FROM queue WHERE entry_id = ? AND sender = ?", settled)
    return connection.execute(_OCCUPIED, (sender,)).fetchone() is not None


def generation(connection: sqlite3.Connection) -> Generation:
    """Return the generation of spool and record store."""
    return Generation(*connection.execute("SELECT spool_id, number FROM generation").fetchone())


def set_generation(connection: sqlite3.Connection, number: int) -> None:
    """Store the generation of spool and record store."""
    connection.execute("UPDATE generation SET number = ?1 WHERE number <> ?1", (number,))


def waiting(connection: sqlite3.Connection, record_ids: Collection[str], senders: Sequence[str]) -> list[Row]:
    """Return the queued rows of records, sender by sender in order."""
    wanted = json.dumps(list(record_ids))
    return [_row(columns) for sender in senders for columns in connection.execute(_WAITING, (sender, wanted))]


def senders(connection: sqlite3.Connection) -> list[str]:
    """Return the senders whose queues have entries."""
    return [sender for (sender,) in connection.execute("SELECT DISTINCT sender FROM queue")]


# One entry per job, and one per record or queue entry and its content, because two runs may have the same record id.
# A repeated failure updates the entry, keeps its number and counts the occurrences.
_SET_ASIDE: Final = """
    INSERT INTO quarantine (stage, task, source_id, variant, raw, reason, quarantined_at, operation, alternate_id,
                            received_at, principal, agent, route, size, limits)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (stage, task, source_id, variant) DO UPDATE SET
        raw = excluded.raw, reason = excluded.reason, quarantined_at = excluded.quarantined_at,
        operation = excluded.operation, alternate_id = excluded.alternate_id, received_at = excluded.received_at,
        principal = excluded.principal, agent = excluded.agent, route = excluded.route,
        size = excluded.size, limits = excluded.limits, occurrences = occurrences + 1
"""


_BODIES: Final = """
    SELECT count(*), coalesce(sum(size), 0) FROM quarantine INDEXED BY quarantine_bodies WHERE stage = 'body'
"""
_LONGEST_REASON: Final = 4_000
"""Characters. A reason repeats texts of the source, which the raw input has already."""

_OLDEST_BODY: Final = """
    SELECT quarantine_id, size FROM quarantine INDEXED BY quarantine_bodies WHERE stage = 'body'
    ORDER BY quarantined_at, quarantine_id
"""
# One parameter for all ids, because SQLite limits their number.
_SETTLE_JOBS: Final = """
    DELETE FROM quarantine
    WHERE stage = 'job' AND task = ?1 AND variant = x'' AND source_id IN (SELECT value FROM json_each(?2))
"""
COUNT: Final = "INSERT INTO counter VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"


def set_aside(connection: sqlite3.Connection, things: Iterable[SetAside], now: datetime) -> None:
    """Add or update entries of the quarantine."""
    for item in things:
        reason = item.reason if len(item.reason) <= _LONGEST_REASON else f"{item.reason[:_LONGEST_REASON]}…"
        origin = (None, None, None) if item.provenance is None else _provenance_columns(item.provenance)
        variant = b""  # job ids are unique at their source, and a body's id is its digest
        if item.stage in {Stage.RECORD, Stage.ENTRY}:
            prefix = f"{item.operation}\0{item.alternate_id}\0".encode()
            variant = hashlib.blake2b(prefix + item.raw, digest_size=16).digest()
        key = (item.stage.value, item.task, item.source_id, variant)
        content = (item.raw, reason, to_micros(now), item.operation, item.alternate_id)
        connection.execute(_SET_ASIDE, (*key, *content, *origin, item.route, len(item.raw), item.limits))


def keep_body(connection: sqlite3.Connection, body: SetAside, now: datetime, max_count: int, max_bytes: int) -> None:
    """Store a refused body. Beyond the limits the oldest bodies are deleted and counted."""
    set_aside(connection, [body], now)
    connection.execute(COUNT, ("refused_bodies", 1))
    count, size = connection.execute(_BODIES).fetchone()
    dropped = list[int]()
    for quarantine_id, length in connection.execute(_OLDEST_BODY):
        if len(dropped) >= count - max_count and size <= max_bytes:
            break
        dropped.append(quarantine_id)
        size -= length
    connection.executemany("DELETE FROM quarantine WHERE quarantine_id = ?", [(number,) for number in dropped])
    if dropped:
        connection.execute(COUNT, ("dropped_bodies", len(dropped)))


def discard(connection: sqlite3.Connection, ids: Sequence[int]) -> int:
    """Delete entries and return the number deleted."""
    rows = [(quarantine_id,) for quarantine_id in ids]
    return connection.executemany("DELETE FROM quarantine WHERE quarantine_id = ?", rows).rowcount


def quarantine_entry(row: Sequence[Any]) -> QuarantineEntry:  # Any: SQLite's column types
    """Convert a row of the quarantine to an entry."""
    number, stage, task, source_id, raw, reason, at, occurrences, operation, alternate_id, *origin, route, limits = row
    received_at, principal, agent = origin
    provenance = None if received_at is None else Provenance(from_micros(received_at), principal, agent)
    what = (Stage(stage), task, source_id, raw, reason, operation, alternate_id, provenance, route, limits)
    return QuarantineEntry(*what, quarantine_id=number, quarantined_at=from_micros(at), occurrences=occurrences)


_SAVE: Final = "INSERT OR REPLACE INTO checkpoint (task, value, saved_at) VALUES (?, ?, ?)"

_REMEMBER: Final = """
    INSERT INTO seen VALUES (?, ?, ?)
    ON CONFLICT (task, key) DO UPDATE SET expires_at = max(expires_at, excluded.expires_at)
"""

RUNS_KEPT: Final = 20
"""Number of runs kept for each instance."""

_RUN: Final = """
    INSERT INTO run (task, started_at, duration, error, records, quarantined, skipped) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_FORGET_RUNS: Final = """
    DELETE FROM run WHERE task = ?1
        AND number <= (SELECT number FROM run WHERE task = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)
"""
_INSTANCE: Final = """
    INSERT INTO instance VALUES (?1, ?2, iif(?3 IS NULL AND NOT ?5, ?4, NULL), ?3 IS NOT NULL, NULL)
    ON CONFLICT (task) DO UPDATE SET
        kind = ?2,
        last_success_at = coalesce(excluded.last_success_at, last_success_at),
        failures = iif(?5, failures, iif(?3 IS NULL, 0, failures + 1))
"""
_ENABLE: Final = """
    INSERT INTO instance VALUES (?1, ?2, NULL, 0, ?3)
    ON CONFLICT (task) DO UPDATE SET enabled_at = coalesce(enabled_at, excluded.enabled_at)
"""
_DISABLE: Final = """
    UPDATE instance SET enabled_at = NULL WHERE task NOT IN (SELECT value FROM json_each(?))
"""
_RUNS: Final = """
    SELECT task, kind, started_at, duration, error, records, quarantined, skipped, last_success_at, failures
    FROM run JOIN instance USING (task) ORDER BY task, number DESC
"""


def record_run(connection: sqlite3.Connection, report: RunReport) -> None:
    """Store the report of a run, and delete the instance's oldest reports beyond :data:`RUNS_KEPT`."""
    started, duration = (report.started - EPOCH) // MICROSECOND, report.duration // MICROSECOND
    counts = (report.records, report.quarantined, json.dumps(report.skipped).encode())
    connection.execute(_RUN, (report.task, started, duration, report.error, *counts))
    connection.execute(_FORGET_RUNS, (report.task, RUNS_KEPT))
    connection.execute(_INSTANCE, (report.task, report.kind, report.error, started + duration, report.waits))


def note_enabled(connection: sqlite3.Connection, kinds: Mapping[str, str], now: datetime) -> dict[str, datetime]:
    """Note which plugins are enabled, by name and kind; return since when each has been without interruption."""
    connection.execute(_DISABLE, (json.dumps(list(kinds)),))
    connection.executemany(_ENABLE, [(task, kind, to_micros(now)) for task, kind in kinds.items()])
    return list_enabled(connection)


def list_enabled(connection: sqlite3.Connection) -> dict[str, datetime]:
    """Return since when each enabled plugin has been enabled without interruption."""
    rows = connection.execute("SELECT task, enabled_at FROM instance WHERE enabled_at IS NOT NULL")
    return {task: from_micros(enabled_at) for task, enabled_at in rows}


def last_runs(connection: sqlite3.Connection) -> dict[str, list[LastRun]]:
    """Return the last runs of every instance, the newest first."""
    found: dict[str, list[LastRun]] = {}
    for row in connection.execute(_RUNS):
        task, kind, started, duration, error, records, quarantined, skipped, success, failures = row
        when = (from_micros(started), timedelta(microseconds=duration))
        last_success = None if success is None else from_micros(success)
        counts = (records, quarantined, json.loads(skipped))
        run = LastRun(task, kind, *when, error, *counts, last_success=last_success, failures=failures)
        found.setdefault(task, []).append(run)
    return found


# -- several tables --------------------------------------------------------------------------------------------------


def keep(
    connection: sqlite3.Connection, task: str, prepared: Prepared, destinations: Sequence[str], now: datetime
) -> int:
    """Store a collector's batch; return the number of its records that are new to the queue."""
    queued = put(connection, prepared.rows, destinations)
    if prepared.settled:  # jobs in quarantine that have been converted since
        connection.execute(_SETTLE_JOBS, (task, json.dumps(list(prepared.settled))))
    set_aside(connection, prepared.set_aside, now)
    deleted = [(task, key) for key, value in prepared.pending.items() if value is None]
    connection.executemany("DELETE FROM pending WHERE task = ? AND key = ?", deleted)
    kept = [(task, key, value) for key, value in prepared.pending.items() if value is not None]
    connection.executemany("INSERT OR REPLACE INTO pending VALUES (?, ?, ?)", kept)
    seen = [(task, key, (expires - EPOCH) // MICROSECOND) for key, expires in prepared.seen.items()]
    connection.executemany(_REMEMBER, seen)
    saved_at = (now - EPOCH) // MICROSECOND
    connection.execute("DELETE FROM seen WHERE expires_at <= ?", (saved_at,))
    if prepared.checkpoint is not None:
        connection.execute(_SAVE, (task, prepared.checkpoint, saved_at))
    return queued


def release(
    connection: sqlite3.Connection, quarantine_id: int, rows: Sequence[Row], destinations: Sequence[str]
) -> None:
    """Queue the rows that a retry made of a quarantine entry, and delete the entry."""
    put(connection, rows, destinations)
    discard(connection, [quarantine_id])


def take_over(connection: sqlite3.Connection, rows: Sequence[tuple[int, Row]], destinations: Sequence[str]) -> None:
    """Queue numbered rows of the store's outbox that were not queued before.

    The outbox is in another database, so the number of a row is remembered until :func:`forget_taken`.
    """
    mark = "INSERT OR IGNORE INTO taken_over VALUES (?, ?)"
    fresh = [row for number, row in rows if connection.execute(mark, (number, row.record_id)).rowcount > 0]
    put(connection, fresh, destinations)


def statistics(connection: sqlite3.Connection) -> SpoolStatistics:
    """Count the spool's contents."""
    counters: dict[str, int] = dict(connection.execute("SELECT name, value FROM counter").fetchall())
    quarantined = connection.execute("SELECT stage, task, count(*) FROM quarantine GROUP BY stage, task")
    saved = connection.execute("SELECT task, saved_at FROM checkpoint")
    return SpoolStatistics(
        queues={
            sender: QueueStatistics(count, from_micros(oldest), attempts)
            for sender, count, oldest, attempts in connection.execute(_QUEUE_STATISTICS)
        },
        quarantined={(stage, task): count for stage, task, count in quarantined},
        checkpoints={task: from_micros(saved_at) for task, saved_at in saved},
        refused_bodies=counters.get("refused_bodies", 0),
        dropped_bodies=counters.get("dropped_bodies", 0),
    )
