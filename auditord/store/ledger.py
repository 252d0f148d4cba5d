"""What a sequence of changes makes of what is stored: judged in order and in memory, without any database."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from auditord.store.protocol import Duplicates, Provenance, Verdict
from auditord.store.rows import Offer, make_offer, to_micros
from auditord.store.verdicts import Identity, choose_id, judge, starts_earlier
from auditord_hookspecs import InvalidRecord, Record
from auditord_hookspecs.wire import decode_record

Operation: TypeAlias = Literal["insert", "close", "replace"]
Carried: TypeAlias = tuple[Operation, Offer]
"""A change that senders carry on: the operation, and the record as it is now with its provenance."""


class Addition(msgspec.Struct, frozen=True, gc=False):
    """A record that may be new."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Stop:
    """The stop time of a record that should be there."""

    record_id: str
    stop_time: datetime
    provenance: Provenance
    carried: bool = False


@dataclass(frozen=True, slots=True)
class Replacement:
    """A record that counts whatever is there; under the alternate's id if the plain one is another run's."""

    offer: Offer
    alternate: Offer | None


@dataclass(frozen=True, slots=True)
class Bulk:
    """Many additions in one transaction; if ``atomic``, a single EXISTS undoes all of them."""

    offers: Sequence[Offer]
    atomic: bool


Change: TypeAlias = Addition | Stop | Replacement
Outcome: TypeAlias = Verdict | bool | InvalidRecord
"""A stop says whether there was a record."""


def ids_of(change: Change | Bulk) -> Sequence[str]:
    """The ids that a change looks at."""
    match change:
        case Bulk(offers):
            return [offer.record.record_id for offer in offers]
        case Addition(offer):
            return (offer.record.record_id,)
        case Stop(record_id):
            return (record_id,)
        case Replacement(offer, alternate):
            return (offer.record.record_id, *([alternate.record.record_id] if alternate else []))


def provenance_of(change: Change) -> Provenance:
    """Who wants a change."""
    return change.provenance if isinstance(change, Stop) else change.offer.provenance


def offers_of(change: Change) -> Sequence[Offer]:
    """The records that a change brings."""
    match change:
        case Addition(offer):
            return (offer,)
        case Replacement(offer, alternate):
            return (offer, alternate) if alternate else (offer,)
        case Stop():
            return ()


@dataclass(frozen=True, slots=True)
class Stored:
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


class Ledger:
    """Judges changes one after the other, and keeps what has to be written at the end.

    Args:
        before: what the database has, by id.
    """

    def __init__(self, before: Mapping[str, Stored]) -> None:
        self.before = before
        self.carried: list[Carried] = []
        """What senders must carry on, in order."""
        self.written: dict[str, Offer] = {}
        """The final state of every record that is new or changed."""
        self.settled: set[str] = set()
        """Ids whose differences are to be forgotten."""
        self.differences: dict[tuple[str, int], Offer] = {}
        """What is to be noted as a difference, in order, by id and content."""
        self.replaced: dict[str, Provenance] = {}
        """Stored records that are changed on purpose, and who wants it."""
        self._now: dict[str, Stored] = dict(before)
        self._moved: set[str] = set()  # of the stored ones, those of which nothing but the times changes

    @property
    def new(self) -> Iterable[Offer]:
        """Records that the database does not have."""
        return [offer for record_id, offer in self.written.items() if record_id not in self.before]

    @property
    def overwritten(self) -> Iterable[Offer]:
        """Records that take the place of stored ones."""
        return [
            offer
            for record_id, offer in self.written.items()
            if record_id in self.before and record_id not in self._moved
        ]

    @property
    def moved(self) -> Iterable[Offer]:
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
            case Addition(offer):
                return self._add(offer)
            case Stop():
                return self._stop(change)
            case Replacement(offer, alternate):
                return self._replace(offer, alternate)

    def _add(self, offer: Offer) -> Verdict:
        stored = self._now.get(offer.record.record_id)
        if stored is None:
            self._write(offer)
            self._carry("insert", offer)
            return Verdict.ADDED
        verdict = judge(stored.identity, offer.identity, offer.duplicates)
        if verdict is Verdict.CLOSED:
            self._overwrite(offer)
            self._carry("insert", offer)
        elif verdict is Verdict.DIFFERENT:
            self._note_difference(offer)
        elif verdict is Verdict.SAME and starts_earlier(stored.identity, offer.identity):
            record = msgspec.structs.replace(stored.record, start_time=offer.record.start_time)
            moved = make_offer(record, offer.provenance, offer.duplicates, carried=offer.carried)
            self._move(moved)
            self._carry("insert", moved)
        return verdict

    def _stop(self, change: Stop) -> bool:
        stored = self._now.get(change.record_id)
        if stored is None:
            return False
        if stored.identity.stop != to_micros(change.stop_time):
            record = msgspec.structs.replace(stored.record, stop_time=change.stop_time)
            moved = make_offer(record, change.provenance, Duplicates.SAME_RUN, carried=change.carried)
            self._move(moved)
            self._carry("insert" if stored.identity.stop is None else "close", moved)
        return True

    def _replace(self, wanted: Offer, alternate: Offer | None) -> Verdict:
        offer = wanted if alternate is None else choose_id(wanted, alternate, self._identities(wanted, alternate))
        stored = self._now.get(offer.record.record_id)
        self._overwrite(offer)
        self._carry("insert" if stored is None else "replace", offer)
        if stored is None:
            return Verdict.ADDED
        if stored.identity == offer.identity:
            return Verdict.SAME
        if offer.record.record_id in self.before:
            self.replaced[offer.record.record_id] = offer.provenance
        return Verdict.DIFFERENT

    def _identities(self, *offers: Offer) -> Mapping[str, Identity]:
        ids = [offer.record.record_id for offer in offers]
        return {record_id: self._now[record_id].identity for record_id in ids if record_id in self._now}

    def _overwrite(self, offer: Offer) -> None:
        record_id = offer.record.record_id
        self._write(offer)
        self.settled.add(record_id)
        self.differences = {key: other for key, other in self.differences.items() if key[0] != record_id}

    def _note_difference(self, offer: Offer) -> None:
        key = (offer.record.record_id, offer.identity.content)
        self.differences.pop(key, None)  # the last one counts, at the end
        self.differences[key] = offer

    def _carry(self, operation: Operation, offer: Offer) -> None:
        if offer.carried:
            self.carried.append((operation, offer))

    def _move(self, offer: Offer) -> None:
        record_id = offer.record.record_id
        only_moved = record_id in self.before and (record_id not in self.written or record_id in self._moved)
        self._write(offer)
        if only_moved:
            self._moved.add(record_id)

    def _write(self, offer: Offer) -> None:
        record_id = offer.record.record_id
        self._moved.discard(record_id)
        self.written[record_id] = offer
        self._now[record_id] = Stored(offer.identity, str(offer.row[-1]))
