"""Plans of changes: work out outcomes and writes in memory, in order, for every database."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from auditord.database.instants import to_micros
from auditord.duplicates import Duplicates
from auditord.store.amendments import COLLECTED_AGAIN, STOPPED_AGAIN, Action, Amended, Amendment
from auditord.store.protocol import Verdict, is_forwarded
from auditord.store.rows import Bulk, Identity, PendingRecord, make_pending
from auditord_hookspecs import InvalidRecord, Provenance, Record
from auditord_hookspecs.wire import decode_record

Operation: TypeAlias = Literal["insert", "close", "replace"]


class Stop(msgspec.Struct, frozen=True):
    """A new stop time for a stored record."""

    record_id: str
    stop_time: datetime
    provenance: Provenance
    origin: int = 0


class Replacement(msgspec.Struct, frozen=True):
    """A record that replaces the stored one, or is stored as ``alternate`` if its id belongs to another run."""

    pending: PendingRecord
    alternate: PendingRecord | None


class Correction(msgspec.Struct, frozen=True):
    """A deliberate change of a record.

    Args:
        pending: the new record; None deletes the stored one.
        origin: the number of the principal and the agent.
    """

    amendment: Amendment
    pending: PendingRecord | None
    provenance: Provenance
    origin: int = 0


Change: TypeAlias = PendingRecord | Stop | Replacement | Correction
"""A plain record is to be added, if it is new."""


class IsReleased(Exception):
    """A released record cannot be changed in the lake: it must be recalled into the database first."""

    def __init__(self, record_id: str) -> None:
        super().__init__(f"the record {record_id!r} is released to the lake")
        self.record_id = record_id


Outcome: TypeAlias = Verdict | bool | Amended | InvalidRecord | IsReleased
"""The outcome of a stop is a bool: whether the record exists."""


def ids_of(change: Change | Bulk) -> Sequence[str]:
    """Return the ids of the records that a change depends on."""
    match change:
        case Bulk():
            return change.ids
        case PendingRecord():
            return (change.record_id,)
        case Replacement(pending, alternate):
            return [each.record_id for each in (pending, alternate) if each is not None]
        case Stop(record_id):
            return (record_id,)
        case Correction(amendment):
            return (amendment.record_id,)


class StoredRow(msgspec.Struct, frozen=True):
    """A stored record.

    Args:
        document: the wire text; may be None if the record cannot be changed.
        release: the number of its release, if it is released.
    """

    identity: Identity
    document: str | None
    release: int | None = None

    @property
    def text(self) -> str:
        """The wire text, which must have been read."""
        if self.document is None:
            raise AssertionError("the wire text was not asked for")
        return self.document

    @property
    def record(self) -> Record:
        return decode_record(self.text.encode())


class KeptVersion(msgspec.Struct, frozen=True, gc=False):
    """A former version of a record, and the deliberate change that replaced it."""

    record_id: str
    action: str
    reason: str
    changed_at: datetime
    changed_by: int


class Removed(msgspec.Struct, frozen=True, gc=False):
    """A record whose stored version is to be removed, and the operation that senders forward for it, if any.

    Args:
        operation: at the destination.
        changed_by: the number of the origin that made the change.
    """

    record_id: str
    operation: Operation | None = None
    changed_at: datetime | None = None
    changed_by: int | None = None


class ChangePlan:
    """Applies changes in order, and collects the rows to be written at the end.

    Args:
        before: the stored rows by id.
    """

    def __init__(self, before: Mapping[str, StoredRow]) -> None:
        self.before = before
        self.forwarded: dict[str, Removed] = {}
        """The changes that senders forward, by id, as far as the stored record does not show them."""
        self.settled: set[str] = set()
        """Ids whose differences are to be forgotten."""
        self.differences: dict[tuple[str, int], PendingRecord] = {}
        """Records to be noted as differences, in order, by id and content."""
        self.kept: dict[str, KeptVersion] = {}
        """Stored records whose former versions are to be kept."""
        self.removed: set[str] = set()
        """Ids of stored records that are to be deleted."""
        self._written: dict[str, PendingRecord] = {}  # the final state of every record that is new or changed
        self._now: dict[str, StoredRow] = dict(before)
        self._moved: set[str] = set()  # ids of stored records that change only their times

    @property
    def new(self) -> Sequence[PendingRecord]:
        """Records that the database does not have, in the order of ids."""
        return [pending for record_id, pending in sorted(self._written.items()) if record_id not in self.before]

    @property
    def overwritten(self) -> Sequence[PendingRecord]:
        """Records that take the place of stored ones, in the order of ids."""
        replaced = self._written.keys() & self.before.keys() - self._moved
        return [self._written[record_id] for record_id in sorted(replaced)]

    @property
    def changed(self) -> Sequence[str]:
        """Ids of stored records that are overwritten or deleted, in order."""
        return sorted(self._written.keys() & self.before.keys() | self.removed)

    @property
    def moved(self) -> Sequence[PendingRecord]:
        """Stored records that start or stop at another time, in the order of ids."""
        return [self._written[record_id] for record_id in sorted(self._moved)]

    @property
    def touched(self) -> set[str]:
        """Ids of stored records that must not change until the plan has been written."""
        differing = {record_id for record_id, _ in self.differences}
        changeable = {record_id for record_id, row in self.before.items() if row.release is None}
        return (self._written.keys() | differing | self.removed) & changeable

    def record(self, record_id: str) -> Record | None:
        """Return the record with an id, after all changes so far."""
        now = self._now.get(record_id)
        return None if now is None else now.record

    def apply(self, change: Change) -> Outcome:
        """Apply a change on top of the previous ones, and return its outcome.

        Raises:
            IsReleased: a correction is about a released record. Corrections are made all or none.
        """
        try:
            match change:
                case PendingRecord():
                    return self._add(change)
                case Stop():
                    return self._stop(change)
                case Replacement(pending, alternate):
                    return self._replace(pending, alternate)
                case Correction():
                    return self._correct(change)
        except IsReleased as error:
            if isinstance(change, Correction):
                raise
            return error

    def _add(self, pending: PendingRecord) -> Verdict:
        stored = self._now.get(pending.record_id)
        if stored is None:
            self._write(pending)
            self._forward("insert", pending)
            return Verdict.ADDED
        verdict = classify(stored.identity, pending.identity, pending.duplicates)
        if verdict is Verdict.CLOSED:
            self._overwrite(pending)
            self._forward("insert", pending)
        elif verdict is Verdict.DIFFERENT:
            key = (pending.record_id, pending.identity.content)
            self.differences.pop(key, None)  # the last one counts, at the end
            self.differences[key] = pending
        elif verdict is Verdict.SAME and starts_earlier(stored.identity, pending.identity):
            self._forward("insert", self._move(pending, start_time=pending.record.start_time))
        return verdict

    def _stop(self, change: Stop) -> bool:
        stored = self._now.get(change.record_id)
        if stored is None:
            return False
        if stored.identity.stop != to_micros(change.stop_time):
            _require_database(change.record_id, stored)
            moved = self._move(change, stop_time=change.stop_time)
            if change.record_id in self.before and self.before[change.record_id].identity.stop is not None:
                changed_at = change.provenance.received_at
                self._keep(change.record_id, Action.CORRECT, STOPPED_AGAIN, changed_at, change.origin)
            self._forward("insert" if stored.identity.stop is None else "close", moved)
        return True

    def _replace(self, wanted: PendingRecord, alternate: PendingRecord | None) -> Verdict:
        pending = wanted
        if alternate is not None:  # under the id that its run already has; else its own id, unless another run has it
            known = [each for each in (wanted, alternate) if each.record_id in self._now]
            same = [each for each in known if self._now[each.record_id].identity.start == each.row.start_time]
            pending = same[0] if same else alternate if wanted in known else wanted
        stored = self._now.get(pending.record_id)
        if stored is not None and stored.release is not None and stored.identity == pending.identity:
            return Verdict.SAME
        _require_database(pending.record_id, stored)
        self._overwrite(pending)
        self._forward("insert" if stored is None else "replace", pending)
        if stored is None:
            return Verdict.ADDED
        if stored.identity == pending.identity:
            return Verdict.SAME
        if pending.record_id in self.before:
            changed_at = pending.provenance.received_at
            self._keep(pending.record_id, Action.CORRECT, COLLECTED_AGAIN, changed_at, pending.origin)
        return Verdict.DIFFERENT

    def _correct(self, change: Correction) -> Amended:
        amendment, pending = change.amendment, change.pending
        stored = self._now.get(amendment.record_id)
        if stored is None:
            return Amended.MISSING
        _require_database(amendment.record_id, stored)
        if stored.text.encode() != amendment.stored:
            return Amended.CHANGED
        if pending is not None and pending.row.document == stored.document:
            return Amended.SAME
        changed_at = change.provenance.received_at
        self._keep(amendment.record_id, amendment.action, amendment.reason, changed_at, change.origin)
        if pending is None:
            self.removed.add(amendment.record_id)
            self.forwarded.pop(amendment.record_id, None)  # no protocol has a request for it
            self._settle(amendment.record_id)
            del self._now[amendment.record_id]
        else:
            self._overwrite(pending)
            before, after = stored.record, pending.record
            operation: Operation = "replace"
            if after.stop_time is not None and msgspec.structs.replace(before, stop_time=after.stop_time) == after:
                operation = "insert" if before.stop_time is None else "close"
            self._forward(operation, pending)
        return Amended.DONE

    def _keep(self, record_id: str, action: Action, reason: str, changed_at: datetime, changed_by: int) -> None:
        self.kept[record_id] = KeptVersion(record_id, action.value, reason, changed_at, changed_by)

    def _overwrite(self, pending: PendingRecord) -> None:
        self._write(pending)
        self._settle(pending.record_id)

    def _settle(self, record_id: str) -> None:
        self.settled.add(record_id)
        self.differences = {key: other for key, other in self.differences.items() if key[0] != record_id}

    def _forward(self, operation: Operation, pending: PendingRecord) -> None:
        """Note the operation that senders forward, combined with those of earlier changes of the record."""
        record_id = pending.record_id
        before = self.forwarded.get(record_id)
        if not is_forwarded(pending.provenance):
            return
        if before is not None and before.operation != operation:
            operation = "insert" if record_id not in self.before else "replace"
        self.forwarded[record_id] = Removed(record_id, operation, pending.provenance.received_at, pending.origin)

    def _move(self, by: PendingRecord | Stop, **times: datetime) -> PendingRecord:
        """Change the times of a record and nothing else."""
        record_id = by.record_id
        record = msgspec.structs.replace(self._now[record_id].record, **times)
        written = self._written.get(record_id)
        score_set = None if written is None else written.score_set  # a stored record keeps its own
        moved = make_pending(record, by.provenance, Duplicates.SAME_RUN, origin=by.origin, score_set=score_set)
        only_moved = record_id in self.before and (written is None or record_id in self._moved)
        self._write(moved)
        if only_moved:
            self._moved.add(record_id)
        return moved

    def _write(self, pending: PendingRecord) -> None:
        record_id = pending.record_id
        self._moved.discard(record_id)
        self._written[record_id] = pending
        self._now[record_id] = StoredRow(pending.identity, pending.row.document)


def _require_database(record_id: str, stored: StoredRow | None) -> None:
    if stored is not None and stored.release is not None:
        raise IsReleased(record_id)


def classify(stored: Identity, offered: Identity, duplicates: Duplicates) -> Verdict:
    """Return the verdict about a record whose id is already stored.

    CLOSED means that the new record replaces the stored one, DIFFERENT that the difference is noted, SAME that nothing
    is done, with one exception: if an open record arrives again, the earlier start counts; see :func:`starts_earlier`.
    """
    if duplicates is Duplicates.REFUSE:
        return Verdict.EXISTS
    if offered == stored or _came_back(stored, offered):
        return Verdict.SAME
    if offered.start != stored.start:
        return Verdict.DIFFERENT if duplicates is Duplicates.IGNORE else Verdict.EXISTS
    if offered.stop is not None and stored.stop is None:
        return Verdict.CLOSED
    is_late = offered.stop is None and stored.stop is not None  # the run's end is already known
    if is_late or (offered.anonymous == stored.content and offered.stop == stored.stop):  # the stored one is redacted
        return Verdict.SAME
    return Verdict.DIFFERENT


def starts_earlier(stored: Identity, offered: Identity) -> bool:
    """Return whether an open record that arrived again has an earlier start, since deliveries may be out of order."""
    return _came_back(stored, offered) and offered.start < stored.start


def _came_back(stored: Identity, offered: Identity) -> bool:
    return stored.stop is None and offered.stop is None and stored.content == offered.content
