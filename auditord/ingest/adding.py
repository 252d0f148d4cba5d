"""Adding records of which each counts for itself."""

import asyncio
from collections.abc import Sequence

from auditord.duplicates import Duplicates
from auditord.store import Provenance, RecordStore, Verdict
from auditord_hookspecs import InvalidRecord, Record


async def add_each(
    store: RecordStore, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates
) -> Sequence[Verdict | InvalidRecord]:
    """Add records in one transaction or, where the database refuses one of them for good, one by one.

    Raises:
        StoreUnavailable: the store is away; some of them may be there.
    """
    if not records:
        return ()
    try:
        return await store.add_all(records, provenance, duplicates, atomic=False)
    except InvalidRecord:  # of one of them; nothing was kept
        return await asyncio.gather(*(_add_one(store, record, provenance, duplicates) for record in records))


async def _add_one(
    store: RecordStore, record: Record, provenance: Provenance, duplicates: Duplicates
) -> Verdict | InvalidRecord:
    try:
        return await store.add(record, provenance, duplicates)
    except InvalidRecord as error:
        return error
