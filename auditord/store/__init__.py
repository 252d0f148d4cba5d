"""Record stores: one class that does all that databases do alike, and one below it per database.

* ``store`` and ``lake_store``: all that a store does; ``protocol``: its answers, and reads; ``amendments``: changes on
  purpose;
* ``planning``: what changes make of stored rows, without a database; ``rows``: records as rows, one or many;
* ``work``: steps on a database, written once; ``changes``, ``releasing``, ``sources``: such work; ``statements``: the
  SQL of it;
* ``feed``: the log that the records are, and its consumers; ``counting`` and ``rollups`` are such;
* ``sql``, ``dialects``, ``conditions``, ``aggregates_sql``: queries in SQL; ``aggregates``: their rows;
* ``sqlite``, ``postgres``: a driver of steps, a dialect, the statements that are its own; ``copying``: from one to
  another; ``opening``: by URL; ``reading``: as plugins see it.
"""

from auditord.duplicates import Duplicates
from auditord.store.amendments import Action, Amended, Amendment, Version
from auditord.store.protocol import Difference, Outbox, OutboxEntry, RecordCounts, Verdict
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
    "Verdict",
    "Version",
]
