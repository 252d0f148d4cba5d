"""Where records are kept: one protocol, one implementation per database."""

from auditord.store.protocol import Difference, Duplicates, OutboxEntry, Provenance, RecordCounts, RecordStore, Verdict

__all__ = ["Difference", "Duplicates", "OutboxEntry", "Provenance", "RecordCounts", "RecordStore", "Verdict"]
