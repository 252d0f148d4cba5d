"""Requests of operators (:mod:`auditord.actions`): runs, audits, retries, and changes of single records."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec

from auditord.actions import (
    RUN_SECTIONS,
    Closing,
    Note,
    Observer,
    Outcome,
    RecordActions,
    Retried,
    RunRequest,
    Section,
    find_section,
)
from auditord.audit.values import AuditReport, AuditRequest
from auditord.errors import UnsuitableRequest
from auditord.ingest import transform_changes
from auditord.spool import QuarantineEntry, Stage, retry
from auditord.storage import Storage
from auditord.store import Action, Amended, Amendment, Provenance
from auditord.store.amendments import check_reason
from auditord.store.store import RecordStore
from auditord.tasks.audits import Audits
from auditord.tasks.instances import Instances
from auditord.tasks.runs import Listener, run_once, run_reported
from auditord_hookspecs import AuditordError, JobChoice, Record, RunReport, Transform
from auditord_hookspecs.config import format_duration
from auditord_hookspecs.records import check_name
from auditord_hookspecs.wire import decode_record, format_time

TIMEOUT: Final = timedelta(days=7)
"""The time limit of a run on demand: it may collect years of data, and the operator can interrupt it."""

_RETRY_TIMEOUT: Final = timedelta(hours=1)


@dataclass(slots=True)
class _Outcome:
    queued: int = 0
    failed: dict[int, str] = field(default_factory=dict[int, str])


class Retries:
    """Retries quarantined entries.

    If the stored input of a job lacks values that were not requested at the time, the job is collected again from its
    source, provided that the kind supports single jobs.
    """

    def __init__(self, instances: Instances, storage: Storage) -> None:
        self._instances = instances
        self._storage = storage
        self._spool = storage.spool
        self.discard: Final = storage.spool.quarantine_discard

    async def retry(self, ids: Sequence[int], collector: str | None = None) -> Retried:
        """Retry entries, each on its own.

        Args:
            ids: the numbers of the entries.
            collector: the collector that takes over jobs of one that is no longer configured.
        """
        outcome, to_fetch = _Outcome(), defaultdict[tuple[str, bool], list[QuarantineEntry]](list)
        for number in ids:
            entry = await self._spool.quarantine_get(number)
            if entry is None:
                outcome.failed[number] = "there is no such entry"
                continue
            if collector is not None and collector not in self._instances.select_enabled("collectors"):
                outcome.failed[number] = f"no enabled collector '{collector}'"
                continue
            if collector is not None and entry.task not in self._instances.collectors:
                entry = await self._spool.quarantine_take_over(entry, collector)
            if not await self._convert(entry, outcome):
                to_fetch[entry.task, entry.operation == "replace"].append(entry)
        for (task, replaces), entries in to_fetch.items():
            await self._fetch(task, entries, outcome, replace=replaces)
        return Retried(outcome.queued, len(ids) - len(outcome.failed), outcome.failed)

    async def _convert(self, entry: QuarantineEntry, outcome: _Outcome) -> bool:
        """Retry the stored input; return False if the source must be asked."""
        storage = self._storage
        kind, config = self._instances.collectors.get(entry.task, (None, None))
        convert = None if kind is None or kind.convert is None else partial(kind.convert, config)
        where = storage.local_senders if entry.stage is Stage.BODY else storage.destinations("collectors")
        try:
            outcome.queued += await retry(self._spool, entry, convert, where)
        except (AuditordError, ValueError, LookupError) as error:
            outcome.failed[entry.quarantine_id] = str(error)
            return self._choice(entry) is None
        return True

    def _choice(self, entry: QuarantineEntry) -> JobChoice | None:
        """Return the job to collect again for an entry; None if the kind cannot collect single jobs."""
        kind, config = self._instances.collectors.get(entry.task, (None, None))
        if kind is None or config is None or not config.enabled or entry.stage is not Stage.JOB:
            return None
        return None if kind.job_of is None else kind.job_of(entry.raw_json)

    async def _fetch(self, task: str, entries: Sequence[QuarantineEntry], outcome: _Outcome, *, replace: bool) -> None:
        kind, _ = self._instances.collectors[task]
        by_source = defaultdict[str | None, list[tuple[str, QuarantineEntry]]](list)
        for entry in entries:
            if (choice := self._choice(entry)) is not None:
                by_source[choice.source].append((choice.job_id, entry))
        batches = [
            (JobChoice(",".join(dict.fromkeys(job_id for job_id, _ in part)), source), [entry for _, entry in part])
            for source, found in by_source.items()
            for part in (found[first : first + kind.jobs_at_once] for first in range(0, len(found), kind.jobs_at_once))
        ]
        for choice, batch in batches:
            request = RunRequest(task, job=choice, replace=replace)
            runnable = self._instances.collector(task, request, timeout=_RETRY_TIMEOUT)
            async with self._instances.turns[task].borrow():
                report = await run_once(runnable, self._instances.now)
            outcome.queued += report.records
            for entry in batch:
                number = entry.quarantine_id
                left = await self._spool.quarantine_get(number)
                if left is None:
                    del outcome.failed[number]
                elif report.error is not None:
                    outcome.failed[number] += f" (its source could not be queried again: {report.error})"
                elif left.occurrences > entry.occurrences:
                    outcome.failed[number] = left.reason
                else:
                    outcome.failed[number] += " (its source no longer gives a record of it, or does not know it)"


AT_ONCE: Final = 200
"""The maximum number of records changed in one transaction, because other writers wait for it."""


_WAITS: Final = "changes of it are queued in the spool and would undo this: try again when they have been delivered"

Waiting: TypeAlias = Callable[[Collection[str]], Awaitable[Collection[str]]]


class Objection(Exception):
    """The reason why a record cannot be changed."""


class RecordChanged(Exception):
    """The record has changed since the operator read it."""


Change: TypeAlias = Callable[[Record], Record | None]
"""Returns the new record, or None to delete it; may raise :class:`Objection` or :class:`RecordChanged`."""


class RecordEditor:
    """Implements :class:`auditord.actions.RecordActions` on a record store.

    Args:
        waiting: returns the ids among those given whose changes are still queued in the spool.
    """

    def __init__(
        self,
        store: RecordStore,
        now: Callable[[], datetime],
        transform: Transform | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        self._store = store
        self._now = now
        self._transform = transform
        self._waiting = waiting

    async def correct(self, record: Record, seen: Record | None, note: Note) -> Outcome:
        def change(stored: Record) -> Record:
            if seen is not None and seen != stored:
                raise RecordChanged
            return record if self._transform is None else transform_changes(self._transform, record, stored)

        (outcome,) = await self._change(Action.CORRECT, {record.record_id: change}, note)
        return outcome

    async def close(self, closings: Sequence[Closing], note: Note) -> Sequence[Outcome]:
        wanted = {closing.record_id: partial(_set_stop, closing.stop, self._now()) for closing in closings}
        return await self._change(Action.CLOSE, wanted, note)

    async def delete(self, ids: Sequence[str], note: Note) -> Sequence[Outcome]:
        return await self._change(Action.DELETE, dict.fromkeys(ids, lambda _: None), note)

    async def _change(self, action: Action, wanted: Mapping[str, Change], note: Note) -> Sequence[Outcome]:
        check_reason(note.reason)
        check_name(note.by)
        outcomes: list[Outcome] = []
        ids = list(wanted)
        for first in range(0, len(ids), AT_ONCE):
            batch = ids[first : first + AT_ONCE]
            waiting = () if self._waiting is None else await self._waiting(batch)
            found, amendments = dict[str, Outcome](), dict[str, Amendment]()
            for record_id in batch:
                if record_id in waiting:
                    found[record_id] = Outcome(record_id, "refused", _WAITS)
                elif (stored := await self._store.get(record_id)) is None:
                    found[record_id] = Outcome(record_id, "missing")
                else:
                    try:
                        changed = wanted[record_id](decode_record(stored))
                    except Objection as objection:
                        found[record_id] = Outcome(record_id, "refused", str(objection))
                    except RecordChanged:
                        found[record_id] = Outcome(record_id, "changed")
                    else:
                        amendments[record_id] = Amendment(action, stored, changed, note.reason)
            provenance = Provenance(self._now(), f"user:{note.by}")
            amended = await self._store.amend(list(amendments.values()), provenance)
            for record_id, each in zip(amendments, amended, strict=True):
                found[record_id] = Outcome(record_id, _OUTCOMES[each])
            outcomes += [found[record_id] for record_id in batch]
        return outcomes


_OUTCOMES: Final[Mapping[Amended, Literal["done", "same", "changed", "missing"]]] = {
    Amended.DONE: "done",
    Amended.SAME: "same",
    Amended.CHANGED: "changed",
    Amended.MISSING: "missing",
}


def _set_stop(stop: datetime | timedelta, now: datetime, stored: Record) -> Record:
    if stored.stop_time is not None:
        raise Objection(f"it stopped at {format_time(stored.stop_time)}")
    try:
        stop_time = stop if isinstance(stop, datetime) else stored.start_time + stop
    except OverflowError as error:
        raise Objection("its stop time would be later than the year 9999") from error
    if stop_time < stored.start_time:
        raise Objection(f"it started later, at {format_time(stored.start_time)}")
    if stop_time > now:
        raise Objection(f"it would stop in the future, at {format_time(stop_time)}")
    return msgspec.structs.replace(stored, stop_time=stop_time)


class OnDemand:
    """Implements :class:`auditord.actions.Actions`. Listeners are notified only of runs like those of the clock."""

    def __init__(
        self,
        instances: Instances,
        listeners: Mapping[Section, Listener],
        records: RecordActions,
        retries: Retries,
        audits: Audits,
    ) -> None:
        self._instances = instances
        self._listeners = listeners
        self.records: Final = records
        self.retry: Final = retries.retry
        self._audits = audits
        self.discard: Final = retries.discard

    async def run(self, request: RunRequest, observer: Observer) -> RunReport:
        """Run an instance once, after its current run. Dry runs and runs of a period or job are not reported.

        Raises:
            UnknownInstance: no enabled collector or plugin has this name.
            UnsuitableRequest: a period, job or replacement for a plugin; a job for a collector that reads only periods.
        """
        section = self._section(request)
        name, now = request.instance, self._instances.now
        if section == "plugins":
            if request.again or request.replace:
                raise UnsuitableRequest(f"{name} is a plugin: only collectors have periods and corrections")
            runnable = self._instances.plugin(name, observer, dry_run=request.dry_run)
        else:
            kind, config = self._instances.collectors[name]
            if request.job is not None and not kind.one_job:
                raise UnsuitableRequest(f"{name}: kind {kind.name} reads periods, not single jobs")
            if request.dry_run and kind.remarks is not None:
                for remark in kind.remarks(config):
                    observer.show_line(f"remark: {remark}")
            runnable = self._instances.collector(name, request, observer, TIMEOUT)
        async with self._instances.turns[name].borrow():
            if request.again or request.dry_run:
                report = await run_once(runnable, now)
            else:
                report = await run_reported(runnable, self._listeners[section], now)
        if section == "collectors" and report.error is None and not report.records and request.job is None:
            kind, config = self._instances.collectors[name]
            delay: timedelta = getattr(config, kind.delay) if kind.delay else timedelta(0)
            if delay and (request.window is None or request.window.stop > now() - delay):
                observer.show_line(
                    f"jobs that ended in the last {format_duration(delay)} ({kind.delay}) are collected later"
                )
        return report

    async def audit(self, request: AuditRequest, observer: Observer | None) -> AuditReport:
        """Compare a source's inventory with the record store.

        Raises:
            UnknownInstance: no enabled collector has this name.
            UnsuitableRequest: its kind has no inventory, or its records go to another destination.
        """
        self._section(RunRequest(request.instance, section="collectors"))
        return await self._audits.audit(request, self.records, observer)

    def _section(self, request: RunRequest) -> Section:
        return find_section(request, {section: self._instances.select_enabled(section) for section in RUN_SECTIONS})
