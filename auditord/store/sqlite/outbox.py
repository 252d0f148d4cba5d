"""What senders must forward, written in the transaction of the change itself."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from auditord.store.protocol import OutboxEntry, Provenance
from auditord.store.rows import from_micros, to_micros
from auditord.store.sqlite.sources import QUERIES, Sources
from auditord_hookspecs import Close, Entry, Insert, Replace
from auditord_hookspecs.wire import decode_record

Operation: TypeAlias = Literal["insert", "close", "replace"]
Change: TypeAlias = tuple[Operation, str, Provenance]
"""What was done, the wire text of the record as it is now, who did it."""


def put(connection: sqlite3.Connection, sources: Sources, changes: Iterable[Change]) -> None:
    """Add changes, in order."""
    for operation, document, provenance in changes:
        values = (operation, document, to_micros(provenance.received_at), sources.number(provenance))
        connection.execute(QUERIES["put_outbox"], values)


def oldest(connection: sqlite3.Connection, limit: int) -> Sequence[OutboxEntry]:
    """The changes that have waited longest, in order."""
    return [
        OutboxEntry(number, _entry(operation, document, Provenance(from_micros(received_at), principal, agent)))
        for number, operation, document, received_at, principal, agent in connection.execute(
            QUERIES["list_outbox"], (limit,)
        )
    ]


def _entry(operation: Operation, document: bytes, provenance: Provenance) -> Entry:
    record = decode_record(document)
    match operation:
        case "insert":
            return Insert(record, None, provenance)
        case "replace":
            return Replace(record, None, provenance)
        case "close":
            if record.stop_time is None:
                raise ValueError(f"the outbox closes {record.record_id!r} without a stop time")
            return Close(record.record_id, record.stop_time, provenance)


def forget(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Drop changes that have been forwarded."""
    connection.executemany(QUERIES["forget_outbox"], [(number,) for number in numbers])
