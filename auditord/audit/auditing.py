"""Audit one collector: compare its source's inventory batch by batch, then find surplus stored records.

The collector keeps running, and may be about to store runs that seem to be missing. So the audit looks for them again
between two runs of the collector, and repairs them there. The inventory can name millions of ids, so they are kept on
disk.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec
from anyio import to_thread

from auditord.audit.values import FAULTS, AuditReport, AuditRequest, DayCounts, Discrepancy, State
from auditord.database.instants import EPOCH
from auditord.spool import Spool
from auditord.store import Duplicates, Provenance, Verdict
from auditord.store.planning import classify
from auditord.store.rows import Identity, make_pending
from auditord.store.store import RecordStore
from auditord_hookspecs import (
    AuditordError,
    Batch,
    Close,
    Entry,
    Produced,
    Quarantined,
    Record,
    RecordQuery,
    Transform,
)
from auditord_hookspecs.kinds import Reach
from auditord_hookspecs.query import Order, SortField, match_stopped
from auditord_hookspecs.wire import decode_record, encode_record, format_time

_STATES: Final[Mapping[Verdict, State]] = {
    Verdict.SAME: "stored",
    Verdict.CLOSED: "unclosed",
    Verdict.DIFFERENT: "different",
}


class Sides(msgspec.Struct, frozen=True):
    """The places where a run can be stored.

    Args:
        spool: send-queue and quarantine.
        senders: the senders to the record store.
        task: the collector.
        transform: the configured transforms, applied before records are compared.
    """

    store: RecordStore
    spool: Spool
    senders: Sequence[str]
    task: str
    transform: Transform | None = None


class ComparedRun(msgspec.Struct, frozen=True):
    """A run of the inventory.

    Args:
        produced: the result of the conversion.
        record: the record as it would be stored: under its run's id, and transformed.
        stored: the stored record, if it differs.
    """

    produced: Produced
    state: State
    record: Record
    stored: Record | None = None

    @property
    def detail(self) -> str:
        """The fields in which the stored record differs."""
        if self.stored is None:
            return ""
        before, after = (msgspec.json.decode(encode_record(each)) for each in (self.stored, self.record))
        differing: list[str] = []
        for member in ("start_time", "stop_time", "components", "meta"):
            if before.get(member) != after.get(member):
                here, there = (msgspec.json.encode(each.get(member)).decode() for each in (before, after))
                differing.append(f"{member}: {here} stored, {there} in the source")
        return "; ".join(differing)


class _Known(msgspec.Struct, frozen=True):
    """Known ids among those of some runs.

    Args:
        beginning: unstored runs that ended before this are not the collector's task.
    """

    waiting: Mapping[str, Sequence[Entry]]
    stored: Mapping[str, bytes]
    quarantined: Collection[str]
    deleted: Collection[str]
    transform: Transform | None
    beginning: datetime | None

    def compare(self, produced: Produced) -> ComparedRun:
        record = produced.record if self.transform is None else self.transform(produced.record)
        names, offered = _ids(produced), _identity(record)
        entries = [entry for name in names for entry in self.waiting.get(name, ())]
        if any(isinstance(entry, Close) or entry.record.start_time == record.start_time for entry in entries):
            return ComparedRun(produced, "queued", record)
        for name in names:
            if name in self.stored:
                stored = decode_record(self.stored[name])
                state = _STATES.get(classify(_identity(stored), offered, Duplicates.SAME_RUN))
                if state is not None:  # else the id belongs to another run
                    named = msgspec.structs.replace(record, record_id=name)
                    return ComparedRun(produced, state, named, None if state == "stored" else stored)
        stop = produced.record.stop_time
        absence: State = "missing"
        if any(name in self.quarantined for name in (produced.source_id, *names)):
            absence = "quarantined"
        elif any(name in self.deleted for name in names):
            absence = "deleted"
        elif self.beginning is not None and stop is not None and stop < self.beginning:
            absence = "earlier"
        return ComparedRun(produced, absence, record)


async def compare_runs(produced: Sequence[Produced], sides: Sides, beginning: datetime | None) -> list[ComparedRun]:
    ids = {name for each in produced for name in _ids(each)}
    # Read the queue before the store: an entry that has left the queue has reached the store.
    waiting = await sides.spool.waiting(ids, sides.senders)
    documents = await sides.store.documents(list(ids))
    source_ids = {each.source_id for each in produced if each.source_id is not None}
    held = await sides.spool.quarantine_held([sides.task, *sides.senders], source_ids | ids)
    deleted = await sides.store.find_deleted([name for name in ids if name not in documents])
    known = _Known(waiting, documents, held, deleted, sides.transform, beginning)
    # In a thread: a thousand records take a while, and the daemon has requests to answer.
    return await to_thread.run_sync(lambda: list(map(known.compare, produced)))


def _identity(record: Record) -> Identity:
    return make_pending(record, Provenance(EPOCH), Duplicates.SAME_RUN).identity  # the provenance has no effect


def _ids(produced: Produced) -> Sequence[str]:
    """Return the ids that the record of a run can have."""
    plain = produced.record.record_id
    return (plain,) if produced.alternate_id in {None, plain} else (plain, str(produced.alternate_id))


_LISTED: Final = 1_000
_ANONYMOUS: Final = ""  # SQLite's name of a temporary database, which writes to a file only what does not fit in memory


class NamedIds:
    """The record ids, runs and quarantined jobs that the inventory has named."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE named (record_id TEXT PRIMARY KEY) WITHOUT ROWID")

    @classmethod
    @contextmanager
    def opened(cls) -> Generator["NamedIds", None, None]:
        """Open an empty set of ids in a temporary database, which is deleted on exit."""
        with closing(sqlite3.connect(_ANONYMOUS, isolation_level=None, check_same_thread=False)) as connection:
            connection.execute("BEGIN")
            yield cls(connection)

    def add(self, record_id: str) -> bool:
        """Add an id and return whether it is new."""
        return self._connection.execute("INSERT OR IGNORE INTO named VALUES (?)", (record_id,)).rowcount == 1

    def among(self, record_ids: Collection[str]) -> set[str]:
        """Return the given ids that are in the set."""
        rows = self._connection.execute(
            "SELECT record_id FROM named WHERE record_id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(record_ids)),),
        )
        return {record_id for (record_id,) in rows}


