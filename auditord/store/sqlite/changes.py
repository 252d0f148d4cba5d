"""What the writer's thread does to the tables; every function runs inside a transaction of the database's writer."""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from auditord.store.amendments import COLLECTED_AGAIN, Action
from auditord.store.protocol import Provenance, Verdict
from auditord.store.rows import Offer, document_text, to_micros
from auditord.store.sqlite import outbox
from auditord.store.sqlite.counting import count_arrivals, count_change
from auditord.store.sqlite.sources import QUERIES, ScoreSets, Sources
from auditord.store.verdicts import Identity, choose_id, judge, starts_earlier
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


class Stored(msgspec.Struct, frozen=True, gc=False):
    """What the store has under an id."""

    seq: int
    identity: Identity
    document: bytes

    @property
    def record(self) -> Record:
        """The stored record."""
        return decode_record(self.document)


def add_all(connection: sqlite3.Connection, offers: Sequence[Offer]) -> list[Outcome]:
    """Add records, judging them in order; one that the database refuses harms no other."""
    if _add_new(connection, offers):
        return [Verdict.ADDED] * len(offers)
    return [_add_alone(connection, offer) for offer in offers]


def _add_new(connection: sqlite3.Connection, offers: Sequence[Offer]) -> bool:
    """Add records that are all new, in one go; otherwise change nothing and say False."""
    try:
        with _savepoint(connection):
            _insert(connection, offers)
    except (_NotNew, *_REFUSALS):
        return False
    return True


def _add_alone(connection: sqlite3.Connection, offer: Offer) -> Outcome:
    try:
        with _savepoint(connection), _refusals_in_words(offer):
            return add(connection, offer)
    except InvalidRecord as error:
        return error


def add(connection: sqlite3.Connection, offer: Offer) -> Verdict:
    """Add one record, or do to the stored one what the verdict says."""
    stored = find(connection, offer.record.record_id)
    if stored is None:
        _insert(connection, [offer])
        return Verdict.ADDED
    verdict = judge(stored.identity, offer.identity, offer.duplicates)
    if verdict is Verdict.CLOSED:
        overwrite(connection, stored, offer)
        _carry(connection, offer, "insert")
    elif verdict is Verdict.DIFFERENT:
        _note_difference(connection, offer)
    elif verdict is Verdict.SAME and starts_earlier(stored.identity, offer.identity):
        moved = msgspec.structs.replace(stored.record, start_time=offer.record.start_time)
        _move_times(connection, stored, moved, offer.provenance)
        _carry(connection, offer, "insert")  # of an open record, nothing but the start has changed
    return verdict


def replace(connection: sqlite3.Connection, offer: Offer) -> Verdict:
    """Insert or overwrite a record on purpose.

    Raises:
        InvalidRecord: the database refuses it.
    """
    stored = find(connection, offer.record.record_id)
    with _refusals_in_words(offer):
        if stored is None:
            _insert(connection, [offer])
            return Verdict.ADDED
        same = stored.identity == offer.identity
        if not same:
            _keep_version(connection, stored, offer.provenance)
        overwrite(connection, stored, offer)
        _carry(connection, offer, "replace")
    return Verdict.SAME if same else Verdict.DIFFERENT


def replace_run(connection: sqlite3.Connection, offer: Offer, alternate: Offer) -> Verdict:
    """Insert or overwrite the record of one run, under the id that :func:`choose_id` says.

    Raises:
        InvalidRecord: the database refuses it.
    """
    stored = {each.record.record_id: find(connection, each.record.record_id) for each in (offer, alternate)}
    identities = {record_id: found.identity for record_id, found in stored.items() if found is not None}
    return replace(connection, choose_id(offer, alternate, identities))


