"""The quarantine's SQL: each function is one piece of work inside its caller's transaction."""

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from auditord.database.instants import from_micros, to_micros
from auditord.spool.encoding import SetAside, provenance_columns
from auditord.spool.values import QuarantineEntry, QuarantineReason, Stage
from auditord_hookspecs import Provenance

# One entry per job, the newest, and per record or entry with its content: two runs may claim one record id. It keeps
# its number, and counts how often it came.
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

_COLUMNS: Final = """
    SELECT quarantine_id, stage, task, source_id, raw, reason, quarantined_at, occurrences, operation, alternate_id,
           received_at, principal, agent, route, limits
    FROM quarantine
"""

_LIST: Final = f"{_COLUMNS} WHERE (?1 IS NULL OR task = ?1) AND quarantine_id > ?2 ORDER BY quarantine_id LIMIT ?3"
_SUMMARIES: Final = _LIST.replace(" raw,", " x'' AS raw,")
_GET: Final = f"{_COLUMNS} WHERE quarantine_id = ?"
_REASONS: Final = """
    SELECT stage, task, reason, count(*) AS entries
    FROM (SELECT stage, task, reason FROM quarantine ORDER BY quarantine_id DESC LIMIT ?1)
    GROUP BY stage, task, reason ORDER BY entries DESC, stage, task, reason LIMIT ?2
"""
_BODIES: Final = """
    SELECT count(*), coalesce(sum(size), 0) FROM quarantine INDEXED BY quarantine_bodies WHERE stage = 'body'
"""
_OLDEST_BODY: Final = """
    SELECT quarantine_id, size FROM quarantine INDEXED BY quarantine_bodies WHERE stage = 'body'
    ORDER BY quarantined_at, quarantine_id
"""
# One parameter for all ids: SQLite limits how many a statement may have.
_SETTLE_JOBS: Final = """
    DELETE FROM quarantine
    WHERE stage = 'job' AND task = ?1 AND variant = x'' AND source_id IN (SELECT value FROM json_each(?2))
"""
_HELD: Final = """
    SELECT DISTINCT source_id FROM quarantine
    WHERE stage IN ('job', 'record', 'entry') AND task IN (SELECT value FROM json_each(?1))
        AND source_id IN (SELECT value FROM json_each(?2))
"""
_COUNT: Final = "INSERT INTO counter VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"


def set_aside(connection: sqlite3.Connection, things: Iterable[SetAside], now: datetime) -> None:
    """Put things into quarantine."""
    connection.executemany(_SET_ASIDE, [_row(thing, to_micros(now)) for thing in things])


def _row(thing: SetAside, now: int) -> tuple[Any, ...]:  # Any: SQLite's column types
    given = thing.provenance
    origin = (None, None, None) if given is None else provenance_columns(given)
    stage = thing.stage.value
    key = (stage, thing.task, thing.source_id, _variant(thing))
    body = (thing.route, len(thing.raw), thing.limits)
    return (*key, thing.raw, thing.reason, now, thing.operation, thing.alternate_id, *origin, *body)


def _variant(thing: SetAside) -> bytes:
    if thing.stage not in {Stage.RECORD, Stage.ENTRY}:
        return b""  # a source's own id tells its jobs apart, and a body's id is its digest
    key = f"{thing.operation}\0{thing.alternate_id}\0".encode()
    return hashlib.blake2b(key + thing.raw, digest_size=16).digest()


def settle_jobs(connection: sqlite3.Connection, task: str, source_ids: Collection[str]) -> None:
    """Forget jobs of a collector that have made their records after all."""
    if source_ids:
        connection.execute(_SETTLE_JOBS, (task, json.dumps(list(source_ids))))


def held(connection: sqlite3.Connection, tasks: Collection[str], source_ids: Collection[str]) -> set[str]:
    """Those of the jobs and records that are in quarantine for one of the tasks."""
    return {one for (one,) in connection.execute(_HELD, (json.dumps(list(tasks)), json.dumps(list(source_ids))))}


def keep_body(connection: sqlite3.Connection, body: SetAside, now: datetime, max_count: int, max_bytes: int) -> None:
    """Keep a refused body; the oldest ones make room, counted."""
    set_aside(connection, [body], now)
    connection.execute(_COUNT, ("refused_bodies", 1))
    count, size = connection.execute(_BODIES).fetchone()
    dropped = _oldest_above(connection, count - max_count, size - max_bytes)
    connection.executemany("DELETE FROM quarantine WHERE quarantine_id = ?", [(one,) for one in dropped])
    if dropped:
        connection.execute(_COUNT, ("dropped_bodies", len(dropped)))


def _oldest_above(connection: sqlite3.Connection, count: int, size: int) -> list[int]:
    dropped = list[int]()
    for quarantine_id, length in connection.execute(_OLDEST_BODY):
        if len(dropped) >= count and size <= 0:
            break
        dropped.append(quarantine_id)
        size -= length
    return dropped


def listed(connection: sqlite3.Connection, task: str | None, after: int, limit: int) -> list[QuarantineEntry]:
    """Entries in the order of their numbers, of one task or of all."""
    return [_entry(row) for row in connection.execute(_LIST, (task, after, limit))]


def summaries(connection: sqlite3.Connection, task: str | None, after: int, limit: int) -> list[QuarantineEntry]:
    """The entries without their raw input, however much there is of it."""
    return [_entry(row) for row in connection.execute(_SUMMARIES, (task, after, limit))]


def reasons(connection: sqlite3.Connection, newest: int, limit: int) -> list[QuarantineReason]:
    """The most frequent reasons of the newest entries."""
    return [QuarantineReason(Stage(stage), *row) for stage, *row in connection.execute(_REASONS, (newest, limit))]


def get(connection: sqlite3.Connection, quarantine_id: int) -> QuarantineEntry | None:
    """One entry."""
    row = connection.execute(_GET, (quarantine_id,)).fetchone()
    return None if row is None else _entry(row)


def discard(connection: sqlite3.Connection, ids: Sequence[int]) -> int:
    """Forget entries; returns how many there were."""
    rows = [(one,) for one in ids]
    return connection.executemany("DELETE FROM quarantine WHERE quarantine_id = ?", rows).rowcount


def _entry(row: Sequence[Any]) -> QuarantineEntry:  # Any: SQLite's column types
    number, stage, task, source_id, raw, reason, at, occurrences, operation, alternate_id, *origin, route, limits = row
    received_at, principal, agent = origin
    provenance = None if received_at is None else Provenance(from_micros(received_at), principal, agent)
    seen = (from_micros(at), occurrences)
    return QuarantineEntry(
        number, Stage(stage), task, source_id, raw, reason, *seen, operation, alternate_id, provenance, route, limits
    )


def counts(connection: sqlite3.Connection) -> dict[tuple[str, str], int]:
    """Entries by stage and task."""
    rows = connection.execute("SELECT stage, task, count(*) FROM quarantine GROUP BY stage, task")
    return {(stage, task): count for stage, task, count in rows}


def counters(connection: sqlite3.Connection) -> dict[str, int]:
    """The counts that survive a restart, by name."""
    return dict(connection.execute("SELECT name, value FROM counter").fetchall())


def probe(connection: sqlite3.Connection) -> None:
    """Write something that changes nothing, so that a full or read-only disk shows."""
    connection.execute(_COUNT, ("probes", 1))
