"""The records that a client sends at once, which of them it may write, and the decision about each; no I/O.

Entries queued in the spool count as stored: a plan of changes applies them before the records that come behind them.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from auditord.duplicates import Duplicates
from auditord.store import Provenance, Verdict
from auditord.store.planning import ChangePlan, Replacement, Stop, StoredRow
from auditord.store.rows import PendingRecord, make_pending
from auditord_hookspecs import (
    AuditordError,
    Close,
    Entry,
    Insert,
    InvalidRecord,
    Permission,
    Principal,
    Record,
    Replace,
    Role,
    Transform,
)
from auditord_hookspecs.records import Meta
from auditord_hookspecs.wire import decode_record

Roles: TypeAlias = tuple[Role, ...] | None
"""The roles that count, each for itself; None if everything is allowed."""


def writing_roles(principal: Principal) -> Roles:
    """The roles by which a principal may write records."""
    roles = principal.having(Permission.WRITE)
    return None if any(role.sites is None and role.prefixes is None for role in roles) else roles


def updating_roles(principal: Principal | None, record_id: str) -> Roles:
    """The roles by which a record of this id may be updated, as far as the id says."""
    if principal is None:
        return None
    roles = tuple(role for role in principal.having(Permission.UPDATE) if role.may_write_id(record_id))
    return None if any(role.sites is None and role.rows is None for role in roles) else roles


def may_write(roles: Roles, record: Record, stored: Record | None) -> bool:
    """Return whether one of the roles covers both the record and the stored record of its id.

    A full record closes an open one, and must not close another site's, even if the id's prefix matches.
    """
    if roles is None:
        return True
    return any(role.may_write(record) and (stored is None or role.may_write(stored)) for role in roles)


def may_update(roles: Iterable[Role], stored: Record) -> bool:
    """Return whether one of the roles is about the stored record; one that is not seen is not updated either."""
    return any(role.may_write(stored) and role.shows(stored) for role in roles)


def depends_on_stored(roles: Roles) -> bool:
    """Return whether the stored record decides as well; ids that begin with one's own prefix are one's own."""
    return roles is not None and any(role.sites is not None for role in roles)


def left_to_check(roles: Roles, record: Record) -> Roles:
    """The roles, one must allow the change once the stored record can be read; None if no check is needed."""
    if roles is None:
        return None
    writing = tuple(role for role in roles if role.may_write(record))
    return writing if all(role.sites is not None for role in writing) else None


_BETWEEN_PAUSES: Final = 100  # about a millisecond
_FORBIDDEN: Final = "is of a site, or has a prefix, that is not its sender's to write"


class Forbidden(AuditordError):
    """A request for more than its sender may have; the text is for the audit log alone.

    Remedy:
        give the role `write`, or rows that match, in access.roles; the log of auditord.audit has the reason.
    """


class Queued(Enum):
    """A record that is durable in the spool while the store cannot be asked about its id."""

    QUEUED = "queued"


QUEUED: Final = Queued.QUEUED

Outcome: TypeAlias = Verdict | Queued | InvalidRecord | Forbidden
"""Of one record. The last two are values only where each record counts for itself."""


class Stopped(Enum):
    """The outcome of an update."""

    DONE = "done"
    """The stop time is in the store or, behind queued entries of the record, durably in the spool."""
    MISSING = "missing"
    """There is no such record."""
    HIDDEN = "hidden"
    """There is none that this client may update; the answer is the same as for MISSING."""


@dataclass(slots=True)
class Submission:
    """Records on their way in.

    Args:
        records: by position; records refused for good are taken out.
        roles: those of the sender.
        provenance: kept beside the records.
        duplicates: what a known id means.
        atomic: whether they go together.
        outcomes: the decisions, by position.
    """

    records: dict[int, Record]
    roles: Roles
    provenance: Provenance
    duplicates: Duplicates
    atomic: bool
    outcomes: dict[int, Outcome] = field(default_factory=dict[int, Outcome])

    @property
    def ids(self) -> Collection[str]:
        """The ids of the records."""
        return {record.record_id for record in self.records.values()}

    async def transform(self, transform: Transform) -> None:
        """Put what the transform makes of each record in its place.

        Raises:
            InvalidRecord: it refuses one, and they go together.
        """
        for count, (position, record) in enumerate(list(self.records.items())):
            await _pause(count)
            try:
                self.records[position] = transform(record)
            except InvalidRecord as error:
                self._refuse(position, error)

    def permit(self, plan: ChangePlan) -> None:
        """Refuse records that the sender may not write, given the stored records.

        Raises:
            Forbidden: that is one of them, and they go together.
        """
        for position, record in list(self.records.items()):
            if not may_write(self.roles, record, plan.record(record.record_id)):
                self._refuse(position, Forbidden(f"record {record.record_id!r} {_FORBIDDEN}"))

    async def classify(self, plan: ChangePlan, positions: Collection[int]) -> bool:
        """Decide about records that come behind those in the plan; return whether any of them may be kept."""
        for count, position in enumerate(positions):
            await _pause(count)
            self.outcomes[position] = classified(plan, self.records[position], self.provenance, self.duplicates)
        return self.is_possible()

    def is_possible(self) -> bool:
        """Return whether any may be kept; if an atomic submission has one of another run, all are refused."""
        if not self.atomic or Verdict.EXISTS not in self.outcomes.values():
            return True
        self.outcomes = dict.fromkeys(self.records, Verdict.EXISTS)
        return False

    def queue(self, positions: Collection[int]) -> Sequence[Insert]:
        """The entries of those records that are accepted and not in the store."""
        return [self._entry(self.records[at]) for at in positions if self.outcomes[at] is not Verdict.EXISTS]

    def leave_open(self) -> None:
        """Mark new records as queued: without the store, it is unknown whether they are new."""
        for position, outcome in self.outcomes.items():
            if outcome is Verdict.ADDED:
                self.outcomes[position] = QUEUED

    def _entry(self, record: Record) -> Insert:
        return Insert(record, limits=left_to_check(self.roles, record))

    def _refuse(self, position: int, error: InvalidRecord | Forbidden) -> None:
        if self.atomic:
            raise error
        del self.records[position]
        self.outcomes[position] = error


async def _pause(count: int) -> None:
    """Let others have their turn now and then: thousands of records must not hold up everybody else's requests."""
    if count % _BETWEEN_PAUSES == _BETWEEN_PAUSES - 1:
        await asyncio.sleep(0)