def stop(
    connection: sqlite3.Connection, record_id: str, stop_time: datetime, provenance: Provenance, *, carried: bool
) -> bool:
    """Give a record a stop time; False if there is none with this id."""
    stored = find(connection, record_id)
    if stored is None:
        return False
    if stored.identity.stop != to_micros(stop_time):
        stopped = msgspec.structs.replace(stored.record, stop_time=stop_time)
        _move_times(connection, stored, stopped, provenance)
        if carried:
            operation: outbox.Operation = "insert" if stored.identity.stop is None else "close"
            outbox.put(connection, Sources(connection), [(operation, document_text(stopped), provenance)])
    return True


def find(connection: sqlite3.Connection, record_id: str) -> Stored | None:
    """What there is under the id."""
    row = connection.execute(QUERIES["find_record"], (record_id,)).fetchone()
    if row is None:
        return None
    seq, start, stop_time, content, document = row
    return Stored(seq, Identity(start, stop_time, content), document)


def probe(connection: sqlite3.Connection) -> None:
    """Write as much as a large record takes, and give it back."""
    connection.execute(QUERIES["fill_probe"])
    connection.execute(QUERIES["empty_probe"])


def _insert(connection: sqlite3.Connection, offers: Sequence[Offer]) -> None:
    sources, score_sets = Sources(connection), ScoreSets(connection)
    rows = [
        (
            offer.record.record_id,
            *offer.row,
            score_sets.number(offer.scores),
            to_micros(offer.provenance.received_at),
            sources.number(offer.provenance),
        )
        for offer in offers
    ]
    if connection.executemany(QUERIES["insert_record"], rows).rowcount < len(rows):
        raise _NotNew
    count_arrivals(connection)
    outbox.put(connection, sources, [_carried(offer, "insert") for offer in offers if offer.carried])


def _carry(connection: sqlite3.Connection, offer: Offer, operation: outbox.Operation) -> None:
    if offer.carried:
        outbox.put(connection, Sources(connection), [_carried(offer, operation)])


def _carried(offer: Offer, operation: outbox.Operation) -> outbox.Change:
    *_, document = offer.row
    return operation, str(document), offer.provenance


def overwrite(connection: sqlite3.Connection, stored: Stored, offer: Offer) -> None:
    """Put a record in the place of the stored one."""
    updated_at = to_micros(offer.provenance.received_at)
    source = Sources(connection).number(offer.provenance)
    score_set = ScoreSets(connection).number(offer.scores)
    connection.execute(QUERIES["overwrite_record"], (*offer.row, score_set, updated_at, source, stored.seq))
    connection.execute(QUERIES["settle_differences"], (offer.record.record_id,))
    count_change(connection, stored.seq, stored.record, offer.record)


def _keep_version(connection: sqlite3.Connection, stored: Stored, provenance: Provenance) -> None:
    by = Sources(connection).number(provenance)
    values = (Action.CORRECT.value, COLLECTED_AGAIN, to_micros(provenance.received_at), by, stored.seq)
    connection.execute(QUERIES["keep_version"], values)


def _move_times(connection: sqlite3.Connection, stored: Stored, record: Record, provenance: Provenance) -> None:
    stop_time = None if record.stop_time is None else to_micros(record.stop_time)
    values = (to_micros(record.start_time), stop_time, document_text(record), to_micros(provenance.received_at))
    connection.execute(QUERIES["move_times"], (*values, stored.seq))


def _note_difference(connection: sqlite3.Connection, offer: Offer) -> None:
    *_, content, document = offer.row
    source = Sources(connection).number(offer.provenance)
    seen_at = to_micros(offer.provenance.received_at)
    connection.execute(QUERIES["note_difference"], (offer.record.record_id, content, document, seen_at, source))


class _NotNew(Exception):
    """Some record's id is known."""


@contextmanager
def _refusals_in_words(offer: Offer) -> Generator[None, None, None]:
    try:
        yield
    except _REFUSALS as error:
        raise InvalidRecord(f"The record {offer.record.record_id!r} cannot be stored: {error}.") from error


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
