"""The local record store as a destination of the send-queue, and the generation that pairs a store with a spool.

Neither of the two may treat an entry as done that the other has lost. Collectors do not read again what lies before
their checkpoints in the spool, so a store that is older than the spool (a restored copy), or another store, would
silently lack records for good. Both keep a number, the generation. It grows with every delivery, start and stop, and
twice a minute while clients write records past the spool. It is written to the store once the store has everything that
the number stands for, and then to the spool. If the spool cannot write a number, the store gets no further one until it
can: a daemon that starts accepts a store that is ahead of the spool by at most one.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

import anyio
import msgspec

from auditord.duplicates import Duplicates
from auditord.errors import StoreMismatch
from auditord.ingest.submission import Roles, may_update
from auditord.spool import Generation, Spool
from auditord.store import Provenance, Verdict
from auditord.store.protocol import KnownDaemon, is_forwarded
from auditord.store.store import RecordStore, list_daemons, read_generation
from auditord.store.work import Work
from auditord_hookspecs import Close, Entry, Insert, InvalidRecord, Record, RecordsRejected, RecordUpdate, Replace
from auditord_hookspecs.wire import decode_record
from auditord_hookspecs.wording import counted

_REMEDY: Final = (
    "`auditord restore FOLDER` (with a backup) makes collectors collect the missing records again; or put "
    "back a store and a spool.db that belong together; or accept this pair with `auditord database adopt`, and then "
    "collect the missing records again (`auditord collect NAME --from DATE --to DATE`)."
)

_LOST_SPOOL_REMEDY: Final = (
    "`auditord restore FOLDER` (with a backup) or `auditord restore --without-backup` makes "
    "collectors collect the missing records again; or put spool.db back; or start with a new one: "
    "`auditord database adopt`."
)


class Pairing:
    """A store and a spool that must have matching generations."""

    def __init__(self, store: RecordStore, spool: Spool) -> None:
        self._store = store
        self._spool = spool
        self._lock = anyio.Lock()
        self._writes = 0  # number of writes in every copy of the store with this generation

    async def starts(self, record_ids: Sequence[str]) -> Mapping[str, datetime]:
        """Check that store and spool belong together, and return the start times of stored records by id.

        Raises:
            StoreMismatch: they do not belong together, or one of them is an older copy.
            StoreUnavailable: the store cannot be read.
        """
        async with self._lock:
            own = self._spool.generation
            starts, known = await self._store.starts(record_ids, own.spool_id)
            _require_pair(own.number, known)
            return starts

    async def advance(self) -> None:
        """Advance the store to the next generation, which the spool writes with the entries that it settles next.

        Every copy of the store with this generation has all earlier deliveries.

        Raises:
            StoreMismatch: store and spool do not belong together, or one of them is an older copy.
            StoreUnavailable: store or spool cannot be used; the next call repeats the generation.
        """
        async with self._lock:
            await self._advance()

    async def advance_both(self) -> None:
        """Advance the store's generation, and write it to the spool at once."""
        writes = self._store.writes
        await self.advance()
        await self._spool.keep_generation()
        self._writes = writes

    async def follow_writes(self) -> None:
        """Advance both if records were written since the last time. A copy of the store without them is then older."""
        if self._store.writes != self._writes:
            await self.advance_both()

    async def adopt(self) -> None:
        """Pair store and spool, regardless of their generations."""
        async with self._lock:
            own = self._spool.generation
            known = await self._store.generation(own.spool_id)
            if is_pair(own.number, known):
                await self._advance()
            else:
                number = max(own.number, known) + 1  # no copy of either has this number
                await self._store.advance(own.spool_id, number, adopt=True)
                self._spool.reached = msgspec.structs.replace(own, number=number)
            await self._spool.keep_generation()

    async def _advance(self) -> None:
        """Advance the store to the generation after the one in the spool's file.

        If the store already has that number, the spool failed to write it, and a copy of the store may have the number
        without later deliveries. So the spool writes it first, and the store gets the next one.
        """
        own = self._spool.generation
        known = await self._store.advance(own.spool_id, own.number + 1)
        _require_pair(own.number, known)
        self._spool.reached = msgspec.structs.replace(own, number=own.number + 1)
        if known > own.number:
            await self._spool.keep_generation()
            await self._store.advance(own.spool_id, own.number + 2)
            self._spool.reached = msgspec.structs.replace(own, number=own.number + 2)


def missing_store(lack: str) -> StoreMismatch:
    """Return the error for a store that is missing although the spool was paired with one."""
    return StoreMismatch(f"{_mismatch(1, 0)} ({lack})")


