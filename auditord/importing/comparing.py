"""A second reading of a source: each record against what the store has under its id, as clients would read it.

This is what an import is believed by, so it rests on nothing that the first reading has said. It is also what a dry run
does: what is missing then would be imported.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from auditord.database.instants import to_micros
from auditord.importing.conversion import BadRow, Conversion, ConvertedRow, convert_page
from auditord.importing.source import Page, Source, in_order
from auditord.importing.units import Units
from auditord.importing.writing import Advanced
from auditord.store import Duplicates, Verdict
from auditord.store.rows import anonymous_hash, content_hash
from auditord.store.verdicts import Identity, classify
from auditord_hookspecs import Record
from auditord_hookspecs.wire import decode_record, encode_record


class ComparedStore(Protocol):
    """The part of :class:`auditord.store.RecordStore` that a comparison needs."""

    async def documents(self, record_ids: Sequence[str]) -> Mapping[str, bytes]:
        """The wire texts of those of the records that the store has."""
        ...

    async def deleted(self, record_ids: Sequence[str]) -> Collection[str]:
        """Those of the records that were deleted there on purpose."""
        ...


class RowState(Enum):
    """The state of a row of the source in the store."""

    SAME = "same"
    """There, with equal times and content; or closed there since."""
    MISSING = "missing"
    DELETED = "deleted"
    """Not there, since it was deleted on purpose."""
    STILL_OPEN = "still open"
    """There without its stop time."""
    DIFFERENT = "different"
    """There with other content or another stop time."""
    OTHER_RUN = "another run"
    """Its id belongs to a record with another start time."""
    OTHER_RUNTIME = "another runtime"
    """There as it is, but AUDITOR kept another runtime than the time from start to stop."""
    UNREADABLE = "unreadable"
    """The row is no valid record."""


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row of the source that the store does not have as it is.

    Args:
        where: the row in the source.
        source: the row's text; of a record, its wire text after the conversion.
        stored: the wire text in the store, if there is one.
    """

    finding: RowState
    where: str
    reason: str
    source: bytes
    stored: bytes | None = None


@dataclass(slots=True)
class Compared:
    """The findings of a comparison."""

    units: Units
    counts: dict[RowState, int] = field(default_factory=lambda: dict.fromkeys(RowState, 0))

    @property
    def rows(self) -> int:
        """The number of rows of the source."""
        return sum(self.counts.values())

    @property
    def problems(self) -> int:
        """The number of those that the store does not have as they are."""
        return self.rows - self.counts[RowState.SAME]


@dataclass(frozen=True, slots=True)
class StoreComparison:
    """Holds records against a store.

    Args:
        cores: components that say how many cores a job had, see :class:`Units`.
    """

    store: ComparedStore
    conversion: Conversion
    cores: Sequence[str]

    async def compare_all(self, source: Source, report: Callable[[RowProblem], None], advanced: Advanced) -> Compared:
        """Read all of the source; every problem is reported, in the order of the source.

        Raises:
            SourceFailed: the source cannot be read to its end.
            StoreUnavailable: the store cannot be asked.
        """
        compared = Compared(Units(self.cores))
        async with source.pages(None) as pages, aclosing(in_order(pages, self._compare)) as done:
            async for page, (good, problems) in done:
                _count(compared, page, problems)
                for each in good:
                    compared.units.add(each.before, each.after)
                for problem in problems:
                    report(problem)
                advanced(len(page.texts), page.fraction)
        return compared

    async def _compare(self, page: Page) -> tuple[list[ConvertedRow], list[RowProblem]]:
        good, bad = convert_page(page, self.conversion)
        ids = [each.after.record_id for each in good]
        stored = await self.store.documents(ids)
        absent = [name for name in ids if name not in stored]
        deleted = await self.store.deleted(absent) if absent else ()
        found = (_problem(page, each, stored, deleted) or _other_runtime(page, each, stored) for each in good)
        return good, [*map(_unreadable, bad), *(problem for problem in found if problem)]


def _count(compared: Compared, page: Page, problems: Sequence[RowProblem]) -> None:
    for problem in problems:
        compared.counts[problem.finding] += 1
    compared.counts[RowState.SAME] += len(page.texts) - len(problems)


def _unreadable(row: BadRow) -> RowProblem:
    return RowProblem(RowState.UNREADABLE, row.where, row.reason, row.text)


def _problem(page: Page, row: ConvertedRow, stored: Mapping[str, bytes], deleted: Collection[str]) -> RowProblem | None:
    record = row.after
    expected, found = encode_record(record), stored.get(record.record_id)
    if found == expected:
        return None  # as nearly always
    where = page.places(row.place)
    if record.record_id in deleted:
        reason = f"{record.record_id} was deleted from the store (auditord records history says why)"
        return RowProblem(RowState.DELETED, where, reason, expected)
    if found is None:
        return RowProblem(RowState.MISSING, where, f"{record.record_id} is not in the store", expected)
    finding, reason = _difference(record, decode_record(found))
    if finding is RowState.SAME:
        return None
    return RowProblem(finding, where, f"{record.record_id}: {reason}", expected, found)


def _other_runtime(page: Page, row: ConvertedRow, stored: Mapping[str, bytes]) -> RowProblem | None:
    """AUDITOR computes the runtime once and keeps it; here it always follows from the times."""
    text, record = page.texts[row.place], row.before
    kept = _kept.decode(text).runtime
    if record.stop_time is None or kept is None or kept == record.runtime:
        return None
    reason = (
        f"{row.after.record_id}: AUDITOR has a runtime of {kept} s, and from start to stop it is {record.runtime} s, "
        "which counts here"
    )
    found = stored[row.after.record_id]
    return RowProblem(RowState.OTHER_RUNTIME, page.places(row.place), reason, text, found)


class _Kept(msgspec.Struct, gc=False):
    """The member of a row that is no part of a record."""

    runtime: Any = None  # Any: AUDITOR's, which nobody has checked


_kept: Final = msgspec.json.Decoder(_Kept)

_WORDS = {
    Verdict.SAME: (RowState.SAME, ""),
    Verdict.CLOSED: (RowState.STILL_OPEN, "the store has it without a stop time"),
    Verdict.DIFFERENT: (RowState.DIFFERENT, "the store has it with other content or another stop time"),
    Verdict.EXISTS: (RowState.OTHER_RUN, "the store has a record of this id with another start time"),
}


def _difference(record: Record, stored: Record) -> tuple[RowState, str]:
    """The members that differ; meta in another order and scores written in another way do not."""
    return _WORDS[classify(_identity(stored), _identity(record), Duplicates.SAME_RUN)]


def _identity(record: Record) -> Identity:
    stop = None if record.stop_time is None else to_micros(record.stop_time)
    return Identity(to_micros(record.start_time), stop, content_hash(record), anonymous_hash(record))
