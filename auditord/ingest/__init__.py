"""Ingest of clients' records: check permissions, transform records, and store them or queue them in the spool."""

from auditord.ingest.delivery import Pairing, StoreSink, add_each, is_pair, missing_store, recognise, refuse_lost_spool
from auditord.ingest.service import Ingest, writing_roles
from auditord.ingest.submission import (
    QUEUED,
    Forbidden,
    Outcome,
    Queued,
    Stopped,
    transform_changes,
)

__all__ = [
    "QUEUED",
    "Forbidden",
    "Ingest",
    "Outcome",
    "Pairing",
    "Queued",
    "Stopped",
    "StoreSink",
    "add_each",
    "is_pair",
    "missing_store",
    "recognise",
    "refuse_lost_spool",
    "transform_changes",
    "writing_roles",
]
