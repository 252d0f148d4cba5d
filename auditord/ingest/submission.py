"""Permissions and verdicts for the records of one request, without I/O.

Entries queued in the spool count as stored. A plan of changes applies them before the records of the request.
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
"""The applicable roles; each one suffices on its own. None if everything is allowed."""


def writing_roles(principal: Principal | None) -> Roles:
    """Return the roles by which a principal may write records."""
    if principal is None:
        return None
    roles = principal.having(Permission.WRITE)
    return None if any(role.sites is None and role.prefixes is None for role in roles) else roles


def updating_roles(principal: Principal | None, record_id: str) -> Roles:
    """Return the roles by which a record may be updated, judging by its id alone."""
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
    """Return whether one of the roles covers the stored record. A role cannot update a record that it cannot see."""
    return any(role.may_write(stored) and role.shows(stored) for role in roles)


def depends_on_stored(roles: Roles) -> bool:
    """Return whether the stored record must be checked too. For roles limited only by prefixes, the id is enough."""
    return roles is not None and any(role.sites is not None for role in roles)


def left_to_check(roles: Roles, record: Record) -> Roles:
    """Return the roles to check once the stored record can be read (one must allow the change), or None if no check."""
    if roles is None:
        return None
    writing = tuple(role for role in roles if role.may_write(record))
    return writing if all(role.sites is not None for role in writing) else None


_BETWEEN_PAUSES: Final = 100  # about a millisecond
_FORBIDDEN: Final = "has a site or a prefix that its sender may not write"


class Forbidden(AuditordError):
    """A request exceeds its sender's permissions; the text is only for the audit log.

    Remedy:
        give the role `write`, or matching rows, in access.roles; the log of auditord.audit has the reason.
    """


class Queued(Enum):
    """A record that is durable in the spool while the store cannot be queried for its id."""

    QUEUED = "queued"


QUEUED: Final = Queued.QUEUED

Outcome: TypeAlias = Verdict | Queued | InvalidRecord | Forbidden
"""The outcome for one record. The last two are raised instead if the submission is atomic."""


class Stopped(Enum):
    """The outcome of an update."""

    DONE = "done"
    """The stop time is in the store or, behind queued entries of the record, durably in the spool."""
    MISSING = "missing"
    """There is no such record."""
    HIDDEN = "hidden"
    """There is no record that this client may update. The answer is the same as for MISSING."""


@dataclass(slots=True)
class Submission:
    """The records of a request.

    Args:
        records: by position; records refused for good are removed.
        roles: of the sender.
        duplicates: the rule for known ids.
        atomic: whether all records are accepted or none.
        outcomes: by position.
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
        """Replace each record by the transformed one.

        Raises:
            InvalidRecord: the transform refuses a record, and the submission is atomic.
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
            Forbidden: a record may not be written, and the submission is atomic.
        """
        for position, record in list(self.records.items()):
            if not may_write(self.roles, record, plan.record(record.record_id)):
                self._refuse(position, Forbidden(f"record {record.record_id!r} {_FORBIDDEN}"))

    async def classify(self, plan: ChangePlan, positions: Collection[int]) -> bool:
        """Classify records that follow those in the plan, and return whether any may be kept."""
        for count, position in enumerate(positions):
            await _pause(count)
            self.outcomes[position] = classified(plan, self.records[position], self.provenance, self.duplicates)
        return self.is_possible()

    def is_possible(self) -> bool:
        """Return whether any record may be kept. An atomic submission with a record of another run is refused."""
        if not self.atomic or Verdict.EXISTS not in self.outcomes.values():
            return True
        self.outcomes = dict.fromkeys(self.records, Verdict.EXISTS)
        return False

    def queue(self, positions: Collection[int]) -> Sequence[Insert]:
        """Return entries for the accepted records at these positions."""
        return [self._entry(self.records[at]) for at in positions if self.outcomes[at] is not Verdict.EXISTS]

    def leave_open(self) -> None:
        """Mark new records as queued, since without the store it is unknown whether they are new."""
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
    """Let other tasks run now and then, so that thousands of records do not hold up other requests."""
    if count % _BETWEEN_PAUSES == _BETWEEN_PAUSES - 1:
        await asyncio.sleep(0)


def projected(
    stored: Mapping[str, bytes], waiting: Mapping[str, Sequence[Entry]], provenance: Provenance
) -> ChangePlan:
    """Apply the queued entries to the stored records.

    Args:
        stored: wire texts by id; empty if the store is unavailable, so that only the queued entries count.
        waiting: entries by id, in order.
        provenance: needed for the plan's changes; verdicts do not depend on it.
    """
    plan = ChangePlan({record_id: _stored(document, provenance) for record_id, document in stored.items()})
    for entries in waiting.values():
        for entry in entries:
            _apply(plan, entry, provenance)
    return plan


def classified(plan: ChangePlan, record: Record, provenance: Provenance, duplicates: Duplicates) -> Verdict:
    """Return the verdict about a record that follows the plan's changes, and add the record to the plan."""
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
    """Apply the transform only to the parts of a stored record that a correction changes.

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
