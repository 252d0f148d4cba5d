"""A second chance for the quarantine, if need be with what the source knows of the jobs today."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from auditord.actions import Retried, RunRequest
from auditord.spool import QuarantineEntry, Stage, retry
from auditord.storage import Storage
from auditord.tasks.instances import Instances
from auditord.tasks.runs import run_once
from auditord_hookspecs import AuditordError, JobChoice, RunReport

_TIMEOUT: Final = timedelta(hours=1)


@dataclass(slots=True)
class _Outcome:
    """The results of a retry so far."""

    queued: int = 0
    failed: dict[int, str] = field(default_factory=dict[int, str])


class Retries:
    """Tries entries of the quarantine again.

    What the raw input of a job does not hold, since it was not asked for then, is asked of the source again, where the
    kind can be asked for single jobs.
    """

    def __init__(self, instances: Instances, storage: Storage) -> None:
        self._instances = instances
        self._storage = storage
        self._spool = storage.spool
        self.discard: Final = storage.spool.quarantine_discard

    async def retry(self, ids: Sequence[int]) -> Retried:
        """Give entries a second chance, each on its own."""
        outcome, to_fetch = _Outcome(), defaultdict[str, list[QuarantineEntry]](list)
        for number in ids:
            entry = await self._spool.quarantine_get(number)
            if entry is None:
                outcome.failed[number] = "there is no such entry"
            elif not await self._convert(entry, outcome):
                to_fetch[entry.task].append(entry)
        for task, entries in to_fetch.items():
            await self._fetch(task, entries, outcome)
        return Retried(outcome.queued, len(ids) - len(outcome.failed), outcome.failed)

    async def _convert(self, entry: QuarantineEntry, outcome: _Outcome) -> bool:
        """Try what is in quarantine; False if the source must be asked."""
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
        """The way to ask the source for the job of an entry."""
        kind, config = self._instances.collectors.get(entry.task, (None, None))
        if kind is None or config is None or not config.enabled or entry.stage is not Stage.JOB:
            return None
        return None if kind.job_of is None else kind.job_of(entry.raw_json)

    async def _fetch(self, task: str, entries: Sequence[QuarantineEntry], outcome: _Outcome) -> None:
        kind, _ = self._instances.collectors[task]
        for choice, asked in _together(entries, [self._choice(entry) for entry in entries], kind.jobs_at_once):
            runnable = self._instances.collector(task, RunRequest(task, job=choice), timeout=_TIMEOUT)
            async with self._instances.turns[task].borrowed():
                report = await run_once(runnable, self._instances.now)
            outcome.queued += report.records
            for entry in asked:
                await self._note(entry, report, outcome)

    async def _note(self, entry: QuarantineEntry, report: RunReport, outcome: _Outcome) -> None:
        left = await self._spool.quarantine_get(entry.quarantine_id)
        if left is None:
            del outcome.failed[entry.quarantine_id]
        elif report.error is not None:
            outcome.failed[entry.quarantine_id] += f" (its source could not be asked again: {report.error})"
        elif left.occurrences > entry.occurrences:
            outcome.failed[entry.quarantine_id] = left.reason
        else:
            outcome.failed[entry.quarantine_id] += " (its source makes no record of it today, or does not know it)"


def _together(
    entries: Sequence[QuarantineEntry], choices: Sequence[JobChoice | None], at_once: int
) -> Sequence[tuple[JobChoice, Sequence[QuarantineEntry]]]:
    """The entries whose jobs are asked for together, each part with its question."""
    by_source = defaultdict[str | None, list[tuple[str, QuarantineEntry]]](list)
    for entry, choice in zip(entries, choices, strict=True):
        if choice is not None:
            by_source[choice.source].append((choice.job_id, entry))
    return [
        (JobChoice(",".join(dict.fromkeys(job_id for job_id, _ in part)), source), [entry for _, entry in part])
        for source, found in by_source.items()
        for part in (found[first : first + at_once] for first in range(0, len(found), at_once))
    ]
