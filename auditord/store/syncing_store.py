"""The part of a record store that gives its changes to the lake."""

import asyncio
import uuid

from auditord.store.archiving_store import ArchivingStore, copies_of
from auditord.store.lake import LakeBatch, LakeState
from auditord.store.lake_changes import begin_lake, count_unread, fill_lake, read_lake, take_slice
from auditord.store.work import atomic


class SyncingStore(ArchivingStore):
    """Implements :class:`auditord.store.lake.LakeSource`."""

    async def lake_state(self) -> LakeState:
        """See :class:`LakeSource`."""
        return await self._read(read_lake())

    async def begin_lake(self) -> LakeState:
        """See :class:`LakeSource`."""
        store_id = uuid.uuid4().hex
        return await self._write(lambda: atomic(lambda: begin_lake(store_id)))

    async def fill_lake(self, lake_id: str) -> None:
        """See :class:`LakeSource`."""
        await self._write(lambda: atomic(lambda: fill_lake(lake_id)), is_long=True)

    async def lake_waiting(self) -> int:
        """See :class:`LakeSource`."""
        return await self._read(count_unread())

    async def lake_batch(self, position: int, limit: int) -> LakeBatch:
        """See :class:`LakeSource`."""
        taken = await self._write(lambda: atomic(lambda: take_slice(position, limit)), is_long=True)
        records = await asyncio.to_thread(copies_of, taken.rows)
        return LakeBatch(taken.upto, taken.known, [*records, *await self._archived(taken.archived)])
