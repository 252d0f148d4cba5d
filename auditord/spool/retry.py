"""Retries of what is in quarantine, once the cause has been mended."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from auditord.spool.encoding import Row, decode_entry
from auditord.spool.spool import Spool
from auditord.spool.values import QuarantineEntry, Stage
from auditord_hookspecs import AuditordError, Entry, Insert, Produced, Provenance, Record, Replace
from auditord_hookspecs.wire import decode_record, decode_records

Convert: TypeAlias = Callable[[Any], Record | Produced | None]  # Any: the raw JSON that the collector gave away


async def retry(spool: Spool, entry: QuarantineEntry, convert: Convert | None, destinations: Sequence[str]) -> int:
    """Try an entry again; what comes of it is queued as the entry goes, in one transaction.

    Args:
        spool: where it is.
        entry: what failed.
        convert: the collector's own conversion; only entries of stage JOB need it.
        destinations: the senders; an entry that a destination refused goes to that one only.

    Returns:
        How many entries were queued; 0 if the job makes no record under today's configuration.

    Raises:
        InvalidRecord: it is still not right, and stays.
        AuditordError: the kind cannot convert again.
    """
    entries = _again(entry, convert)
    where = [entry.task] if entry.stage is Stage.ENTRY else destinations
    await spool.quarantine_release(entry.quarantine_id, entries, where, transformed=entry.stage is Stage.ENTRY)
    return len(entries)


def _again(entry: QuarantineEntry, convert: Convert | None) -> Sequence[Entry]:
    provenance = entry.provenance or Provenance(entry.quarantined_at, principal=f"task:{entry.task}")
    match entry.stage:
        case Stage.JOB:
            return _converted(entry, convert, provenance)
        case Stage.RECORD:
            return [Insert(decode_record(entry.raw), entry.alternate_id, provenance)]
        case Stage.ENTRY:
            operation, alternate_id = entry.operation or "insert", entry.alternate_id
            return [decode_entry(Row(entry.source_id, operation, entry.raw, alternate_id, provenance, entry.limits))]
        case Stage.BODY:
            return _posted(entry, provenance)


def _converted(entry: QuarantineEntry, convert: Convert | None, provenance: Provenance) -> Sequence[Entry]:
    if convert is None:
        raise AuditordError(
            f"quarantine entry {entry.quarantine_id}: {entry.task} is not configured any more, or its kind cannot "
            "convert again; collect the period once more, then discard the entry"
        )
    made = convert(entry.raw_json)
    if made is None:
        return []
    produced = made if isinstance(made, Produced) else Produced(made)
    entry_type = Replace if produced.replaces else Insert
    return [entry_type(produced.record, produced.alternate_id, provenance)]


def _posted(entry: QuarantineEntry, provenance: Provenance) -> Sequence[Entry]:
    path = (entry.route or "").partition("?")[0]
    if path.rstrip("/").endswith("/records"):
        return [Insert(record, None, provenance) for record in decode_records(entry.raw)]
    return [Insert(decode_record(entry.raw), None, provenance)]
