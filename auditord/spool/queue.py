"""The send-queue: its SQL, each function one piece of work inside its caller's transaction, and its occupancy."""

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from auditord.database.instants import from_micros, to_micros
from auditord.errors import StoreUnavailable
from auditord.spool.encoding import Row, SetAside, decode_entry, provenance_columns
from auditord.spool.quarantine import set_aside
from auditord.spool.values import Generation, Queued, QueueStatistics, Stage
from auditord_hookspecs import InvalidRecord, Provenance

# A record that waits with equal content is not queued twice. Only for inserts: a replacement may well go back.
_PUT: Final = """
    INSERT INTO queue (sender, record_id, operation, body, alternate_id, limits, received_at, principal, agent, due_at)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0
    WHERE ?3 <> 'insert' OR NOT EXISTS (
        SELECT 1 FROM queue
        WHERE sender = ?1 AND record_id = ?2 AND operation = 'insert' AND body = ?4 AND alternate_id IS ?5
            AND limits IS ?6
    )
"""

# The oldest entries whose time has come; none overtakes an earlier one of its record, under either id: which id a run
# gets depends on what is stored. (A time further away than any wait comes from a clock that was wrong: it does not
# count.)
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

_REFUSE: Final = """
    SELECT record_id, operation, body, alternate_id, received_at, principal, agent, limits
    FROM queue WHERE entry_id = ? AND sender = ?
"""

# Counted in an index, since the table itself is as large as the records in it.
_STATISTICS: Final = """
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

# One parameter for all ids: SQLite limits how many a statement may have.
_WAITING: Final = """
    SELECT record_id, operation, body, alternate_id, received_at, principal, agent, limits
    FROM queue WHERE sender = ? AND record_id IN (SELECT value FROM json_each(?)) ORDER BY entry_id
"""
_OCCUPIED: Final = "SELECT 1 FROM queue WHERE sender = ? LIMIT 1"

LONGEST_WAIT: Final = timedelta(hours=1)
"""No entry waits longer for its next attempt."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A row of the queue on its way to a destination, not decoded yet."""

    entry_id: int
    attempts: int
    row: Row


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
        values = (sender, row.record_id, row.operation, row.body, row.alternate_id, row.limits)
        new += connection.execute(_PUT, (*values, *provenance_columns(row.provenance))).rowcount
    return new > 0


def claim(connection: sqlite3.Connection, sender: str, limit: int, now: datetime) -> list[Claimed]:
    """The rows to send next, in order; they stay until they are settled."""
    rows = connection.execute(_CLAIM, (sender, to_micros(now), limit, to_micros(now + LONGEST_WAIT)))
    return [Claimed(entry_id, attempts, _row(columns)) for entry_id, attempts, *columns in rows]


def _row(columns: Sequence[Any]) -> Row:  # Any: SQLite's column types
    record_id, operation, body, alternate_id, received_at, principal, agent, limits = columns
    provenance = Provenance(from_micros(received_at), principal, agent)
    return Row(record_id, operation, body, alternate_id, provenance, limits)


def decoded(rows: Sequence[Claimed]) -> tuple[list[Queued], dict[int, str]]:
    """The entries of rows, and why rows could not be decoded, by their numbers."""
    entries, unreadable = list[Queued](), dict[int, str]()
    for each in rows:
        try:
            entry = decode_entry(each.row)
        except InvalidRecord as error:
            unreadable[each.entry_id] = f"this version of auditord cannot read it: {error}"
        else:
            entries.append(Queued(each.entry_id, entry, each.attempts))
    return entries, unreadable


def settle(
    connection: sqlite3.Connection, sender: str, delivered: Iterable[int], refused: Mapping[int, str], now: datetime
) -> bool:
    """Forget what was delivered, put into quarantine what was refused for good; returns whether anything is left."""
    set_aside(connection, [_refused(connection, sender, entry, reason) for entry, reason in refused.items()], now)
    gone = [(entry_id, sender) for entry_id in (*delivered, *refused)]
    connection.executemany("DELETE FROM queue WHERE entry_id = ? AND sender = ?", gone)
    return occupied(connection, sender)


