"""What the writer's thread does to the tables; every function runs inside a transaction of the database's writer."""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from auditord.database.queries import load_queries
from auditord.store.protocol import Provenance, Verdict
from auditord.store.rows import Offer, document_text, to_micros
from auditord.store.sqlite.counting import count_arrivals, count_change
from auditord.store.verdicts import Identity, judge, starts_earlier
from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.wire import decode_record

QUERIES: Final = load_queries("auditord.store.sqlite")

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
        _overwrite(connection, stored, offer)
    elif verdict is Verdict.DIFFERENT:
        _note_difference(connection, offer)
    elif verdict is Verdict.SAME and starts_earlier(stored.identity, offer.identity):
        moved = msgspec.structs.replace(stored.record, start_time=offer.record.start_time)
        _move_times(connection, stored, moved, offer.provenance)
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
        _overwrite(connection, stored, offer)
    return Verdict.SAME if stored.identity == offer.identity else Verdict.DIFFERENT


def replace_run(connection: sqlite3.Connection, offer: Offer, alternate: Offer) -> Verdict:
    """Insert or overwrite the record of one run: under the alternate's id if the plain one is another run's.

    Raises:
        InvalidRecord: the database refuses it.
    """
    stored = find(connection, offer.record.record_id)
    another_run = stored is not None and stored.identity.start != offer.identity.start
    return replace(connection, alternate if another_run else offer)


def stop(connection: sqlite3.Connection, record_id: str, stop_time: datetime, provenance: Provenance) -> bool:
    """Give a record a stop time; False if there is none with this id."""
    stored = find(connection, record_id)
    if stored is None:
        return False
    if stored.identity.stop != to_micros(stop_time):
        stopped = msgspec.structs.replace(stored.record, stop_time=stop_time)
        _move_times(connection, stored, stopped, provenance)
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
    sources = _Sources(connection)
    rows = [
        (offer.record.record_id, *offer.row, to_micros(offer.provenance.received_at), sources.number(offer.provenance))
        for offer in offers
    ]
    if connection.executemany(QUERIES["insert_record"], rows).rowcount < len(rows):
        raise _NotNew
    count_arrivals(connection)


def _overwrite(connection: sqlite3.Connection, stored: Stored, offer: Offer) -> None:
    updated_at = to_micros(offer.provenance.received_at)
    source = _Sources(connection).number(offer.provenance)
    connection.execute(QUERIES["overwrite_record"], (*offer.row, updated_at, source, stored.seq))
    connection.execute(QUERIES["settle_differences"], (offer.record.record_id,))
    count_change(connection, stored.seq, stored.record, offer.record)


def _move_times(connection: sqlite3.Connection, stored: Stored, record: Record, provenance: Provenance) -> None:
    stop_time = None if record.stop_time is None else to_micros(record.stop_time)
    values = (to_micros(record.start_time), stop_time, document_text(record), to_micros(provenance.received_at))
    connection.execute(QUERIES["move_times"], (*values, stored.seq))


def _note_difference(connection: sqlite3.Connection, offer: Offer) -> None:
    *_, content, document = offer.row
    source = _Sources(connection).number(offer.provenance)
    seen_at = to_micros(offer.provenance.received_at)
    connection.execute(QUERIES["note_difference"], (offer.record.record_id, content, document, seen_at, source))


class _NotNew(Exception):
    """Some record's id is known."""


class _Sources:
    """Numbers of principals and clients, remembered for one piece of work: it may be undone, and they with it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[tuple[str | None, str | None], int] = {}

    def number(self, provenance: Provenance) -> int:
        """The number that stands for the provenance's principal and agent."""
        name = (provenance.principal, provenance.agent)
        if name not in self._numbers:
            self._numbers[name] = self._look_up(name)
        return self._numbers[name]

    def _look_up(self, name: tuple[str | None, str | None]) -> int:
        row = self._connection.execute(QUERIES["find_source"], name).fetchone()
        if row is None:
            self._connection.execute(QUERIES["insert_source"], name)
            return self._look_up(name)
        return int(row[0])


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
