"""What an operator asks for, done by the owner of the state folder; see :mod:`auditord.actions`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from auditord.actions import Observer, RecordActions, Retried, RunRequest, Section
from auditord.config.kinds import InstalledKinds
from auditord.config.model import Configuration, kind_of
from auditord.contexts.instances import SpoolCollectorContext, Watching, environment_of
from auditord.errors import UnknownInstance, UnsuitableRequest
from auditord.spool import Enqueued
from auditord.spool.encoding import Operation
from auditord.tasks.collecting import Keep, collect
from auditord.tasks.instances import Surroundings, plugin
from auditord.tasks.retrying import Retries
from auditord.tasks.running import Listener, Runnable, Tally, run_once
from auditord.tasks.turn import Turn
from auditord_hookspecs import Batch, InstanceConfig, RunReport

TIMEOUT: Final = timedelta(days=7)
"""Of a run on demand: whoever asked for years of data wants them, and can interrupt."""


class OnDemand:
    """Runs instances and empties quarantine when asked.

    Args:
        configuration: which instances there are.
        kinds: how they work.
        around: what they work with.
        stores: the senders that forward to the record store, for what clients posted.
        turns: whose turn it is, by instance; a run on demand waits for a run that is going on.
        collectors: hears of runs of collectors that are like those of the clock.
        plugins: the same for plugins.
        records: changes single records.
    """

    def __init__(
        self,
        configuration: Configuration,
        kinds: InstalledKinds,
        around: Surroundings,
        *,
        stores: Sequence[str],
        turns: Mapping[str, Turn],
        collectors: Listener,
        plugins: Listener,
        records: RecordActions,
    ) -> None:
        self.records: Final = records
        self._configuration = configuration
        self._kinds = kinds
        self._around = around
        self._spool = around.spool
        self._destinations = around.destinations
        self._retries = Retries(configuration, kinds.collectors, around, stores=stores, turns=turns)
        self._turns = turns
        self._collectors = collectors
        self._plugins = plugins
        self._now = around.now

    async def run(self, request: RunRequest, observer: Observer) -> RunReport:
        """Run an instance once; a dry run, and one of a period, is not counted as one of the clock's.

        Raises:
            UnknownInstance: no enabled collector or plugin has this name.
            UnsuitableRequest: a plugin has neither period, job nor corrections; not every collector knows single jobs.
        """
        if self._section(request) == "plugins":
            runnable, listener = self._plugin(request, observer), self._plugins
        else:
            runnable, listener = self._collector(request, observer), self._collectors
        async with self._turns[request.instance].borrowed():
            counted = not request.again and not request.dry_run
            return await self._run(runnable, listener if counted else None)

    def _collector(self, request: RunRequest, observer: Observer) -> Runnable:
        config = self._configuration.collectors[request.instance]
        kind = self._kinds.collectors[kind_of(config)]
        if request.job is not None and not kind.one_job:
            raise UnsuitableRequest(f"{request.instance}: kind {kind.name} reads periods, not single jobs")

        if request.dry_run and kind.remarks is not None:
            for remark in kind.remarks(config):
                observer.said(f"remark: {remark}")

        async def execute(tally: Tally) -> None:
            context = SpoolCollectorContext(
                request.instance,
                kind.name,
                self._now,
                spool=self._spool,
                checkpoint=await self._spool.checkpoint(request.instance),
                window=request.window,
                job=request.job,
                dry_run=request.dry_run,
                on_progress=observer.progressed,
                environment=environment_of(config),
            )
            await collect(kind, config, context, self._keep(request, observer), tally)

        return Runnable(request.instance, kind.name, execute, TIMEOUT)

    def _plugin(self, request: RunRequest, observer: Observer) -> Runnable:
        config = self._configuration.plugins[request.instance]
        if request.again or request.replace:
            raise UnsuitableRequest(f"{request.instance} is a plugin: only collectors have periods and corrections")
        kind = self._kinds.plugins[kind_of(config)]
        watching = Watching(observer.said, observer.printed)
        return plugin(
            request.instance,
            kind,
            config,
            self._around,
            by_clock=False,
            dry_run=request.dry_run,
            watching=watching,
        )

    async def _run(self, runnable: Runnable, listener: Listener | None) -> RunReport:
        if listener is None:
            return await run_once(runnable, self._now)
        listener.started(runnable)
        report = await run_once(runnable, self._now)
        await listener.finished(report)
        return report

    def _keep(self, request: RunRequest, observer: Observer) -> Keep:
        async def show(batch: Batch) -> Enqueued:
            await observer.shown(batch)
            return Enqueued(len(batch.records), len(batch.quarantined))

        async def keep(batch: Batch) -> Enqueued:
            kept = batch if not request.again else replace(batch, checkpoint=None)
            operation: Operation = "replace" if request.replace else "insert"
            return await self._spool.enqueue(request.instance, kept, self._destinations, operation)

        return show if request.dry_run else keep

    def _section(self, request: RunRequest) -> Section:
        sections: dict[Section, Mapping[str, InstanceConfig]] = {
            "collectors": self._configuration.collectors,
            "plugins": self._configuration.plugins,
        }
        wanted: list[Section] = list(sections) if request.section is None else [request.section]
        for section in wanted:
            config = sections[section].get(request.instance)
            if config is not None and config.enabled:
                return section
        names = [name for section in wanted for name, config in sections[section].items() if config.enabled]
        what = " or ".join(section.removesuffix("s") for section in wanted)
        raise UnknownInstance(f"no enabled {what} '{request.instance}'; there are: {', '.join(names) or 'none'}")

    async def retry(self, ids: Sequence[int]) -> Retried:
        """Give entries a second chance, each on its own."""
        return await self._retries.retry(ids)

    async def discard(self, ids: Sequence[int]) -> int:
        """Forget entries; returns how many there were."""
        return await self._spool.quarantine_discard(ids)