class AuditCounts:
    """Counts by day, site and state, and the first discrepancies."""

    def __init__(self) -> None:
        self._counts = Counter[tuple[str, str, State]]()
        self.discrepancies: list[Discrepancy] = []
        self.unlisted = 0
        self.skipped = Counter[str]()

    def note(self, state: State, name: str, ended: datetime | None, site: str, detail: str = "") -> None:
        """Count a run by name, with ``ended`` None if its end is unknown."""
        day = "" if ended is None else ended.date().isoformat()
        self._counts[day, site, state] += 1
        if state not in FAULTS:
            return
        if len(self.discrepancies) < _LISTED:
            self.discrepancies.append(Discrepancy(state, name, day, site, detail))
        else:
            self.unlisted += 1

    def days(self) -> list[DayCounts]:
        """Return the counts, ordered by day and site."""
        found: dict[tuple[str, str], dict[str, int]] = {}
        for (day, site, state), count in sorted(self._counts.items()):
            found.setdefault((day, site), {})[state] = count
        return [DayCounts(day, site, counts) for (day, site), counts in found.items()]


def site_of(record: Record) -> str:
    """Return the first site of a record, or an empty text without one."""
    sites = (record.meta or {}).get("site_id") or ("",)
    return sites[0]


_REPAIRED: Final = "it is collected now"
_SET_ASIDE: Final = "it is in quarantine now"
_REPLACED: Final = "replaced"
_AT_ONCE: Final = 1_000
_OPEN: Final[Collection[State]] = {"missing", "unclosed", "different"}
"""States that a run of the collector may change at any moment."""

_ON_ITS_WAY: Final[Collection[State]] = {"queued", "missing"}
"""States of runs that may be stored under either id by the time the store is searched for surplus records."""


class Repairs(msgspec.Struct, frozen=True):
    """The changes that an audit may make.

    Args:
        collect: stores a batch as a run of the collector does.
        correct: replaces a stored record; returns the reason if that is refused, else None.
        turn: waits for the end of a run of the collector, and blocks the next one.
        collected: the ids that the collector has collected since the audit began.
    """

    collect: Callable[[Batch], Awaitable[object]]
    correct: Callable[[Record, Record], Awaitable[str | None]]
    turn: Callable[[], AbstractAsyncContextManager[object]]
    collected: Collection[str]