def recognise(own: Generation, host: str, state_dir: Path, now: datetime) -> Work[None]:
    """Raise unless a store may belong to a spool. Changes nothing.

    Raises:
        StoreMismatch: they do not belong together, one is an older copy, or the spool is new and the store knows
            another spool of this host and folder.
    """
    _require_pair(own.number, (yield from read_generation(own.spool_id)))
    if own.number == 0:
        daemons = yield from list_daemons(now)
        refuse_lost_spool([each for each in daemons if each.state.spool_id != own.spool_id], host, state_dir)


def refuse_lost_spool(daemons: Sequence[KnownDaemon], host: str, state_dir: Path) -> None:
    """Raise StoreMismatch if one of a store's daemons was on this host with this folder.

    That daemon's spool is lost, or the daemon runs on another machine with the same host name.
    """
    for each in daemons:
        state = each.state
        if (state.host, state.state_dir) != (host, str(state_dir)):
            continue
        if each.is_running:
            ago = timedelta(seconds=each.age // timedelta(seconds=1))
            raise StoreMismatch(
                f"A daemon with this host name ({host}) and state folder ({state_dir}) reported to the record "
                f"store {ago} ago, but this folder has another spool.db, or none. If that daemon runs on another "
                "machine or in another container, give the two different host names, or let this one start with its "
                "own spool.db: `auditord database adopt`. If it was this daemon, whose spool.db is lost: "
                f"{_LOST_SPOOL_REMEDY}"
            )
        queue = f"the {counted(state.queued, 'entry')} queued in it when it was last seen"
        raise StoreMismatch(
            "The spool.db of this state folder that the record store knows is missing, or was replaced by a new one. "
            "Without its checkpoints, collectors would not collect what they have missed since, and "
            f"{queue if state.queued else 'entries queued in it'} may be lost. {_LOST_SPOOL_REMEDY}"
        )


def is_pair(own: int, known: int) -> bool:
    """Return whether a spool and a store of these generations may belong together.

    The store is ahead if the daemon ended between the store's commit and the spool's.
    """
    return known in {own, own + 1}


def _require_pair(own: int, known: int) -> None:
    if not is_pair(own, known):
        raise StoreMismatch(_mismatch(own, known))


def _mismatch(own: int, known: int) -> str:
    if known == 0:
        return (
            "The record store does not know this state folder's spool.db, which has delivered records to a store: it "
            f"is another store, a newly created one, or a copy made before the first delivery. {_REMEDY}"
        )
    if known < own:
        return (
            f"The record store is an older copy of the one that this state folder's spool.db knows (generation {known} "
            f"of {own}): records written since are missing, and collectors would not collect theirs again. {_REMEDY}"
        )
    return (
        f"This state folder's spool.db is an older copy of the one that the record store knows (generation {own} of "
        f"{known}): its checkpoints are too old, and entries queued since are missing. {_REMEDY}"
    )


_Run: TypeAlias = Sequence[tuple[int, Entry]]


class StoreSink:
    """Implements :class:`auditord_hookspecs.Sender` on a record store.

    Args:
        now: the time of receipt of entries without provenance.
        duplicates: the API's rule for known ids; ``ignore`` also applies to clients' queued records,
            because they were answered by this rule.
        pairing: of the store with the spool that the entries come from; None for entries from elsewhere.
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

    async def send(self, entries: Sequence[Entry]) -> None:
        """Deliver the entries.

        Raises:
            RecordsRejected: some entries are refused permanently.
        """
        if refused := await self.deliver(entries):
            raise RecordsRejected(dict(refused))

    async def deliver(self, entries: Sequence[Entry]) -> Mapping[int, str]:
        """Apply the entries in order, and return the reasons of permanently refused entries by position.

        Entries share a transaction where possible. Entries already stored count as delivered, so a batch can be
        repeated after a fault.

        Raises:
            StoreUnavailable: the database is unavailable; some of the entries may have been applied.
            StoreMismatch: the store is not the one to which the spool has delivered before. Nothing has been applied,
                unless it was exchanged meanwhile.
        """
        refused: dict[int, str] = {}
        for number, run in enumerate(_runs(entries)):
            alternates = [entry.alternate_id for _, entry in run if isinstance(entry, Insert) and entry.alternate_id]
            starts = await self._find_starts(alternates) if alternates or number == 0 else dict[str, datetime]()
            forbidden = await self._find_forbidden(run)
            allowed = [(at, _use_stored_id(entry, starts)) for at, entry in run if at not in forbidden]
            reasons = await asyncio.gather(*(self._apply(entry) for _, entry in allowed))
            refused |= forbidden
            refused |= {position: reason for (position, _), reason in zip(allowed, reasons, strict=True) if reason}
        if self._pairing is not None:
            await self._pairing.advance()  # last: copies of the store made before may lack some of the entries
        return refused

    async def _find_starts(self, record_ids: Sequence[str]) -> Mapping[str, datetime]:
        if self._pairing is not None:
            return await self._pairing.starts(record_ids)
        starts, _ = await self._store.starts(record_ids)
        return starts

    async def _find_forbidden(self, run: _Run) -> Mapping[int, str]:
        """Return the reasons against changes that clients sent while the store could not be read, by position."""
        limited = [(position, entry) for position, entry in run if _limits(entry) is not None]
        if not limited:
            return {}
        stored = await self._store.documents([_id_of(entry) for _, entry in limited])
        forbidden: dict[int, str] = {}
        for position, entry in limited:
            if (document := stored.get(_id_of(entry))) is None:
                continue
            roles, record = _limits(entry) or (), decode_record(document)
            may_write = any(role.may_write(record) for role in roles)
            if not (may_update(roles, record) if isinstance(entry, Close) else may_write):
                client = "its sender" if entry.provenance is None else entry.provenance.principal
                forbidden[position] = (
                    f"The stored record {_id_of(entry)!r} belongs to a site that {client} may not change."
                )
        return forbidden

    async def _apply(self, entry: Entry) -> str | None:
        provenance = entry.provenance or Provenance(self._now())
        try:
            match entry:
                case Insert():
                    ignored = self._ignores and is_forwarded(provenance)
                    duplicates = Duplicates.IGNORE if ignored else Duplicates.SAME_RUN
                    verdict = await self._store.add(entry.record, provenance, duplicates, entry.encoded)
                    if verdict is Verdict.EXISTS and entry.alternate_id is not None:
                        # The plain id belongs to a run with another start: a recycled job number, or a requeue.
                        other = msgspec.structs.replace(entry.record, record_id=entry.alternate_id)
                        verdict = await self._store.add(other, provenance, Duplicates.SAME_RUN)
                    if verdict is not Verdict.EXISTS:
                        return None
                    ids = " and ".join(repr(name) for name in (entry.record.record_id, entry.alternate_id) if name)
                    return f"The id {ids} belongs to another run, which started at another time."
                case Close():
                    update = RecordUpdate(entry.record_id, (), entry.stop_time)
                    if await self._store.stop(update, provenance):
                        return None
                    return f"There is no record {entry.record_id!r} that could be closed."
                case Replace():
                    await self._store.replace(entry.record, provenance, entry.alternate_id)
                    return None
        except InvalidRecord as error:
            return str(error)


def _use_stored_id(entry: Entry, starts: Mapping[str, datetime]) -> Entry:
    """Return the entry, with its alternate id if the run is stored under it.

    The plain id may be free, and the run would be stored twice: if the record of the plain id was deleted, or if
    another collector or configuration exchanges the two ids.
    """
    if not isinstance(entry, Insert) or entry.alternate_id is None:
        return entry
    if starts.get(entry.alternate_id) != entry.record.start_time:
        return entry
    renamed = msgspec.structs.replace(entry.record, record_id=entry.alternate_id)
    return dataclasses.replace(entry, record=renamed, alternate_id=None, encoded=None)


def _runs(entries: Sequence[Entry]) -> Iterator[_Run]:
    """Yield groups of consecutive entries that may be applied concurrently.

    The entries of a group have one type, and none is checked against a stored record that another one changes.
    """
    run: list[tuple[int, Entry]] = []
    ids: set[str] = set()
    for position, entry in enumerate(entries):
        is_limited, last = _limits(entry) is not None, run[-1][1] if run else entry
        if (
            type(entry) is not type(last)
            or is_limited is (_limits(last) is None)
            or (isinstance(entry, Insert) and entry.alternate_id in ids)
            or (is_limited and _id_of(entry) in ids)
        ):
            yield run
            run, ids = [], set()
        run.append((position, entry))
        ids.add(_id_of(entry))
    if run:
        yield run


def _limits(entry: Entry) -> Roles:
    return None if isinstance(entry, Replace) else entry.limits


def _id_of(entry: Entry) -> str:
    return entry.record_id if isinstance(entry, Close) else entry.record.record_id


async def add_each(
    store: RecordStore, records: Sequence[Record], provenance: Provenance, duplicates: Duplicates
) -> Sequence[Verdict | InvalidRecord]:
    """Add records in one transaction, or one by one if the database refuses one of them for good.

    Raises:
        StoreUnavailable: the store is unavailable; some of the records may have been added.
    """
    if not records:
        return ()
    try:
        return await store.add_all(records, provenance, duplicates, atomic=False)
    except InvalidRecord:  # one record was refused, and nothing was added

        async def add(record: Record) -> Verdict | InvalidRecord:
            try:
                return await store.add(record, provenance, duplicates)
            except InvalidRecord as error:
                return error

        return await asyncio.gather(*map(add, records))
