"""The archive: old records in an Apache Iceberg table, which other programs read without auditord.

What moves there, and what of the table counts, is decided together with the record store
(:mod:`auditord.store.archiving`). The libraries are the extra ``archive``; nothing imports them unless the
configuration has an archive.
"""

import os

# Before Arrow is imported: its own pool of memory keeps 100 MB more for good, and is no faster here.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
