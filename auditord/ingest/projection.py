"""The records as they will be once everything that waits in the spool is in the store."""

from collections.abc import Mapping, Sequence

import msgspec

from auditord.duplicates import Duplicates
from auditord.store import Provenance, Verdict
from auditord.store.planning import Addition, ChangePlan, Replacement, Stop, StoredRow
from auditord.store.rows import PendingRecord, make_pending
from auditord_hookspecs import Close, Entry, Insert, Record, Replace
from auditord_hookspecs.wire import decode_record


def projected(
    stored: Mapping[str, bytes], waiting: Mapping[str, Sequence[Entry]], provenance: Provenance
) -> ChangePlan:
    """Apply what waits to what is stored.

    Args:
        stored: wire texts by id; without those of the store if it is away: then what waits is taken for all there is.
        waiting: entries by id, in order.
        provenance: of the change that is classified; verdicts do not depend on it.
    """
    ledger = ChangePlan({record_id: _stored(document, provenance) for record_id, document in stored.items()})
    for entries in waiting.values():
        for entry in entries:
            _apply(ledger, entry, provenance)
    return ledger


def classified(ledger: ChangePlan, record: Record, provenance: Provenance, duplicates: Duplicates) -> Verdict:
    """The verdict about a record that comes behind all that, which it then is a part of."""
    return Verdict(ledger.apply(Addition(make_pending(record, provenance, duplicates))))


def _stored(document: bytes, provenance: Provenance) -> StoredRow:
    return StoredRow(_pending(decode_record(document), provenance).identity, document.decode())


def _apply(ledger: ChangePlan, entry: Entry, provenance: Provenance) -> None:
    match entry:
        case Insert(record, alternate_id):
            verdict = ledger.apply(Addition(_pending(record, provenance)))
            if verdict is Verdict.EXISTS and alternate_id is not None:
                ledger.apply(Addition(_renamed(record, alternate_id, provenance)))
        case Close(record_id, stop_time):
            ledger.apply(Stop(record_id, stop_time, provenance))
        case Replace(record, alternate_id):
            alternate = None if alternate_id is None else _renamed(record, alternate_id, provenance)
            ledger.apply(Replacement(_pending(record, provenance), alternate))


def _pending(record: Record, provenance: Provenance) -> PendingRecord:
    return make_pending(record, provenance, Duplicates.SAME_RUN)


def _renamed(record: Record, record_id: str, provenance: Provenance) -> PendingRecord:
    return _pending(msgspec.structs.replace(record, record_id=record_id), provenance)
