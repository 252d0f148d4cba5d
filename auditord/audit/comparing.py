"""Compare runs of an inventory with the record store, the spool and the quarantine; called by ``auditing``."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from anyio import to_thread

from auditord.audit.values import State
from auditord.spool import Spool
from auditord.store import Duplicates, Provenance, RecordStore, Verdict
from auditord.store.planning import classify
from auditord.store.rows import Identity, make_pending
from auditord_hookspecs import Produced, Record, Transform
from auditord_hookspecs.wire import decode_record, encode_record

_STATES: Final[Mapping[Verdict, State]] = {
    Verdict.SAME: "stored",
    Verdict.CLOSED: "unclosed",
    Verdict.DIFFERENT: "different",
}


class Sides(msgspec.Struct, frozen=True):
    """The places where a run can be stored.

    Args:
        store: the record store.
        spool: send-queue and quarantine.
        senders: the senders to the record store.
        task: the collector.
        transform: the configured transforms, applied before records are compared.
    """

    store: RecordStore
    spool: Spool
    senders: Sequence[str]
    task: str
    transform: Transform | None = None


class ComparedRun(msgspec.Struct, frozen=True):
    """A run of the inventory.

    Args:
        produced: the result of the conversion.
        state: the state of the run.
        record: the record as it would be stored: under its run's id, and transformed.
        stored: the stored record, if it differs.
    """

    produced: Produced
    state: State
    record: Record
    stored: Record | None = None

    @property
    def detail(self) -> str:
        """The fields in which the stored record differs."""
        return "" if self.stored is None else "; ".join(_differences(self.stored, self.record))


class _Known(msgspec.Struct, frozen=True):
    waiting: Collection[str]
    stored: Mapping[str, bytes]
    quarantined: Collection[str]
    deleted: Collection[str]


class Comparer:
    """Compares runs in batches.

    Args:
        sides: the places to search.
        now: any instant; it has no effect on an identity.
        beginning: unstored runs that ended before this are not the collector's task.
    """

    def __init__(self, sides: Sides, now: datetime, beginning: datetime | None) -> None:
        self._sides = sides
        self._provenance = Provenance(now)
        self._beginning = beginning

    async def compare(self, produced: Sequence[Produced]) -> list[ComparedRun]:
        """Return the state of each run."""
        sides = self._sides
        ids = {name for each in produced for name in _ids(each)}
        # Read the queue before the store: an entry that has left the queue has reached the store.
        waiting = await sides.spool.waiting(ids, sides.senders)
        documents = await sides.store.documents(list(ids))
        absent = [name for name in ids if name not in documents]
        source_ids = {each.source_id for each in produced if each.source_id is not None}
        known = _Known(
            waiting,
            documents,
            await sides.spool.quarantine_held([sides.task, *sides.senders], source_ids | ids),
            await sides.store.deleted(absent),
        )
        # In a thread: a thousand records take a while, in which the daemon has requests to answer.
        return await to_thread.run_sync(lambda: [self._compared(each, known) for each in produced])

    def _compared(self, produced: Produced, known: "_Known") -> ComparedRun:
        record = produced.record if self._sides.transform is None else self._sides.transform(produced.record)
        names, offered = _ids(produced), self._identity(record)
        if any(name in known.waiting for name in names):
            return ComparedRun(produced, "queued", record)
        for name in names:
            if name in known.stored:
                stored = decode_record(known.stored[name])
                state = _STATES.get(classify(self._identity(stored), offered, Duplicates.SAME_RUN))
                if state is not None:  # else it is another run's
                    named = msgspec.structs.replace(record, record_id=name)
                    return ComparedRun(produced, state, named, None if state == "stored" else stored)
        return ComparedRun(produced, self._absent(produced, names, known), record)

    def _absent(self, produced: Produced, names: Sequence[str], known: "_Known") -> State:
        stop = produced.record.stop_time
        if produced.source_id in known.quarantined or any(name in known.quarantined for name in names):
            return "quarantined"
        if any(name in known.deleted for name in names):
            return "deleted"
        early = self._beginning is not None and stop is not None and stop < self._beginning
        return "earlier" if early else "missing"

    def _identity(self, record: Record) -> Identity:
        return make_pending(record, self._provenance, Duplicates.SAME_RUN).identity


def _ids(produced: Produced) -> Sequence[str]:
    """Return the ids that the record of a run can have."""
    plain = produced.record.record_id
    return (plain,) if produced.alternate_id in {None, plain} else (plain, str(produced.alternate_id))


def _differences(stored: Record, offered: Record) -> Iterator[str]:
    before, after = (msgspec.json.decode(encode_record(each)) for each in (stored, offered))
    for field in ("start_time", "stop_time", "components", "meta"):
        if before.get(field) != after.get(field):
            here, there = (msgspec.json.encode(each.get(field)).decode() for each in (before, after))
            yield f"{field} {here} here, {there} there"
