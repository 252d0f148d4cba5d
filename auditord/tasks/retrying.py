"""A second chance for the quarantine, if need be with what the source knows of the jobs today."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from auditord.actions import Retried
from auditord.config.model import Configuration, kind_of
from auditord.contexts.instances import SpoolCollectorContext
from auditord.spool import Enqueued, QuarantineEntry, Stage, retry
from auditord.spool.retry import Convert
from auditord.tasks.collecting import collect
from auditord.tasks.instances import Surroundings
from auditord.tasks.running import Runnable, Tally, run_once
from auditord.tasks.turn import Turn
from auditord_hookspecs import AuditordError, Batch, CollectorKind, InstanceConfig, JobChoice, RunReport

_TIMEOUT: Final = timedelta(hours=1)


@dataclass(slots=True)
class _Outcome:
    """What has become of a retry so far."""

    queued: int = 0
    failed: dict[int, str] = field(default_factory=dict[int, str])


class Retries:
    """Tries entries of the quarantine again.

    What the raw input of a job does not hold, since it was not asked for then, is asked of the source again, where the
    kind can be asked for single jobs.

    Args:
        configuration: which collectors there are.
        kinds: theirs, by name.
        around: what they work with.
        stores: the senders that forward to the record store, for what clients posted.
        turns: whose turn it is, by instance.
    """

    def __init__(
        self,
        configuration: Configuration,
        kinds: Mapping[str, CollectorKind[Any]],  # Any: each kind has its own configuration model
        around: Surroundings,
        *,
        stores: Sequence[str],
        turns: Mapping[str, Turn],
    ) -> None:
        self._collectors = configuration.collectors
        self._kinds = kinds
        self._around = around
        self._spool = around.spool
        self._stores = stores
        self._turns = turns

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
            await self._fetch(task, self._collectors[task], entries, outcome)
        return Retried(outcome.queued, len(ids) - len(outcome.failed), outcome.failed)

    async def _convert(self, entry: QuarantineEntry, outcome: _Outcome) -> bool:
        """Try what is in quarantine; False if the source must be asked."""
        where = self._stores if entry.stage is Stage.BODY else self._around.destinations
        try:
            outcome.queued += await retry(self._spool, entry, self._conversion(entry.task), where)
        except (AuditordError, ValueError, LookupError) as error:
            outcome.failed[entry.quarantine_id] = str(error)
            return self._choice(entry) is None
        return True

    def _conversion(self, task: str) -> Convert | None:
        config = self._collectors.get(task)
        convert = None if config is None else self._kinds[kind_of(config)].convert
        return None if convert is None else lambda raw: convert(config, raw)

    def _choice(self, entry: QuarantineEntry) -> JobChoice | None:
        """How to ask the source for the job of an entry."""
        config = self._collectors.get(entry.task)
        if config is None or not config.enabled or entry.stage is not Stage.JOB:
            return None
        job_of = self._kinds[kind_of(config)].job_of
        return None if job_of is None else job_of(entry.raw_json)

    async def _fetch(
        self, task: str, config: InstanceConfig, entries: Sequence[QuarantineEntry], outcome: _Outcome
    ) -> None:
        kind = self._kinds[kind_of(config)]
        for choice, asked in _together(entries, [self._choice(entry) for entry in entries], kind.jobs_at_once):
            report = await self._collect(task, kind, config, choice)
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

    async def _collect(
        self, task: str, kind: CollectorKind[Any], config: InstanceConfig, choice: JobChoice
    ) -> RunReport:
        async def keep(batch: Batch) -> Enqueued:
            return await self._spool.enqueue(task, replace(batch, checkpoint=None), self._around.destinations)

        async def execute(tally: Tally) -> None:
            checkpoint, now = await self._spool.checkpoint(task), self._around.now
            context = SpoolCollectorContext(task, kind.name, now, spool=self._spool, checkpoint=checkpoint, job=choice)
            await collect(kind, config, context, keep, tally)

        async with self._turns[task].borrowed():
            return await run_once(Runnable(task, kind.name, execute, _TIMEOUT), self._around.now)


def _together(
    entries: Sequence[QuarantineEntry], choices: Sequence[JobChoice | None], at_once: int
) -> Sequence[tuple[JobChoice, Sequence[QuarantineEntry]]]:
    """The entries whose jobs are asked for together, and how."""
    by_source = defaultdict[str | None, list[tuple[str, QuarantineEntry]]](list)
    for entry, choice in zip(entries, choices, strict=True):
        if choice is not None:
            by_source[choice.source].append((choice.job_id, entry))
    return [
        (JobChoice(",".join(dict.fromkeys(job_id for job_id, _ in part)), source), [entry for _, entry in part])
        for source, found in by_source.items()
        for part in (found[first : first + at_once] for first in range(0, len(found), at_once))
    ]
