"""Record stores: a base class with the code that all databases share, and a subclass for each database.

* ``store`` and ``lake_store``: the base class; ``protocol``: its results, and protocols for reading; ``amendments``:
  deliberate changes of records;
* ``planning``: work out changes of stored rows in memory; ``rows``: records as rows;
* ``work``: steps on any database; ``changes``, ``releasing``, ``origins``: work made of them; ``statements``: their
  SQL;
* ``feed``: the log of stored versions, and its consumers; ``counting`` and ``rollups``: two kinds of consumers;
* ``dialects``, ``conditions``, ``aggregates_sql``: compile queries to SQL; ``aggregates``: read the rows;
* ``sqlite``, ``postgres``: a driver, a dialect and statements for each database; ``copying``: copy a store to another
  one; ``opening``: open a store by its URL; ``reading``: the interface for plugins.
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
