"""Records that move into the archive, and back: each is in the database or in the archive, at every moment.

The archive is a table of its own (:mod:`auditord.archive`), which cannot take part in a transaction of this database.
So its rows come in numbered chunks, and this database says up to which chunk, and of which snapshot, they count: one
transaction deletes the records of a chunk and makes the chunk count. Rows whose record is another one by then, or has
come back, are named in ``archive_removals`` and count no more.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec

from auditord.database.instants import from_micros, to_micros
from auditord.errors import StoreUnavailable
from auditord.store.archived import ArchivedRecord, ArchiveOvertaken, ArchiveState, Counted, Removal
from auditord.store.feed import passed_by_all
from auditord.store.rows import PendingRecord, make_row
from auditord.store.work import Rows, Work, as_json, ask, for_each, records

Pair: TypeAlias = tuple[ArchivedRecord, PendingRecord]
"""An archived record, and what is stored when it comes back."""

EARLIEST: Final = datetime(1, 1, 1, tzinfo=UTC)
"""No record stopped before."""


class Identified(msgspec.Struct, frozen=True, gc=False):
    """An archived record in the index of ids."""

    record_id: str
    start_time: datetime
    stop_time: datetime
    content: int
    chunk: int
    position: int


class _Restored(msgspec.Struct, frozen=True, gc=False):
    record_id: str
    position: int
    updated_at: datetime | None


def read_state(statement: str = "archive_state") -> Work[ArchiveState]:
    """The state of the archive."""
    (row,) = yield from ask(statement)
    *numbers, first, last = row
    return ArchiveState(*numbers, *[None if stop is None else from_micros(stop) for stop in (first, last)])


def read_removals() -> Work[Sequence[Removal]]:
    """The rows of the archive's table that count no more."""
    return [Removal(*row) for row in (yield from ask("list_removals"))]


def read_counted() -> Work[Counted]:
    """The rows of the archive's table that count."""
    state = yield from read_state()
    return Counted(state, frozenset((yield from read_removals())) if state.archive_id else frozenset())


def begin(archive_id: str, location: str) -> Work[ArchiveState]:
    """Note which table is the archive, unless one is known already; returns the state."""
    state = yield from read_state("lock_archive")
    if not state.archive_id:
        yield from ask("begin_archive", archive_id=archive_id, location=location)
        state = yield from read_state()
    return state


def list_archivable(
    before: datetime, sites: Mapping[str, datetime], after: tuple[datetime, str] | None, limit: int
) -> Work[Rows]:
    """Rows of finished records that stopped before their instant, behind one of them, in the order of their stops."""
    stop, record_id = after or (EARLIEST, "")
    latest, micros = max([before, *sites.values()]), as_json({site: to_micros(each) for site, each in sites.items()})
    borders = {"before": before, "latest": latest, "sites": micros, "after_stop": stop, "after_id": record_id}
    return (yield from ask("list_archivable", **borders, limit=limit))


def publish(chunk: Sequence[ArchivedRecord], previous: int, snapshot_id: int, sequence: int) -> Work[int]:
    """Let a chunk count; see :meth:`auditord.store.protocol.RecordStore.publish_chunk`.

    Raises:
        ArchiveOvertaken: another process has gone on with the archive.
        StoreUnavailable: a consumer of the feed has yet to read one of the records.
    """
    state = yield from read_state("lock_archive")
    yield from ask("hold_records")  # behind it: those who bring records back take the locks in this order
    number = chunk[0].chunk
    if state.chunk != previous:
        raise ArchiveOvertaken(f"chunk {number} of the archive does not follow chunk {state.chunk}: try again")
    copies = {each.record.record_id: each for each in chunk}
    rows = yield from ask("lock_archivable", ids=as_json(sorted(copies)))
    gone = {row[0]: row for row in rows if _is_equal(copies[row[0]], document=row[4], updated_at=row[6])}
    passed = yield from passed_by_all()
    if any(row[5] > passed for row in gone.values()):
        raise StoreUnavailable("the records are still being read by a consumer of the feed: archive later")
    if gone:
        yield from ask("delete_records", ids=as_json(sorted(gone)))
    moved = [_identified(copies[record_id], row[3], row[5]) for record_id, row in sorted(gone.items())]
    yield from for_each("put_archived", moved)
    yield from for_each("put_removals", [Removal(each, number) for each in sorted(copies.keys() - gone.keys())])
    stops = [each.stop_time for each in chunk]
    beside = sum(make_row(copies[record_id].record).more is not None for record_id in gone)
    counts = {"records": len(gone), "beside_rollups": beside}
    yield from ask("note_chunk", chunk=number, first_stop=min(stops), last_stop=max(stops), **counts)
    yield from ask("note_snapshot", snapshot_id=snapshot_id, sequence=sequence)
    return len(gone)


def forget_removals(removals: Sequence[Removal], snapshot_id: int, sequence: int) -> Work[None]:
    """Note a snapshot in which rows that did not count are there no more."""
    yield from read_state("lock_archive")  # first, as all who change rows of it
    yield from for_each("forget_removals", removals)
    yield from ask("note_snapshot", snapshot_id=snapshot_id, sequence=sequence)


def find_archived(record_ids: Collection[str]) -> Work[Sequence[Removal]]:
    """Those of the records that are in the archive, with their chunks."""
    rows = yield from ask("find_archived", ids=as_json(sorted(record_ids)))
    return [Removal(*row) for row in rows]


def restore(copies: Sequence[Pair]) -> Work[int]:
    """Put records back that are still in the archive as they were read there; returns how many."""
    yield from read_state("lock_archive")
    rows = yield from ask("lock_archived", ids=as_json(sorted(copy.record.record_id for copy, _ in copies)))
    there = {Removal(record_id, chunk): position for record_id, chunk, position in rows}
    back = [(copy, pending) for copy, pending in copies if Removal(pending.record_id, copy.chunk) in there]
    ids = sorted(pending.record_id for _, pending in back)
    yield from ask("forget_archived", ids=as_json(ids))
    beside = sum(pending.row.more is not None for _, pending in back)
    yield from ask("note_fewer_archived", records=len(ids), beside_rollups=beside)
    yield from records("insert_records", sorted((pending for _, pending in back), key=lambda each: each.record_id))
    gone = [Removal(copy.record.record_id, copy.chunk) for copy, _ in back]
    # Under the former positions: consumers have had these records.
    restored = [
        _Restored(each.record_id, there[each], copy.updated_at) for each, (copy, _) in zip(gone, back, strict=True)
    ]
    yield from for_each("restore_records", restored)
    yield from for_each("put_removals", gone)
    return len(back)


def _is_equal(copy: ArchivedRecord, *, document: str, updated_at: int | None) -> bool:
    return copy.document == document and updated_at == (None if copy.updated_at is None else to_micros(copy.updated_at))


def _identified(copy: ArchivedRecord, content: int, position: int) -> Identified:
    record = copy.record
    return Identified(record.record_id, record.start_time, copy.stop_time, content, copy.chunk, position)
