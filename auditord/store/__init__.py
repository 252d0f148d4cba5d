"""Record stores: one protocol, one implementation per database.

* ``protocol``: what every store does; ``amendments``: changes on purpose; ``verdicts``: the rules about known ids;
* ``planning``: what changes make of stored rows, without a database; ``rows``: a record as a row;
* ``work``: steps on a database, written once; ``changes``, ``redacting``, ``sources``: work; ``store``: all of it;
* ``feed``: the log that the records are, and its consumers; ``counting`` and ``rollups`` are such;
* ``sql``, ``dialects``, ``conditions``, ``dimensions``, ``aggregates_sql``: queries in SQL; ``aggregates``: their rows;
* ``sqlite``, ``postgres``: a driver of steps, a dialect, the statements by name; ``copying``: from one to another;
  ``opening``: by URL; ``reading``: as plugins see it.
"""

from auditord.duplicates import Duplicates
from auditord.store.amendments import Action, Amended, Amendment, Version
from auditord.store.protocol import Difference, Outbox, OutboxEntry, RecordCounts, Verdict
from auditord.store.store import RecordStore
from auditord_hookspecs import Provenance

__all__ = [
    "Action",
    "Amended",
    "Amendment",
    "Difference",
    "Duplicates",
    "Outbox",
    "OutboxEntry",
    "Provenance",
    "RecordCounts",
    "RecordStore",
    "Verdict",
    "Version",
]
