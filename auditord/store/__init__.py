"""Where records are kept: one protocol, one implementation per database."""

from auditord.store.amendments import Action, Amended, Amendment, Version
from auditord.store.protocol import Difference, Duplicates, OutboxEntry, Provenance, RecordCounts, RecordStore, Verdict

__all__ = [
    "Action",
    "Amended",
    "Amendment",
    "Difference",
    "Duplicates",
    "OutboxEntry",
    "Provenance",
    "RecordCounts",
    "RecordStore",
    "Verdict",
    "Version",
]
