"""Requests of operators, met by the owner of the state folder; see :mod:`auditord.actions`."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from auditord.actions import Observer, RecordActions, RunRequest, Section
from auditord.audit.values import AuditReport, AuditRequest
from auditord.errors import UnknownInstance, UnsuitableRequest
from auditord.tasks.audits import Audits
from auditord.tasks.instances import Instances
from auditord.tasks.retries import Retries
from auditord.tasks.runs import Listener, Runnable, run_once, run_reported
from auditord_hookspecs import RunReport

TIMEOUT: Final = timedelta(days=7)
"""Of a run on demand: an operator who asks for years of data wants them, and can interrupt."""


class OnDemand:
    """Implements :class:`auditord.actions.Actions`; the listeners are for runs that are like those of the clock."""

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
        """Run an instance once, after a run that is going on; neither a dry run nor one of a period is reported.

        Raises:
            UnknownInstance: no enabled collector or plugin has this name.
            UnsuitableRequest: a plugin has neither period, job nor corrections; not every collector knows single jobs.
        """
        section = self._section(request)
        make = self._plugin if section == "plugins" else self._collector
        runnable, now = make(request, observer), self._instances.now
        async with self._instances.turns[request.instance].borrowed():
            if request.again or request.dry_run:
                return await run_once(runnable, now)
            return await run_reported(runnable, self._listeners[section], now)

    async def audit(self, request: AuditRequest, observer: Observer | None) -> AuditReport:
        """Compare a source's inventory with the record store, after a run that is going on.

        Raises:
            UnknownInstance: no enabled collector has this name.
            UnsuitableRequest: its kind has no inventory, or its records go elsewhere.
        """
        self._section(RunRequest(request.instance, section="collectors"))
        return await self._audits.audit(request, self.records, observer)

    def _collector(self, request: RunRequest, observer: Observer) -> Runnable:
        kind, config = self._instances.collectors[request.instance]
        if request.job is not None and not kind.one_job:
            raise UnsuitableRequest(f"{request.instance}: kind {kind.name} reads periods, not single jobs")
        if request.dry_run and kind.remarks is not None:
            for remark in kind.remarks(config):
                observer.said(f"remark: {remark}")
        return self._instances.collector(request.instance, request, observer, TIMEOUT)

    def _plugin(self, request: RunRequest, observer: Observer) -> Runnable:
        if request.again or request.replace:
            raise UnsuitableRequest(f"{request.instance} is a plugin: only collectors have periods and corrections")
        return self._instances.plugin(request.instance, observer, dry_run=request.dry_run)

    def _section(self, request: RunRequest) -> Section:
        sections: Sequence[Section] = ["collectors", "plugins"] if request.section is None else [request.section]
        for section in sections:
            if request.instance in self._instances.enabled(section):
                return section
        names = [name for section in sections for name in self._instances.enabled(section)]
        what = " or ".join(section.removesuffix("s") for section in sections)
        raise UnknownInstance(f"no enabled {what} '{request.instance}'; there are: {', '.join(names) or 'none'}")
