"""What a sequence of changes makes of what is stored: classified in order and in memory, without any database."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from auditord.store.protocol import Duplicates, Provenance, Verdict
from auditord.store.rows import PendingRecord, make_pending, to_micros
from auditord.store.verdicts import Identity, choose_id, classify, starts_earlier
from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.wire import decode_record

Operation: TypeAlias = Literal["insert", "close", "replace"]
Forwarded: TypeAlias = tuple[Operation, PendingRecord]
"""A change that senders forward: the operation, and the record as it is now with its provenance."""


class Addition(msgspec.Struct, frozen=True, gc=False):
    """A record that may be new."""

    pending: PendingRecord


@dataclass(frozen=True, slots=True)
class Stop:
    """The stop time of a record that should be there."""

    record_id: str
    stop_time: datetime
    provenance: Provenance
    forwarded: bool = False


@dataclass(frozen=True, slots=True)
class Replacement:
    """A record that counts whatever is there; under the alternate's id if the plain one is another run's."""

    pending: PendingRecord
    alternate: PendingRecord | None


@dataclass(frozen=True, slots=True)
class Bulk:
    """Many additions in one transaction; if ``atomic``, a single EXISTS undoes all of them."""

    pending_records: Sequence[PendingRecord]
    atomic: bool


Change: TypeAlias = Addition | Stop | Replacement
Outcome: TypeAlias = Verdict | bool | InvalidRecord
"""A stop says whether there was a record."""


def ids_of(change: Change | Bulk) -> Sequence[str]:
    """The ids that a change looks at."""
    match change:
        case Bulk(pending_records):
            return [pending.record.record_id for pending in pending_records]
        case Addition(pending):
            return (pending.record.record_id,)
        case Stop(record_id):
            return (record_id,)
        case Replacement(pending, alternate):
            return (pending.record.record_id, *([alternate.record.record_id] if alternate else []))


def provenance_of(change: Change) -> Provenance:
    """Who wants a change."""
    return change.provenance if isinstance(change, Stop) else change.pending.provenance


def pending_of(change: Change) -> Sequence[PendingRecord]:
    """The records that a change brings."""
    match change:
        case Addition(pending):
            return (pending,)
        case Replacement(pending, alternate):
            return (pending, alternate) if alternate else (pending,)
        case Stop():
            return ()


@dataclass(frozen=True, slots=True)
class StoredRow:
    """What there is under an id.

    Args:
        identity: what verdicts depend on.
        document: its wire text, where the record may be changed.
    """

    identity: Identity
    document: str | None

    @property
    def record(self) -> Record:
        """The stored record."""
        if self.document is None:
            raise AssertionError("the wire text was not asked for")
        return decode_record(self.document.encode())


class ChangePlan:
    """Classifies changes one after the other, and keeps what has to be written at the end.

    Args:
        before: what the database has, by id.
    """

    def __init__(self, before: Mapping[str, StoredRow]) -> None:
        self.before = before
        self.forwarded: list[Forwarded] = []
        """What senders must forward, in order."""
        self.written: dict[str, PendingRecord] = {}
        """The final state of every record that is new or changed."""
        self.settled: set[str] = set()
        """Ids whose differences are to be forgotten."""
        self.differences: dict[tuple[str, int], PendingRecord] = {}
        """What is to be noted as a difference, in order, by id and content."""
        self.replaced: dict[str, Provenance] = {}
        """Stored records that are changed on purpose, and who wants it."""
        self._now: dict[str, StoredRow] = dict(before)
        self._moved: set[str] = set()  # of the stored ones, those of which nothing but the times changes

    @property
    def new(self) -> Iterable[PendingRecord]:
        """Records that the database does not have."""
        return [pending for record_id, pending in self.written.items() if record_id not in self.before]

    @property
    def overwritten(self) -> Iterable[PendingRecord]:
        """Records that take the place of stored ones."""
        return [
            pending
            for record_id, pending in self.written.items()
            if record_id in self.before and record_id not in self._moved
        ]

    @property
    def moved(self) -> Iterable[PendingRecord]:
        """Stored records that start or stop at another time."""
        return [self.written[record_id] for record_id in self._moved]

    @property
    def touched(self) -> set[str]:
        """Ids of stored records that must not change until this has been written."""
        return (self.written.keys() | {record_id for record_id, _ in self.differences}) & self.before.keys()

    def record(self, record_id: str) -> Record | None:
        """The record under an id as all changes so far leave it."""
        now = self._now.get(record_id)
        return None if now is None else now.record

    def apply(self, change: Change) -> Verdict | bool:
        """The outcome of a change, given all that came before."""
        match change:
            case Addition(pending):
                return self._add(pending)
            case Stop():
                return self._stop(change)
            case Replacement(pending, alternate):
                return self._replace(pending, alternate)

    def _add(self, pending: PendingRecord) -> Verdict:
        stored = self._now.get(pending.record.record_id)
        if stored is None:
            self._write(pending)
            self._forward("insert", pending)
            return Verdict.ADDED
        verdict = classify(stored.identity, pending.identity, pending.duplicates)
        if verdict is Verdict.CLOSED:
            self._overwrite(pending)
            self._forward("insert", pending)
        elif verdict is Verdict.DIFFERENT:
            self._note_difference(pending)
        elif verdict is Verdict.SAME and starts_earlier(stored.identity, pending.identity):
            record = msgspec.structs.replace(stored.record, start_time=pending.record.start_time)
            moved = make_pending(record, pending.provenance, pending.duplicates, forwarded=pending.forwarded)
            self._move(moved)
            self._forward("insert", moved)
        return verdict

    def _stop(self, change: Stop) -> bool:
        stored = self._now.get(change.record_id)
        if stored is None:
            return False
        if stored.identity.stop != to_micros(change.stop_time):
            record = msgspec.structs.replace(stored.record, stop_time=change.stop_time)
            moved = make_pending(record, change.provenance, Duplicates.SAME_RUN, forwarded=change.forwarded)
            self._move(moved)
            self._forward("insert" if stored.identity.stop is None else "close", moved)
        return True

    def _replace(self, wanted: PendingRecord, alternate: PendingRecord | None) -> Verdict:
        pending = wanted if alternate is None else choose_id(wanted, alternate, self._identities(wanted, alternate))
        stored = self._now.get(pending.record.record_id)
        self._overwrite(pending)
        self._forward("insert" if stored is None else "replace", pending)
        if stored is None:
            return Verdict.ADDED
        if stored.identity == pending.identity:
            return Verdict.SAME
        if pending.record.record_id in self.before:
            self.replaced[pending.record.record_id] = pending.provenance
        return Verdict.DIFFERENT

    def _identities(self, *pending_records: PendingRecord) -> Mapping[str, Identity]:
        ids = [pending.record.record_id for pending in pending_records]
        return {record_id: self._now[record_id].identity for record_id in ids if record_id in self._now}

    def _overwrite(self, pending: PendingRecord) -> None:
        record_id = pending.record.record_id
        self._write(pending)
        self.settled.add(record_id)
        self.differences = {key: other for key, other in self.differences.items() if key[0] != record_id}

    def _note_difference(self, pending: PendingRecord) -> None:
        key = (pending.record.record_id, pending.identity.content)
        self.differences.pop(key, None)  # the last one counts, at the end
        self.differences[key] = pending

    def _forward(self, operation: Operation, pending: PendingRecord) -> None:
        if pending.forwarded:
            self.forwarded.append((operation, pending))

    def _move(self, pending: PendingRecord) -> None:
        record_id = pending.record.record_id
        only_moved = record_id in self.before and (record_id not in self.written or record_id in self._moved)
        self._write(pending)
        if only_moved:
            self._moved.add(record_id)

    def _write(self, pending: PendingRecord) -> None:
        record_id = pending.record.record_id
        self._moved.discard(record_id)
        self.written[record_id] = pending
        self._now[record_id] = StoredRow(pending.identity, str(pending.row[-1]))
