"""What an operator asks for, done by the owner of the state folder; see :mod:`auditord.actions`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from auditord.actions import CollectRequest, Observer, Retried
from auditord.config.kinds import InstalledKinds
from auditord.config.model import Configuration, kind_of
from auditord.contexts.lent import SpoolCollectorContext
from auditord.errors import UnknownInstance
from auditord.spool import Enqueued, Spool, Stage, retry
from auditord.spool.encoding import Operation
from auditord.spool.retry import Convert
from auditord.tasks.collecting import Keep, collect
from auditord.tasks.running import Listener, Runnable, Tally, run_once
from auditord.tasks.turn import Turn
from auditord_hookspecs import AuditordError, Batch, CollectorKind, RunConfig, RunReport

TIMEOUT: Final = timedelta(days=7)
"""Of a run on demand: whoever asked for years of data wants them, and can interrupt."""


class OnDemand:
    """Runs collectors and empties quarantine when asked.

    Args:
        configuration: which instances there are.
        kinds: how they work.
        spool: where their work goes.
        destinations: the senders that carry on what collectors make.
        stores: the senders that carry to the record store, for what clients posted.
        turns: whose turn it is, by instance; a run on demand waits for a run that is going on.
        listener: hears of runs that were kept.
        now: the present instant.
    """

    def __init__(
        self,
        configuration: Configuration,
        kinds: InstalledKinds,
        spool: Spool,
        *,
        destinations: Sequence[str],
        stores: Sequence[str],
        turns: Mapping[str, Turn],
        listener: Listener,
        now: Callable[[], datetime],
    ) -> None:
        self._configuration = configuration
        self._kinds = kinds
        self._spool = spool
        self._destinations = destinations
        self._stores = stores
        self._turns = turns
        self._listener = listener
        self._now = now

    async def collect(self, request: CollectRequest, observer: Observer) -> RunReport:
        """Run a collector once; a run of a period is not counted as one of the clock's.

        Raises:
            UnknownInstance: no enabled collector has this name.
        """
        kind, config = self._collector(request.instance)

        async def execute(tally: Tally) -> None:
            context = SpoolCollectorContext(
                request.instance,
                kind.name,
                self._now,
                spool=self._spool,
                checkpoint=await self._spool.checkpoint(request.instance),
                window=request.window,
                dry_run=request.dry_run,
                on_progress=observer.progressed,
            )
            await collect(kind, config, context, self._keep(request, observer), tally)

        runnable = Runnable(request.instance, kind.name, execute, TIMEOUT)
        async with self._turns[request.instance].borrowed():
            return await self._run(runnable, counted=request.window is None and not request.dry_run)

    async def _run(self, runnable: Runnable, *, counted: bool) -> RunReport:
        if not counted:
            return await run_once(runnable, self._now)
        self._listener.started(runnable)
        report = await run_once(runnable, self._now)
        await self._listener.finished(report)
        return report

    def _keep(self, request: CollectRequest, observer: Observer) -> Keep:
        async def show(batch: Batch) -> Enqueued:
            await observer.shown(batch)
            return Enqueued(len(batch.records), len(batch.quarantined))

        async def keep(batch: Batch) -> Enqueued:
            kept = batch if request.window is None else replace(batch, checkpoint=None)
            operation: Operation = "replace" if request.replace else "insert"
            return await self._spool.enqueue(request.instance, kept, self._destinations, operation)

        return show if request.dry_run else keep

    def _collector(self, instance: str) -> tuple[CollectorKind[Any], RunConfig]:
        config = self._configuration.collectors.get(instance)
        if not isinstance(config, RunConfig) or not config.enabled:
            enabled = [name for name, each in self._configuration.collectors.items() if each.enabled]
            raise UnknownInstance(f"no enabled collector '{instance}'; there are: {', '.join(enabled) or 'none'}")
        return self._kinds.collectors[kind_of(config)], config

    async def retry(self, ids: Sequence[int]) -> Retried:
        """Give entries a second chance, each on its own."""
        queued, failed = 0, dict[int, str]()
        for number in ids:
            entry = await self._spool.quarantine_get(number)
            if entry is None:
                failed[number] = "there is no such entry"
                continue
            try:
                where = self._stores if entry.stage is Stage.BODY else self._destinations
                queued += await retry(self._spool, entry, self._convert(entry.task), where)
            except (AuditordError, ValueError, LookupError) as error:
                failed[number] = str(error)
        return Retried(queued, len(ids) - len(failed), failed)

    def _convert(self, task: str) -> Convert | None:
        config = self._configuration.collectors.get(task)
        convert = None if config is None else self._kinds.collectors[kind_of(config)].convert
        return None if convert is None else lambda raw: convert(config, raw)

    async def discard(self, ids: Sequence[int]) -> int:
        """Forget entries; returns how many there were."""
        return await self._spool.quarantine_discard(ids)
