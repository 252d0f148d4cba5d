"""Many records that are added together."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from auditord.duplicates import Duplicates
from auditord.store.rows import Labels, PendingRecord, make_rows
from auditord_hookspecs import Provenance, Record
from auditord_hookspecs.records import Meta

_BETWEEN_PAUSES: Final = 100
"""Records whose rows are made in one go: half a millisecond."""


class Bulk:
    """Records that are added in one transaction. Their rows are made when they are wanted, and only once.

    So a database can be busy with some of them while the next ones are made. Records are known by their identity.

    Args:
        records: all of them.
        score_sets: the number of what the components of each score, if any.
        provenance: who sent them, and when.
        duplicates: what it means if an id is known.
        source: the number of the principal and the agent.
        atomic: whether a single EXISTS undoes all of them.
    """

    def __init__(
        self,
        records: Sequence[Record],
        score_sets: Sequence[int | None],
        provenance: Provenance,
        duplicates: Duplicates,
        *,
        source: int,
        atomic: bool,
    ) -> None:
        self.records = records
        self.ids: Sequence[str] = [each.record_id for each in records]
        self.atomic = atomic
        self._score_sets = {id(each.components): score_set for each, score_set in zip(records, score_sets, strict=True)}
        self._shared = (provenance, duplicates, source)
        self._labels: dict[int, tuple[Labels, Meta | None]] = {}
        self._made: dict[int, PendingRecord] = {}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def are_distinct(self) -> bool:
        """True if no id occurs twice."""
        return len(set(self.ids)) == len(self.ids)

    def pending(self) -> list[PendingRecord]:
        """All of them, in order.

        Raises:
            InvalidRecord: one cannot be encoded, since it got around the checks of :class:`Record`.
        """
        self._make([each for each in self.records if id(each) not in self._made])
        return [self._made[id(each)] for each in self.records]

    async def parts(self, records: Sequence[Record]) -> AsyncGenerator[Sequence[PendingRecord], None]:
        """Yield the rows of some records in parts, in order; other tasks of the loop run between parts.

        Raises:
            InvalidRecord: see :meth:`pending`.
        """
        for first in range(0, len(records), _BETWEEN_PAUSES):
            yield self._make(records[first : first + _BETWEEN_PAUSES])
            await asyncio.sleep(0)

    def _make(self, records: Sequence[Record]) -> list[PendingRecord]:
        shared, score_sets = self._shared, self._score_sets
        made = [
            PendingRecord(record, row, *shared, score_sets[id(record.components)])
            for record, row in zip(records, make_rows(records, self._labels), strict=True)
        ]
        self._made.update(zip(map(id, records), made, strict=True))
        return made