def projected(
    stored: Mapping[str, bytes], waiting: Mapping[str, Sequence[Entry]], provenance: Provenance
) -> ChangePlan:
    """Apply the queued entries to the stored records.

    Args:
        stored: wire texts by id; without those of the store if it is away: then only the queued entries count.
        waiting: entries by id, in order.
        provenance: of the change that is classified; verdicts do not depend on it.
    """
    plan = ChangePlan({record_id: _stored(document, provenance) for record_id, document in stored.items()})
    for entries in waiting.values():
        for entry in entries:
            _apply(plan, entry, provenance)
    return plan


def classified(plan: ChangePlan, record: Record, provenance: Provenance, duplicates: Duplicates) -> Verdict:
    """The verdict about a record that comes behind all that, which it then is a part of."""
    return Verdict(plan.apply(make_pending(record, provenance, duplicates)))


def _stored(document: bytes, provenance: Provenance) -> StoredRow:
    return StoredRow(_pending(decode_record(document), provenance).identity, document.decode())


def _apply(plan: ChangePlan, entry: Entry, provenance: Provenance) -> None:
    match entry:
        case Insert(record, alternate_id):
            verdict = plan.apply(_pending(record, provenance))
            if verdict is Verdict.EXISTS and alternate_id is not None:
                plan.apply(_renamed(record, alternate_id, provenance))
        case Close(record_id, stop_time):
            plan.apply(Stop(record_id, stop_time, provenance))
        case Replace(record, alternate_id):
            alternate = None if alternate_id is None else _renamed(record, alternate_id, provenance)
            plan.apply(Replacement(_pending(record, provenance), alternate))


def _pending(record: Record, provenance: Provenance) -> PendingRecord:
    return make_pending(record, provenance, Duplicates.SAME_RUN)


def _renamed(record: Record, record_id: str, provenance: Provenance) -> PendingRecord:
    return _pending(msgspec.structs.replace(record, record_id=record_id), provenance)


def transformed_once(transform: Transform, record: Record, stored: Record) -> Record:
    """Apply the transform to what a correction changes of a stored record, and to nothing else.

    Raises:
        InvalidRecord: the transform refuses the record.
    """
    changed = transform(record)
    components = record.components if record.components == stored.components else changed.components
    return msgspec.structs.replace(changed, components=components, meta=_meta(changed.meta, record.meta, stored.meta))


def _meta(changed: Meta | None, given: Meta | None, stored: Meta | None) -> Meta | None:
    if given == stored or given is None or changed is None:
        return given if given == stored else changed
    known = stored or {}
    return {
        key: given[key] if key in given and given[key] == known.get(key) else values for key, values in changed.items()
    }
