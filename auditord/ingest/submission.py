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
    Record,
    Replace,
    Role,
    Transform,
)
from auditord_hookspecs.wire import decode_record

Roles: TypeAlias = tuple[Role, ...] | None
"""The applicable roles; each one suffices on its own. None if everything is allowed."""


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


def select_limits(roles: Roles, record: Record) -> Roles:
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
        """Classify records that follow those in the plan, and return the result of :meth:`apply_atomicity`."""
        for count, position in enumerate(positions):
            await _pause(count)
            pending = make_pending(self.records[position], self.provenance, self.duplicates)
            self.outcomes[position] = Verdict(plan.apply(pending))
        return self.apply_atomicity()

    def apply_atomicity(self) -> bool:
        """Refuse all records of an atomic submission if one is of another run; return False if so."""
        if not self.atomic or Verdict.EXISTS not in self.outcomes.values():
            return True
        self.outcomes = dict.fromkeys(self.records, Verdict.EXISTS)
        return False

    def make_entries(self, positions: Collection[int]) -> Sequence[Insert]:
        """Return spool entries for the accepted records at these positions."""
        accepted = [self.records[at] for at in positions if self.outcomes[at] is not Verdict.EXISTS]
        return [Insert(record, limits=select_limits(self.roles, record)) for record in accepted]

    def mark_queued(self) -> None:
        """Mark new records as queued, since without the store it is unknown whether they are new."""
        for position, outcome in self.outcomes.items():
            if outcome is Verdict.ADDED:
                self.outcomes[position] = QUEUED

    def _refuse(self, position: int, error: InvalidRecord | Forbidden) -> None:
        if self.atomic:
            raise error
        del self.records[position]
        self.outcomes[position] = error


async def _pause(count: int) -> None:
    """Let other tasks run now and then, so that thousands of records do not hold up other requests."""
    if count % _BETWEEN_PAUSES == _BETWEEN_PAUSES - 1:
        await asyncio.sleep(0)


def project_changes(
    stored: Mapping[str, bytes], waiting: Mapping[str, Sequence[Entry]], provenance: Provenance
) -> ChangePlan:
    """Apply the queued entries to the stored records.

    Args:
        stored: wire texts by id; empty if the store is unavailable, so that only the queued entries count.
        waiting: entries by id, in order.
        provenance: needed for the plan's changes; verdicts do not depend on it.
    """
    rows = {
        record_id: StoredRow(_pending(decode_record(document), provenance).identity, document.decode())
        for record_id, document in stored.items()
    }
    plan = ChangePlan(rows)
    for entries in waiting.values():
        for entry in entries:
            match entry:
                case Insert(record, alternate_id):
                    verdict = plan.apply(_pending(record, provenance))
                    if verdict is Verdict.EXISTS and alternate_id is not None:
                        plan.apply(_pending(record, provenance, alternate_id))
                case Close(record_id, stop_time):
                    plan.apply(Stop(record_id, stop_time, provenance))
                case Replace(record, alternate_id):
                    alternate = None if alternate_id is None else _pending(record, provenance, alternate_id)
                    plan.apply(Replacement(_pending(record, provenance), alternate))
    return plan


def _pending(record: Record, provenance: Provenance, record_id: str | None = None) -> PendingRecord:
    renamed = record if record_id is None else msgspec.structs.replace(record, record_id=record_id)
    return make_pending(renamed, provenance, Duplicates.SAME_RUN)


def transform_changes(transform: Transform, record: Record, stored: Record) -> Record:
    """Apply the transform only to the parts of a stored record that a correction changes.

    Raises:
        InvalidRecord: the transform refuses the record.
    """
    changed = transform(record)
    components = record.components if record.components == stored.components else changed.components
    given, meta = record.meta, changed.meta
    if given == stored.meta:
        meta = given
    elif given is not None and meta is not None:
        known = stored.meta or {}
        meta = {
            key: given[key] if key in given and given[key] == known.get(key) else values for key, values in meta.items()
        }
    return msgspec.structs.replace(changed, components=components, meta=meta)
