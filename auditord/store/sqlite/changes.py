"""What the writer's thread does to the tables; every function runs inside a transaction of the database's writer."""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from auditord.store.amendments import COLLECTED_AGAIN, Action
from auditord.store.protocol import Provenance, Verdict
from auditord.store.rows import PendingRecord, document_text, to_micros
from auditord.store.sqlite import outbox
from auditord.store.sqlite.counting import count_arrivals, count_change
from auditord.store.sqlite.sources import QUERIES, ScoreSets, Sources
from auditord.store.verdicts import Identity, choose_id, classify, starts_earlier
from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.wire import decode_record

# What the database says about values that it cannot take: the same record would fail again. Faulty SQL and a database
# that is away are something else.
_REFUSALS: Final = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    OverflowError,
    UnicodeError,
)

Outcome: TypeAlias = Verdict | InvalidRecord


class StoredRow(msgspec.Struct, frozen=True, gc=False):
    """What the store has under an id."""

    seq: int
    identity: Identity
    document: bytes

    @property
    def record(self) -> Record:
        """The stored record."""
        return decode_record(self.document)


def add_all(connection: sqlite3.Connection, pending_records: Sequence[PendingRecord]) -> list[Outcome]:
    """Add records, classifying them in order; one that the database refuses harms no other."""
    if _add_new(connection, pending_records):
        return [Verdict.ADDED] * len(pending_records)
    return [_add_alone(connection, pending) for pending in pending_records]


def _add_new(connection: sqlite3.Connection, pending_records: Sequence[PendingRecord]) -> bool:
    """Add records that are all new, in one go; otherwise change nothing and say False."""
    try:
        with _savepoint(connection):
            _insert(connection, pending_records)
    except (_NotNew, *_REFUSALS):
        return False
    return True


def _add_alone(connection: sqlite3.Connection, pending: PendingRecord) -> Outcome:
    try:
        with _savepoint(connection), _refusals_in_words(pending):
            return add(connection, pending)
    except InvalidRecord as error:
        return error


def add(connection: sqlite3.Connection, pending: PendingRecord) -> Verdict:
    """Add one record, or do to the stored one what the verdict says."""
    stored = find(connection, pending.record.record_id)
    if stored is None:
        _insert(connection, [pending])
        return Verdict.ADDED
    verdict = classify(stored.identity, pending.identity, pending.duplicates)
    if verdict is Verdict.CLOSED:
        overwrite(connection, stored, pending)
        _forward(connection, pending, "insert")
    elif verdict is Verdict.DIFFERENT:
        _note_difference(connection, pending)
    elif verdict is Verdict.SAME and starts_earlier(stored.identity, pending.identity):
        moved = msgspec.structs.replace(stored.record, start_time=pending.record.start_time)
        _move_times(connection, stored, moved, pending.provenance)
        _forward(connection, pending, "insert")  # of an open record, nothing but the start has changed
    return verdict


def replace(connection: sqlite3.Connection, pending: PendingRecord) -> Verdict:
    """Insert or overwrite a record on purpose.

    Raises:
        InvalidRecord: the database refuses it.
    """
    stored = find(connection, pending.record.record_id)
    with _refusals_in_words(pending):
        if stored is None:
            _insert(connection, [pending])
            return Verdict.ADDED
        same = stored.identity == pending.identity
        if not same:
            _keep_version(connection, stored, pending.provenance)
        overwrite(connection, stored, pending)
        _forward(connection, pending, "replace")
    return Verdict.SAME if same else Verdict.DIFFERENT


def replace_run(connection: sqlite3.Connection, pending: PendingRecord, alternate: PendingRecord) -> Verdict:
    """Insert or overwrite the record of one run, under the id that :func:`choose_id` says.

    Raises:
        InvalidRecord: the database refuses it.
    """
    stored = {each.record.record_id: find(connection, each.record.record_id) for each in (pending, alternate)}
    identities = {record_id: found.identity for record_id, found in stored.items() if found is not None}
    return replace(connection, choose_id(pending, alternate, identities))