def _refused(connection: sqlite3.Connection, sender: str, entry_id: int, reason: str) -> SetAside:
    found = connection.execute(_REFUSE, (entry_id, sender)).fetchone()
    if found is None:
        raise LookupError(f"the queue of {sender} holds no entry {entry_id}")
    row = _row(found)
    what = (row.operation, row.alternate_id, row.provenance)
    return SetAside(Stage.ENTRY, sender, row.record_id, row.body, reason, *what, limits=row.limits)


def generation(connection: sqlite3.Connection) -> Generation:
    """The generation that spool and record store have reached together."""
    return Generation(*connection.execute("SELECT spool_id, number FROM generation").fetchone())


def set_generation(connection: sqlite3.Connection, number: int) -> None:
    """Note how far the spool has come with the record store."""
    connection.execute("UPDATE generation SET number = ?1 WHERE number <> ?1", (number,))


def postpone(connection: sqlite3.Connection, until: Mapping[int, datetime]) -> None:
    """Count a failed attempt of each entry and set when it is to be tried again."""
    connection.executemany(
        "UPDATE queue SET attempts = attempts + 1, due_at = ? WHERE entry_id = ?",
        [(to_micros(due), entry_id) for entry_id, due in until.items()],
    )


def hurry(connection: sqlite3.Connection, sender: str) -> None:
    """Let everything that waits for another attempt be due."""
    connection.execute("UPDATE queue SET due_at = 0 WHERE sender = ? AND attempts > 0", (sender,))


def occupied(connection: sqlite3.Connection, sender: str) -> bool:
    """Tell if anything waits for a sender."""
    return connection.execute(_OCCUPIED, (sender,)).fetchone() is not None


def waiting(connection: sqlite3.Connection, record_ids: Collection[str], senders: Sequence[str]) -> list[Row]:
    """The waiting rows of the records for the senders; for each of them in order."""
    wanted = json.dumps(list(record_ids))
    return [_row(columns) for sender in senders for columns in connection.execute(_WAITING, (sender, wanted))]


def senders(connection: sqlite3.Connection) -> list[str]:
    """The senders for which something waits."""
    return [sender for (sender,) in connection.execute("SELECT DISTINCT sender FROM queue")]


def next_due(connection: sqlite3.Connection, sender: str) -> datetime | None:
    """The time at which the first entry that has failed may be tried again; None if there is none."""
    (due,) = connection.execute(_NEXT_DUE, (sender,)).fetchone()
    return None if due is None else from_micros(due)


def statistics(connection: sqlite3.Connection) -> dict[str, QueueStatistics]:
    """Depth and age of every queue that is not empty."""
    rows = connection.execute(_STATISTICS)
    return {sender: QueueStatistics(count, from_micros(oldest), attempts) for sender, count, oldest, attempts in rows}


class Occupancy:
    """The senders whose queues may hold entries; wrong in one direction only: an occupied queue is never called empty.

    A writer says so before it queues something; a queue is empty again when a write transaction has seen it
    empty and nobody has begun to queue anything since that was asked for. (Writes are done in the order in which they
    are asked for.)
    """

    def __init__(self, senders: Iterable[str] = ()) -> None:
        self._occupied = set(senders)
        self.senders: Final[AbstractSet[str]] = self._occupied
        """They, now and later."""
        self._begun = Counter[str]()

    def queueing(self, senders: Iterable[str]) -> None:
        """Note that something is about to be queued."""
        for sender in senders:
            self._occupied.add(sender)
            self._begun[sender] += 1

    def mark(self, sender: str) -> int:
        """The count of what was queued for the sender; to be taken before a write looks for what is left."""
        return self._begun[sender]

    def empty(self, sender: str, mark: int) -> None:
        """Note that the write which was asked for after the mark was taken has seen the queue empty."""
        if self._begun[sender] == mark:
            self._occupied.discard(sender)
