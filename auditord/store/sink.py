"""The local record store as a destination of the send-queue."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import groupby

import msgspec

from auditord.store.protocol import Duplicates, Provenance, RecordStore, Verdict
from auditord_hookspecs import Close, Entry, Insert, InvalidRecord, RecordUpdate, Replace


class StoreSink:
    """Implements :class:`auditord_hookspecs.RecordSink` on a record store.

    Args:
        store: where entries go.
        now: the present instant, for entries that do not say where they are from.
    """

    def __init__(self, store: RecordStore, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    async def deliver(self, entries: Sequence[Entry]) -> Mapping[int, str]:
        """Apply the entries in order; returns why entries were refused for good, by position.

        Entries of one type that follow each other share a transaction. What is there already counts as delivered, so a
        batch may come again after a fault.

        Raises:
            StoreUnavailable: the database is away; some of the entries may have been applied.
        """
        refused: dict[int, str] = {}
        for _, run in groupby(enumerate(entries), key=lambda item: type(item[1])):
            items = list(run)
            reasons = await asyncio.gather(*(self._apply(entry) for _, entry in items))
            refused |= {position: reason for (position, _), reason in zip(items, reasons, strict=True) if reason}
        return refused

    async def _apply(self, entry: Entry) -> str | None:
        provenance = entry.provenance or Provenance(self._now())
        try:
            match entry:
                case Insert():
                    return await self._insert(entry, provenance)
                case Close():
                    return await self._close(entry, provenance)
                case Replace():
                    await self._store.replace(entry.record, provenance, entry.alternate_id)
                    return None
        except InvalidRecord as error:
            return str(error)

    async def _insert(self, entry: Insert, provenance: Provenance) -> str | None:
        verdict = await self._store.add(entry.record, provenance, Duplicates.SAME_RUN)
        if verdict is Verdict.EXISTS and entry.alternate_id is not None:
            # The plain id belongs to a run with another start: a recycled job number, or a requeue.
            other = msgspec.structs.replace(entry.record, record_id=entry.alternate_id)
            verdict = await self._store.add(other, provenance, Duplicates.SAME_RUN)
        if verdict.accepted:
            return None
        ids = " and ".join(repr(name) for name in (entry.record.record_id, entry.alternate_id) if name)
        return f"The id {ids} belongs to another run, which started at another time."

    async def _close(self, entry: Close, provenance: Provenance) -> str | None:
        update = RecordUpdate(entry.record_id, (), entry.stop_time)
        if await self._store.stop(update, provenance):
            return None
        return f"There is no record {entry.record_id!r} that could be closed."
