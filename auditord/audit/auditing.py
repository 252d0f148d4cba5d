"""Audit one collector: compare its source's inventory batch by batch, then find surplus stored records.

The collector keeps running. It may hold runs that seem to be missing, so the audit looks for them once more between two
runs of the collector, and repairs them there.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from auditord.audit.comparing import ComparedRun, Comparer, Sides
from auditord.audit.counting import AuditCounts, NamedIds, site_of
from auditord.audit.values import AuditReport, AuditRequest, State
from auditord_hookspecs import AuditordError, Batch, Produced, Quarantined, Record, RecordQuery
from auditord_hookspecs.kinds import Reach
from auditord_hookspecs.query import Order, SortField, stopped_within
from auditord_hookspecs.wire import decode_record, format_time

_REPAIRED: Final = "it is collected now"
_REPLACED: Final = "replaced"
_AT_ONCE: Final = 1_000
_OPEN: Final[Collection[State]] = {"missing", "unclosed", "different"}
"""States that a run of the collector may change at any moment."""

_ON_ITS_WAY: Final[Collection[State]] = {"queued", "missing"}
"""States of runs that may be stored, under either id; used before the store is asked for surplus records."""


class Repairs(msgspec.Struct, frozen=True):
    """The changes that an audit may make.

    Args:
        collect: stores a batch as a run of the collector does.
        correct: replaces a stored record; returns the reason if it cannot, else None.
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
        request: the request.
        sides: the places where a run can be stored.
        reach: how far back the source and the collector go.
        own: returns whether a record id belongs to the collector; None if ids do not show it.
        repairs: the permitted changes.
        now: the current time.
    """

    request: AuditRequest
    sides: Sides
    reach: Reach
    own: Callable[[str], bool] | None
    repairs: Repairs
    now: datetime
    _counts: AuditCounts = field(default_factory=AuditCounts)
    _earliest: datetime | None = None
    _repaired: int = 0
    _replaced: int = 0

    async def run(self, inventory: AsyncIterator[Batch]) -> AuditReport:
        """Compare everything; an inventory that fails in the middle is reported as far as it came."""
        error = None
        with NamedIds.opened() as named:
            try:
                async for batch in inventory:
                    await self._take(batch, named)
            except AuditordError as failure:
                error = str(failure)
            horizon = self.reach.remembers or self._earliest
            if self.own is not None and error is None:
                await self._look_for_extras(named, self.own, horizon)
        return AuditReport(
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

    async def _take(self, batch: Batch, named: NamedIds) -> None:
        self._counts.skipped.update(batch.skipped)
        produced = [each if isinstance(each, Produced) else Produced(each) for each in batch.records]
        over = [each for each in produced if each.record.stop_time is not None]
        for first in range(0, len(over), _AT_ONCE):
            await self._take_some(over[first : first + _AT_ONCE], named)
        if batch.quarantined:
            async with self.repairs.turn():
                await self._collect((), await self._unkept(batch.quarantined, named))

    async def _take_some(self, over: Sequence[Produced], named: NamedIds) -> None:
        comparer = Comparer(self.sides, self.now, self.reach.collects)
        found = await comparer.compare(over)
        if any(each.state in _OPEN for each in found):
            async with self.repairs.turn():
                await self._account_all(await comparer.compare(over), named)
        else:
            await self._account_all(found, named)

    async def _account_all(self, found: Sequence[ComparedRun], named: NamedIds) -> None:
        missing: list[Produced] = []
        for compared in found:
            if named.add(compared.record.record_id):
                await self._account(compared, missing)
                if compared.state in _ON_ITS_WAY and compared.produced.alternate_id is not None:
                    named.add(compared.produced.alternate_id)
        await self._collect(missing, ())

    async def _account(self, compared: ComparedRun, missing: list[Produced]) -> None:
        """Count a run, and repair it if that is asked for."""
        detail, stop = compared.detail, compared.record.stop_time
        self._earliest = min(filter(None, (self._earliest, stop)), default=None)
        if compared.state in {"missing", "unclosed"} and self.request.repair:
            missing.append(compared.produced)
            detail = _REPAIRED
        elif compared.state == "different" and compared.stored is not None and self.request.replace is not None:
            wanted = msgspec.structs.replace(compared.produced.record, record_id=compared.record.record_id)
            refused = await self.repairs.correct(wanted, compared.stored)
            self._replaced += refused is None
            detail = f"{refused or _REPLACED}: {detail}"
        self._counts.add(compared.state, compared.record, detail)

    async def _unkept(self, jobs: Sequence[Quarantined], named: NamedIds) -> Sequence[Quarantined]:
        """Return the jobs that make no record and are not in quarantine; their days are unknown."""
        held = await self.sides.spool.quarantine_held([self.sides.task], [job.source_id for job in jobs])
        unkept: list[Quarantined] = []
        for job in jobs:
            if not named.add(f"\0{job.source_id}"):
                continue
            state: State = "quarantined" if job.source_id in held else "missing"
            if state == "missing":
                unkept.append(job)
            self._counts.note(state, job.source_id, None, "", job.reason)
        return unkept

    async def _collect(self, missing: Sequence[Produced], jobs: Sequence[Quarantined]) -> None:
        if self.request.repair and (missing or jobs):
            await self.repairs.collect(Batch(missing, jobs))
            self._repaired += len(missing) + len(jobs)

    async def _look_for_extras(self, named: NamedIds, own: Callable[[str], bool], horizon: datetime | None) -> None:
        async with self.sides.store.stream(_ended_within(self.request)) as pages:
            async for page in pages:
                records = [record for text in page if own((record := decode_record(text)).record_id)]
                self._count_extras(records, named.among([record.record_id for record in records]), horizon)

    def _count_extras(self, records: Sequence[Record], named: Collection[str], horizon: datetime | None) -> None:
        for record in records:
            if record.record_id in named or record.record_id in self.repairs.collected or record.stop_time is None:
                continue
            known = horizon is not None and record.stop_time >= horizon
            self._counts.note("extra" if known else "forgotten", record.record_id, record.stop_time, site_of(record))


def _ended_within(request: AuditRequest) -> RecordQuery:
    return RecordQuery(stopped_within(request.window), Order(SortField.STOP))
