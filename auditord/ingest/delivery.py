"""The local record store as a destination of the send-queue."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from auditord.duplicates import Duplicates
from auditord.ingest.pairing import Pairing
from auditord.ingest.permission import may_update
from auditord.store import Provenance, RecordStore, Verdict
from auditord.store.protocol import is_forwarded
from auditord_hookspecs import Close, Entry, Insert, InvalidRecord, Record, RecordUpdate, Replace
from auditord_hookspecs.wire import decode_record

_Run: TypeAlias = Sequence[tuple[int, Entry]]


class StoreSink:
    """Implements :class:`auditord_hookspecs.RecordSink` on a record store.

    Args:
        store: where entries go.
        now: the present instant, for entries without provenance.
        duplicates: what a known id means to clients; ``ignore`` also applies to their queued records, as answered then.
        pairing: of the store and the spool that the entries come from; None if they come from elsewhere.
    """

    def __init__(
        self,
        store: RecordStore,
        now: Callable[[], datetime],
        duplicates: Duplicates = Duplicates.SAME_RUN,
        pairing: Pairing | None = None,
    ) -> None:
        self._store = store
        self._now = now
        self._pairing = pairing
        self._ignores = duplicates is Duplicates.IGNORE

    async def deliver(self, entries: Sequence[Entry]) -> Mapping[int, str]:
        """Apply the entries in order; returns why entries were refused for good, by position.

        Entries that may share a transaction do. Entries already stored count as delivered, so a batch may be repeated
        after a fault.

        Raises:
            StoreUnavailable: the database is away; some of the entries may have been applied.
            StoreMismatch: it is not the store that the spool has delivered to before; nothing has been applied.
        """
        if self._pairing is not None:
            await self._pairing.check()
        refused: dict[int, str] = {}
        for run in _runs(entries):
            forbidden = await self._forbidden(run)
            allowed = [(position, entry) for position, entry in run if position not in forbidden]
            reasons = await asyncio.gather(*(self._apply(entry) for _, entry in allowed))
            refused |= forbidden
            refused |= {position: reason for (position, _), reason in zip(allowed, reasons, strict=True) if reason}
        if self._pairing is not None:
            await self._pairing.advance()  # last: a copy of the store that was made before lacks some of the entries
        return refused

    async def _forbidden(self, run: _Run) -> Mapping[int, str]:
        """Why clients may not make changes that they sent while the store could not be read, by position."""
        limited = [(position, entry) for position, entry in run if _limits(entry) is not None]
        if not limited:
            return {}
        stored = await self._store.documents([_id_of(entry) for _, entry in limited])
        return {
            position: f"The stored record {_id_of(entry)!r} is of a site that {_client(entry)} may not change."
            for position, entry in limited
            if (document := stored.get(_id_of(entry))) is not None and not _may_change(entry, decode_record(document))
        }

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
        ignored = self._ignores and is_forwarded(provenance)
        duplicates = Duplicates.IGNORE if ignored else Duplicates.SAME_RUN
        verdict = await self._store.add(entry.record, provenance, duplicates, entry.text)
        if verdict is Verdict.EXISTS and entry.alternate_id is not None:
            # The plain id belongs to a run with another start: a recycled job number, or a requeue.
            other = msgspec.structs.replace(entry.record, record_id=entry.alternate_id)
            verdict = await self._store.add(other, provenance, Duplicates.SAME_RUN)
        if verdict is not Verdict.EXISTS:
            return None
        ids = " and ".join(repr(name) for name in (entry.record.record_id, entry.alternate_id) if name)
        return f"The id {ids} belongs to another run, which started at another time."

    async def _close(self, entry: Close, provenance: Provenance) -> str | None:
        update = RecordUpdate(entry.record_id, (), entry.stop_time)
        if await self._store.stop(update, provenance):
            return None
        return f"There is no record {entry.record_id!r} that could be closed."


def _runs(entries: Sequence[Entry]) -> Iterator[_Run]:
    """Entries that may be applied at the same time, in order.

    They are of one type, and none of them is classified by a stored record that another one of them changes.
    """
    run: list[tuple[int, Entry]] = []
    ids: set[str] = set()
    for position, entry in enumerate(entries):
        if run and not _may_join(entry, run[-1][1], ids):
            yield run
            run, ids = [], set()
        run.append((position, entry))
        ids.add(_id_of(entry))
    if run:
        yield run


def _may_join(entry: Entry, last: Entry, ids: set[str]) -> bool:
    if type(entry) is not type(last) or (_limits(entry) is None) is not (_limits(last) is None):
        return False
    return _limits(entry) is None or _id_of(entry) not in ids


def _limits(entry: Entry) -> object:
    return None if isinstance(entry, Replace) else entry.limits


def _may_change(entry: Entry, stored: Record) -> bool:
    match entry:
        case Insert(limits=limits):
            return any(role.may_write(stored) for role in limits or ())
        case Close(limits=limits):
            return may_update(limits or (), stored)
        case Replace():
            return True


def _id_of(entry: Entry) -> str:
    return entry.record_id if isinstance(entry, Close) else entry.record.record_id


def _client(entry: Entry) -> str:
    return "its sender" if entry.provenance is None else str(entry.provenance.principal)


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