@dataclass(slots=True)
class Audit:
    """One audit.

    Args:
        reach: how far back the source and the collector go.
        own: returns whether a record id belongs to the collector; None if ids do not show it.
    """

    request: AuditRequest
    sides: Sides
    reach: Reach
    own: Callable[[str], bool] | None
    repairs: Repairs
    _counts: AuditCounts = field(default_factory=AuditCounts)
    _earliest: datetime | None = None
    _repaired: int = 0
    _collections: int = 0
    _replaced: int = 0

    async def run(self, inventory: AsyncIterator[Batch]) -> AuditReport:
        """Compare everything. If the inventory fails midway, the report covers the part before the failure."""
        error, held = None, (await self.sides.spool.statistics()).quarantined
        with NamedIds.opened() as named:
            try:
                async for batch in inventory:
                    await self._take(batch, named)
            except AuditordError as failure:
                error = str(failure)
            horizon = self.reach.remembers or self._earliest
            if self.own is not None and error is None:
                query = RecordQuery(match_stopped(self.request.window), Order(SortField.STOP))
                async with self.sides.store.stream(query) as pages:
                    async for page in pages:
                        records = [record for text in page if self.own((record := decode_record(text)).record_id)]
                        seen = named.among([record.record_id for record in records])
                        for record in records:
                            name, stop = record.record_id, record.stop_time
                            if name not in seen and name not in self.repairs.collected and stop is not None:
                                known = horizon is not None and stop >= horizon
                                self._counts.note("extra" if known else "forgotten", name, stop, site_of(record))
        report = AuditReport(
            task=self.request.instance,
            start=format_time(self.request.window.start),
            stop=format_time(self.request.window.stop),
            days=self._counts.days(),
            skipped=dict(self._counts.skipped),
            discrepancies=self._counts.discrepancies,
            unlisted=self._counts.unlisted,
            horizon=None if horizon is None else format_time(horizon),
            beginning=None if self.reach.collects is None else format_time(self.reach.collects),
            extras_sought=self.own is not None and error is None,
            repaired=self._repaired,
            replaced=self._replaced,
            error=error,
        )
        kept = sum(count for (stage, task), count in held.items() if task == self.sides.task and stage != "entry")
        return msgspec.structs.replace(report, quarantined_beside=max(0, kept - report.total("quarantined")))

    async def _take(self, batch: Batch, named: NamedIds) -> None:
        self._counts.skipped.update(batch.skipped)
        produced = [each if isinstance(each, Produced) else Produced(each) for each in batch.records]
        finished = [each for each in produced if each.record.stop_time is not None]
        collections = self._collections
        for first in range(0, len(finished), _AT_ONCE):
            part = finished[first : first + _AT_ONCE]
            found = await compare_runs(part, self.sides, self.reach.collects)
            if any(each.state in _OPEN for each in found):
                async with self.repairs.turn():
                    found = await compare_runs(part, self.sides, self.reach.collects)
                    await self._account_all(found, named)
            else:
                await self._account_all(found, named)
        if batch.quarantined:
            async with self.repairs.turn():
                # Jobs that make no record. Their days are unknown.
                quarantined = await self.sides.spool.quarantine_held(
                    [self.sides.task], [job.source_id for job in batch.quarantined]
                )
                unkept: list[Quarantined] = []
                for job in batch.quarantined:
                    if not named.add(f"\0{job.source_id}"):
                        continue
                    state: State = "quarantined" if job.source_id in quarantined else "missing"
                    if state == "missing":
                        unkept.append(job)
                    repaired = f"{_SET_ASIDE}: " if state == "missing" and self.request.repair else ""
                    self._counts.note(state, job.source_id, None, "", f"{repaired}{job.reason}")
                await self._collect((), unkept)
        if self._collections > collections:  # the collector need not read these runs again
            await self.repairs.collect(Batch(seen=batch.seen))

    async def _account_all(self, found: Sequence[ComparedRun], named: NamedIds) -> None:
        missing: list[Produced] = []
        for compared in found:
            # Several runs of a job can have the same id, but not the same two ids.
            run = "\0".join(sorted(_ids(compared.produced)))
            if named.add(run):
                record, detail = compared.record, compared.detail
                named.add(record.record_id)
                stop = record.stop_time
                self._earliest = min(filter(None, (self._earliest, stop)), default=None)
                if compared.state in {"missing", "unclosed"} and self.request.repair:
                    missing.append(compared.produced)
                    detail = _REPAIRED
                elif compared.state == "different" and compared.stored is not None and self.request.replace is not None:
                    wanted = msgspec.structs.replace(compared.produced.record, record_id=record.record_id)
                    refused = await self.repairs.correct(wanted, compared.stored)
                    self._replaced += refused is None
                    detail = f"{refused or _REPLACED}: {detail}"
                ended, site = stop or record.start_time, site_of(record)
                self._counts.note(compared.state, record.record_id, ended, site, detail)
                if compared.state in _ON_ITS_WAY and compared.produced.alternate_id is not None:
                    named.add(compared.produced.alternate_id)
        await self._collect(missing, ())

    async def _collect(self, missing: Sequence[Produced], jobs: Sequence[Quarantined]) -> None:
        if self.request.repair and (missing or jobs):
            await self.repairs.collect(Batch(missing, jobs))
            self._repaired += len(missing)
            self._collections += 1