def stop(
    connection: sqlite3.Connection, record_id: str, stop_time: datetime, provenance: Provenance, *, forwarded: bool
) -> bool:
    """Give a record a stop time; False if there is none with this id."""
    stored = find(connection, record_id)
    if stored is None:
        return False
    if stored.identity.stop != to_micros(stop_time):
        stopped = msgspec.structs.replace(stored.record, stop_time=stop_time)
        _move_times(connection, stored, stopped, provenance)
        if forwarded:
            operation: outbox.Operation = "insert" if stored.identity.stop is None else "close"
            outbox.put(connection, Sources(connection), [(operation, document_text(stopped), provenance)])
    return True


def find(connection: sqlite3.Connection, record_id: str) -> StoredRow | None:
    """What there is under the id."""
    row = connection.execute(QUERIES["find_record"], (record_id,)).fetchone()
    if row is None:
        return None
    seq, start, stop_time, content, document = row
    return StoredRow(seq, Identity(start, stop_time, content), document)


def probe(connection: sqlite3.Connection) -> None:
    """Write as much as a large record takes, and give it back."""
    connection.execute(QUERIES["fill_probe"])
    connection.execute(QUERIES["empty_probe"])


def _insert(connection: sqlite3.Connection, pending_records: Sequence[PendingRecord]) -> None:
    sources, score_sets = Sources(connection), ScoreSets(connection)
    rows = [
        (
            pending.record.record_id,
            *pending.row,
            score_sets.number(pending.scores),
            to_micros(pending.provenance.received_at),
            sources.number(pending.provenance),
        )
        for pending in pending_records
    ]
    if connection.executemany(QUERIES["insert_record"], rows).rowcount < len(rows):
        raise _NotNew
    count_arrivals(connection)
    outbox.put(connection, sources, [_forwarded(pending, "insert") for pending in pending_records if pending.forwarded])


def _forward(connection: sqlite3.Connection, pending: PendingRecord, operation: outbox.Operation) -> None:
    if pending.forwarded:
        outbox.put(connection, Sources(connection), [_forwarded(pending, operation)])


def _forwarded(pending: PendingRecord, operation: outbox.Operation) -> outbox.Change:
    *_, document = pending.row
    return operation, str(document), pending.provenance


def overwrite(connection: sqlite3.Connection, stored: StoredRow, pending: PendingRecord) -> None:
    """Put a record in the place of the stored one."""
    updated_at = to_micros(pending.provenance.received_at)
    source = Sources(connection).number(pending.provenance)
    score_set = ScoreSets(connection).number(pending.scores)
    connection.execute(QUERIES["overwrite_record"], (*pending.row, score_set, updated_at, source, stored.seq))
    connection.execute(QUERIES["settle_differences"], (pending.record.record_id,))
    count_change(connection, stored.seq, stored.record, pending.record)


def _keep_version(connection: sqlite3.Connection, stored: StoredRow, provenance: Provenance) -> None:
    by = Sources(connection).number(provenance)
    values = (Action.CORRECT.value, COLLECTED_AGAIN, to_micros(provenance.received_at), by, stored.seq)
    connection.execute(QUERIES["keep_version"], values)


def _move_times(connection: sqlite3.Connection, stored: StoredRow, record: Record, provenance: Provenance) -> None:
    stop_time = None if record.stop_time is None else to_micros(record.stop_time)
    values = (to_micros(record.start_time), stop_time, document_text(record), to_micros(provenance.received_at))
    connection.execute(QUERIES["move_times"], (*values, stored.seq))


def _note_difference(connection: sqlite3.Connection, pending: PendingRecord) -> None:
    *_, content, document = pending.row
    source = Sources(connection).number(pending.provenance)
    seen_at = to_micros(pending.provenance.received_at)
    connection.execute(QUERIES["note_difference"], (pending.record.record_id, content, document, seen_at, source))


class _NotNew(Exception):
    """Some record's id is known."""


@contextmanager
def _refusals_in_words(pending: PendingRecord) -> Generator[None, None, None]:
    try:
        yield
    except _REFUSALS as error:
        raise InvalidRecord(f"The record {pending.record.record_id!r} cannot be stored: {error}.") from error


@contextmanager
def _savepoint(connection: sqlite3.Connection) -> Generator[None, None, None]:
    connection.execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # else SQLite has undone everything itself
            connection.execute("ROLLBACK TO part")
            connection.execute("RELEASE part")
        raise
    connection.execute("RELEASE part")
