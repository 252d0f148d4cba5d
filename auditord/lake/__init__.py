"""The lake: one Apache Iceberg table that many daemons write and other engines read without auditord.

Each daemon syncs its record store to the lake. It may also release old records: the store then deletes them, and only
the lake has them (:mod:`auditord.store.lake`). The libraries come with the extra ``lake`` and are imported only if a
lake is configured.
"""

import os

# Set before Arrow is imported: Arrow's own memory pool keeps 100 MB more for good and is no faster here.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
