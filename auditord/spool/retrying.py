"""Retry quarantined jobs: make their entries again, and queue them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from auditord.spool.encoding import QuarantineEntry, Row, Stage, decode_entry, decode_limits
from auditord.spool.spool import Spool
from auditord_hookspecs import AuditordError, Entry, Insert, InvalidRecord, Produced, Provenance, Record, Replace
from auditord_hookspecs.wire import decode_record, decode_records

Convert: TypeAlias = Callable[[Any], Record | Produced | None]  # Any: the collector's raw JSON


async def retry(spool: Spool, entry: QuarantineEntry, convert: Convert | None, destinations: Sequence[str]) -> int:
    """Retry a quarantine entry: queue its records and delete the entry, in one transaction.

    ``convert`` is the collector's conversion, needed only for entries of stage JOB. An entry that a destination refused
    goes only to that destination.

    Returns:
        The number of queued entries; 0 if the job makes no record under the current configuration.

    Raises:
        InvalidRecord: the record is still invalid; the entry stays.
        AuditordError: the kind cannot convert again.
    """
    entries: list[Entry] = []
    produced: Produced | None = None
    provenance = entry.provenance or Provenance(entry.quarantined_at, principal=f"task:{entry.task}")
    match entry.stage:
        case Stage.JOB:
            if convert is None:
                raise AuditordError(
                    f"quarantine entry {entry.quarantine_id}: {entry.task} is no longer configured, or its kind cannot "
                    "convert it again: if it was renamed, retry with --collector NAME; otherwise collect the period "
                    "again, then discard the entry"
                )
            made = convert(entry.raw_json)
            produced = made if made is None or isinstance(made, Produced) else Produced(made)
        case Stage.RECORD:
            produced = Produced(decode_record(entry.raw), entry.alternate_id)
        case Stage.ENTRY:
            operation, alternate_id = entry.operation or "insert", entry.alternate_id
            row = Row(entry.source_id, operation, entry.raw, alternate_id, provenance, entry.limits)
            entries.append(decode_entry(row))
        case Stage.BODY:
            path = (entry.route or "").partition("?")[0]
            are_many = path.rstrip("/").endswith("/records")
            records = decode_records(entry.raw) if are_many else [decode_record(entry.raw)]
            roles = decode_limits(entry.limits)
            for record in records:  # the stored record of each id is checked when it is delivered
                allowing = None if roles is None else tuple([role for role in roles if role.may_write(record)])
                if allowing == ():
                    raise InvalidRecord(
                        f"record {record.record_id!r} has a site or a prefix that its sender may not write"
                    )
                entries.append(Insert(record, None, provenance, allowing))
    if produced is not None:
        entry_type = Replace if produced.replaces or entry.operation == "replace" else Insert
        entries.append(entry_type(produced.record, produced.alternate_id, provenance))
    where = [entry.task] if entry.stage is Stage.ENTRY else destinations
    await spool.quarantine_release(entry.quarantine_id, entries, where, transformed=entry.stage is Stage.ENTRY)
    return len(entries)
