"""The second reading of a source: compare each record with the stored record of its id, as clients would read it.

This verifies an import, so it uses no result of the first reading. A dry run does only this: the missing records are
those that an import would add.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from auditord.database.instants import to_micros
from auditord.importing.writing import Advanced, in_order, transform_page
from auditord.store import Duplicates, Verdict
from auditord.store.planning import classify
from auditord.store.rows import Identity, anonymous_hash, content_hash
from auditord.store.store import RecordStore
from auditord_hookspecs import Importer, ImportPage, InvalidRecord, Record, Transform
from auditord_hookspecs.wire import decode_record, encode_record


class RowState(Enum):
    """The state of a row of the source in the store."""

    SAME = "same"
    """Stored with equal times and content, or closed in the store since."""
    MISSING = "missing"
    DELETED = "deleted"
    """Not stored, because it was deleted on purpose."""
    STILL_OPEN = "still open"
    """Stored without its stop time."""
    DIFFERENT = "different"
    """Stored with other content or another stop time."""
    OTHER_RUN = "another run"
    """The id belongs to a stored record with another start time."""
    OTHER_RUNTIME = "another runtime"
    """Stored unchanged, but the source's runtime differs from the time from start to stop."""
    UNREADABLE = "unreadable"
    """Not a valid record."""


class RowProblem(msgspec.Struct, frozen=True):
    """A row of the source that is not stored unchanged.

    Args:
        where: the row in the source.
        source: the row's text; for a valid record, its wire text after the conversion.
        stored: the wire text in the store, if any.
    """

    finding: RowState
    where: str
    reason: str
    source: bytes
    stored: bytes | None = None


@dataclass(slots=True)
class Compared:
    """The findings of a comparison."""

    counts: dict[RowState, int] = field(default_factory=lambda: dict.fromkeys(RowState, 0))

    @property
    def rows(self) -> int:
        return sum(self.counts.values())


class StoreComparison(msgspec.Struct, frozen=True):
    """Compares records with a store.

    Args:
        store: None if it does not exist yet and so has no records.
        transform: applied to every record before it is stored.
    """

    store: RecordStore | None
    transform: Transform | None = None

    async def compare_all(
        self, importer: Importer, report: Callable[[RowProblem], None], advanced: Advanced
    ) -> Compared:
        """Read the whole source and report every problem, in the order of the source.

        Raises:
            AuditordError: the source cannot be read to its end, or the store cannot be read.
        """
        compared = Compared()
        async with aclosing(in_order(importer.pages(None), self._compare)) as done:
            async for page, problems in done:
                for problem in problems:
                    compared.counts[problem.finding] += 1
                    report(problem)
                compared.counts[RowState.SAME] += len(page.records) - len(problems)
                advanced(len(page.records), page.fraction)
        return compared

    async def _compare(self, page: ImportPage) -> list[RowProblem]:
        records = transform_page(page, self.transform)
        ids = [each.record_id for each in records if isinstance(each, Record)]
        stored: Mapping[str, bytes] = {} if self.store is None else await self.store.documents(ids)
        absent = [name for name in ids if name not in stored]
        deleted = await self.store.find_deleted(absent) if self.store is not None and absent else ()
        found = (_problem(page, place, each, stored, deleted) for place, each in enumerate(records))
        return [problem for problem in found if problem]


def _problem(
    page: ImportPage,
    place: int,
    record: Record | InvalidRecord,
    stored: Mapping[str, bytes],
    deleted: Collection[str],
) -> RowProblem | None:
    if isinstance(record, InvalidRecord):
        row = page.row(place)
        return RowProblem(RowState.UNREADABLE, row.where, str(record), row.text)
    expected, found = encode_record(record), stored.get(record.record_id)
    if found == expected:
        return _other_runtime(page, place, record, expected)  # the usual case
    where = page.row(place).where
    if record.record_id in deleted:
        reason = f"{record.record_id} was deleted from the store (auditord records history says why)"
        return RowProblem(RowState.DELETED, where, reason, expected)
    if found is None:
        return RowProblem(RowState.MISSING, where, f"{record.record_id} is not in the store", expected)
    finding, reason = _WORDS[classify(_identity(decode_record(found)), _identity(record), Duplicates.SAME_RUN)]
    if finding is RowState.SAME:
        return _other_runtime(page, place, record, found)
    return RowProblem(finding, where, f"{record.record_id}: {reason}", expected, found)


def _other_runtime(page: ImportPage, place: int, record: Record, stored: bytes) -> RowProblem | None:
    said = page.runtimes[place] if page.runtimes else None
    if record.stop_time is None or said is None or said == record.runtime:
        return None
    reason = (
        f"{record.record_id}: the source has a runtime of {said} s, but from start to stop it is {record.runtime} s; "
        "the latter counts"
    )
    row = page.row(place)
    return RowProblem(RowState.OTHER_RUNTIME, row.where, reason, row.text, stored)


_WORDS = {
    Verdict.SAME: (RowState.SAME, ""),
    Verdict.CLOSED: (RowState.STILL_OPEN, "the stored record has no stop time"),
    Verdict.DIFFERENT: (RowState.DIFFERENT, "the stored record has other content or another stop time"),
    Verdict.EXISTS: (RowState.OTHER_RUN, "the store has a record of this id with another start time"),
}


def _identity(record: Record) -> Identity:
    stop = None if record.stop_time is None else to_micros(record.stop_time)
    return Identity(to_micros(record.start_time), stop, content_hash(record), anonymous_hash(record))
