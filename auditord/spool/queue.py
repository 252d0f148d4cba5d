"""The send-queue's SQL: each function is one piece of work inside somebody's transaction."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from auditord.errors import StoreUnavailable
from auditord.spool.encoding import Row, SetAside, provenance_columns
from auditord.spool.quarantine import set_aside
from auditord.spool.values import QueueFigures, Stage, from_micros, to_micros
from auditord_hookspecs import Provenance

# A record that waits with equal content is not queued twice. Only for inserts: a replacement may well go back.
_PUT: Final = """
    INSERT INTO queue (sender, record_id, operation, body, alternate_id, received_at, principal, agent, due_at)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0
    WHERE ?3 <> 'insert' OR NOT EXISTS (
        SELECT 1 FROM queue
        WHERE sender = ?1 AND record_id = ?2 AND operation = 'insert' AND body = ?4 AND alternate_id IS ?5
    )
"""

# The oldest entries whose time has come; none overtakes an earlier one of its record, under either id: which id a run
# gets depends on what is stored. (A time further away than any wait comes from a clock that was wrong: it does not
# count.)
_CLAIM: Final = """
    SELECT entry_id, record_id, operation, body, alternate_id, received_at, principal, agent, attempts
    FROM queue AS entry
    WHERE sender = ?1 AND (due_at <= ?2 OR due_at > ?4) AND NOT EXISTS (
        SELECT 1 FROM queue AS earlier
        WHERE earlier.sender = ?1 AND earlier.record_id IN (entry.record_id, entry.alternate_id)
            AND earlier.entry_id < entry.entry_id AND earlier.due_at > ?2 AND earlier.due_at <= ?4
    )
    ORDER BY entry_id
    LIMIT ?3
"""

_REFUSE: Final = """
    SELECT record_id, operation, body, alternate_id, received_at, principal, agent
    FROM queue WHERE entry_id = ? AND sender = ?
"""

# Counted in an index, since the table itself is as large as the records in it.
_FIGURES: Final = """
    SELECT depth.sender, depth.entries, oldest.received_at, oldest.attempts
    FROM (SELECT sender, count(*) AS entries, min(entry_id) AS oldest FROM queue GROUP BY sender) AS depth
    JOIN queue AS oldest ON oldest.entry_id = depth.oldest
"""

# An entry that has not been tried yet is due at once and has no part in this, nor has one that waits behind another.
_NEXT_DUE: Final = """
    SELECT min(due_at) FROM queue AS entry
    WHERE sender = ?1 AND attempts > 0 AND NOT EXISTS (
        SELECT 1 FROM queue AS earlier
        WHERE earlier.sender = ?1 AND earlier.record_id IN (entry.record_id, entry.alternate_id)
            AND earlier.entry_id < entry.entry_id
    )
"""

_HOLDS: Final = "SELECT 1 FROM queue WHERE sender = ? AND record_id = ? LIMIT 1"

LONGEST_WAIT: Final = timedelta(hours=1)
"""No entry waits longer for its next attempt."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A row of the queue, not read yet."""

    entry_id: int
    record_id: str
    operation: str
    body: bytes
    alternate_id: str | None
    provenance: Provenance
    attempts: int


def put(connection: sqlite3.Connection, rows: Sequence[Row], destinations: Sequence[str]) -> int:
    """Queue rows for every destination; returns how many rows are new to at least one.

    Raises:
        StoreUnavailable: there are rows and no destination: they would vanish.
    """
    if rows and not destinations:
        raise StoreUnavailable("no sender is enabled, so records cannot be kept: configure one under senders")
    return sum(_put_one(connection, row, destinations) for row in rows)


def _put_one(connection: sqlite3.Connection, row: Row, destinations: Sequence[str]) -> bool:
    new = 0
    for sender in destinations:
        values = (sender, row.record_id, row.operation, row.body, row.alternate_id)
        new += connection.execute(_PUT, (*values, *provenance_columns(row.provenance))).rowcount
    return new > 0


def claim(connection: sqlite3.Connection, sender: str, limit: int, now: datetime) -> list[Claimed]:
    """The rows to send next, in order; they stay until they are settled."""
    rows = connection.execute(_CLAIM, (sender, to_micros(now), limit, to_micros(now + LONGEST_WAIT)))
    return [
        Claimed(number, record, operation, body, alternate, Provenance(from_micros(received), who, agent), attempts)
        for number, record, operation, body, alternate, received, who, agent, attempts in rows
    ]


def settle(
    connection: sqlite3.Connection, sender: str, delivered: Iterable[int], refused: Mapping[int, str], now: datetime
) -> None:
    """Forget what was delivered, put into quarantine what was refused for good."""
    set_aside(connection, [_refused(connection, sender, entry, reason) for entry, reason in refused.items()], now)
    gone = [(entry_id, sender) for entry_id in (*delivered, *refused)]
    connection.executemany("DELETE FROM queue WHERE entry_id = ? AND sender = ?", gone)


def _refused(connection: sqlite3.Connection, sender: str, entry_id: int, reason: str) -> SetAside:
    found = connection.execute(_REFUSE, (entry_id, sender)).fetchone()
    if found is None:
        raise LookupError(f"the queue of {sender} holds no entry {entry_id}")
    record_id, operation, body, alternate_id, received_at, principal, agent = found
    provenance = Provenance(from_micros(received_at), principal, agent)
    return SetAside(Stage.ENTRY, sender, record_id, body, reason, operation, alternate_id, provenance)


def postpone(connection: sqlite3.Connection, until: Mapping[int, datetime]) -> None:
    """Count a failed attempt of each entry and set when it is to be tried again."""
    connection.executemany(
        "UPDATE queue SET attempts = attempts + 1, due_at = ? WHERE entry_id = ?",
        [(to_micros(due), entry_id) for entry_id, due in until.items()],
    )


def hurry(connection: sqlite3.Connection, sender: str) -> None:
    """Let everything that waits for another attempt be due."""
    connection.execute("UPDATE queue SET due_at = 0 WHERE sender = ? AND attempts > 0", (sender,))


def holds(connection: sqlite3.Connection, record_id: str, senders: Iterable[str]) -> bool:
    """Whether anything of a record waits for one of the senders."""
    wanted = [(sender, record_id) for sender in senders]
    return any(connection.execute(_HOLDS, names).fetchone() for names in wanted)


def next_due(connection: sqlite3.Connection, sender: str) -> datetime | None:
    """When the first entry that has failed may be tried again; None if there is none."""
    (due,) = connection.execute(_NEXT_DUE, (sender,)).fetchone()
    return None if due is None else from_micros(due)


def figures(connection: sqlite3.Connection) -> dict[str, QueueFigures]:
    """Depth and age of every queue that is not empty."""
    rows = connection.execute(_FIGURES)
    return {sender: QueueFigures(count, from_micros(oldest), attempts) for sender, count, oldest, attempts in rows}
