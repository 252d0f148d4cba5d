"""What senders must forward, written in the transaction of the change itself."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import msgspec

from auditord.database.postgres import Connection
from auditord.store.ledger import Forwarded, Operation
from auditord.store.postgres.rows import as_json
from auditord.store.postgres.sources import QUERIES, Numbers
from auditord.store.protocol import OutboxEntry, Provenance
from auditord.store.rows import Value
from auditord_hookspecs import Close, Entry, Insert, Replace
from auditord_hookspecs.wire import decode_record


class _Row(msgspec.Struct, frozen=True, gc=False):
    operation: Operation
    document: Value
    received_at: datetime
    source_id: int


async def put(connection: Connection, changes: Iterable[Forwarded], numbers: Numbers) -> None:
    """Add changes, in order."""
    rows = [
        _Row(operation, pending.row[-1], pending.provenance.received_at, numbers.source(pending.provenance))
        for operation, pending in changes
    ]
    if rows:
        await connection.execute(QUERIES["put_outbox"], (as_json(rows),))


async def oldest(connection: Connection, limit: int) -> Sequence[OutboxEntry]:
    """The changes that have waited longest, in order."""
    rows = await (await connection.execute(QUERIES["list_outbox"], (limit,))).fetchall()
    return [
        OutboxEntry(number, _entry(operation, document, Provenance(received_at, principal, agent)))
        for number, operation, document, received_at, principal, agent in rows
    ]


async def forget(connection: Connection, numbers: Collection[int]) -> None:
    """Drop changes that have been forwarded."""
    await connection.execute(QUERIES["forget_outbox"], (as_json(numbers),))


def _entry(operation: Operation, document: str, provenance: Provenance) -> Entry:
    record = decode_record(document.encode())
    match operation:
        case "insert":
            return Insert(record, None, provenance)
        case "replace":
            return Replace(record, None, provenance)
        case "close":
            if record.stop_time is None:
                raise ValueError(f"the outbox closes {record.record_id!r} without a stop time")
            return Close(record.record_id, record.stop_time, provenance)
