"""The records that a client sends at once, and what is decided about them."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from auditord.duplicates import Duplicates
from auditord.ingest.outcomes import QUEUED, Forbidden, Outcome
from auditord.ingest.permission import Roles, left_to_check, may_write
from auditord.ingest.projection import classified
from auditord.store import Provenance, Verdict
from auditord.store.planning import ChangePlan
from auditord_hookspecs import Insert, InvalidRecord, Record, Transform

_BETWEEN_PAUSES: Final = 100  # about a millisecond
_FORBIDDEN: Final = "is of a site, or has a prefix, that is not its sender's to write"


@dataclass(slots=True)
class Submission:
    """Records on their way in.

    Args:
        records: by position; what is refused for good is taken out.
        roles: those of the sender.
        provenance: kept beside the records.
        duplicates: what a known id means.
        atomic: whether they go together.
        outcomes: what is decided, by position.
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

    def permit(self, ledger: ChangePlan) -> None:
        """Refuse what the sender may not write, given what is stored.

        Raises:
            Forbidden: that is one of them, and they go together.
        """
        for position, record in list(self.records.items()):
            if not may_write(self.roles, record, ledger.record(record.record_id)):
                self._refuse(position, Forbidden(f"record {record.record_id!r} {_FORBIDDEN}"))

    async def classify(self, ledger: ChangePlan, positions: Collection[int]) -> bool:
        """Decide about records that come behind what the ledger has seen; returns whether any of them may be kept."""
        for count, position in enumerate(positions):
            await _pause(count)
            self.outcomes[position] = classified(ledger, self.records[position], self.provenance, self.duplicates)
        return self.is_possible()

    def decide(self, outcomes: Mapping[int, Outcome]) -> bool:
        """Take the store's outcomes; returns whether any of the others may be kept."""
        self.outcomes |= outcomes
        return self.is_possible()

    def is_possible(self) -> bool:
        """Whether nothing that is decided keeps all of them out; else all are refused."""
        if not self.atomic or Verdict.EXISTS not in self.outcomes.values():
            return True
        self.outcomes = dict.fromkeys(self.records, Verdict.EXISTS)
        return False

    def queue(self, positions: Collection[int]) -> Sequence[Insert]:
        """The entries of those records that are accepted and not in the store."""
        return [self._entry(self.records[at]) for at in positions if self.outcomes[at] is not Verdict.EXISTS]

    def leave_open(self) -> None:
        """Say of new records that they are queued: whether they are new, nobody could see."""
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
