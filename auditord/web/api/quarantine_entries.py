"""Entries of the quarantine as the API shows them; commands read them from the spool's own file in the same form."""

from typing import Any

import msgspec

from auditord.spool import QuarantineEntry as StoredEntry
from auditord.web.api.shapes import QuarantinedInput, QuarantineEntry
from auditord_hookspecs.wire import format_time


def summary(entry: StoredEntry) -> QuarantineEntry:
    """An entry as it is listed."""
    return QuarantineEntry(
        number=entry.quarantine_id,
        task=entry.task,
        stage=entry.stage.value,
        source_id=entry.source_id,
        reason=entry.reason,
        at=format_time(entry.quarantined_at),
        occurrences=entry.occurrences,
        route=entry.route,
    )


def with_input(entry: StoredEntry) -> QuarantinedInput:
    """An entry with everything that is known of it."""
    provenance = entry.provenance
    return QuarantinedInput(
        **msgspec.structs.asdict(summary(entry)),
        raw=readable(entry.raw),
        principal=None if provenance is None else provenance.principal,
        agent=None if provenance is None else provenance.agent,
    )


def readable(raw: bytes) -> Any:  # Any: JSON
    """Raw input as JSON or, where it is none, as a text."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw.decode(errors="backslashreplace")
