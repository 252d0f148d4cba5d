"""The lake: one Apache Iceberg table with the records of many daemons, for engines that need no auditord.

A daemon syncs there what its record store holds, and may release old records, which only the lake has then
(:mod:`auditord.store.lake`). The libraries are the extra ``lake``; nothing imports them unless the configuration has a
lake.
"""

import os

# Before Arrow is imported: its own pool of memory keeps 100 MB more for good, and is no faster here.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
