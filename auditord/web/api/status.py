"""``GET /api/v1/instances`` and ``GET /api/v1/health``."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from aiohttp import web

from auditord import __version__
from auditord.database import memory
from auditord.errors import StoreUnavailable
from auditord.health import Health, TaskHealth
from auditord.ingest import Ingest
from auditord.spool import LastRun, Spool
from auditord.spool.encoding import SpoolStatistics
from auditord.web.answers import JSON, json_answer
from auditord.web.api.operation import Operation
from auditord.web.api.shapes import (
    HealthReport,
    HeldTurn,
    Instance,
    Instances,
    Part,
    QuarantineCount,
    Queue,
    Run,
)
from auditord.web.monitoring import HEALTH_SECONDS
from auditord_hookspecs import Permission
from auditord_hookspecs.wire import format_time

_Turns: TypeAlias = Mapping[str, memory.HeldTurn]

_WORKS: Final = Part(works=True, error=None)


@dataclass(frozen=True, slots=True)
class StatusHandlers:
    """Says how the daemon fares.

    Args:
        health: of the instances.
        spool: queues, last runs and quarantine.
        ingest: writes to the store, or to the spool.
        not_enabled: the instances of the configuration that do not take part.
    """

    health: Health
    spool: Spool
    ingest: Ingest
    not_enabled: Sequence[TaskHealth]

    @Operation(
        "GET",
        "/api/v1/instances",
        "listInstances",
        "See how each collector, plugin and sender fares.",
        Permission.OPERATE,
        {200: {JSON: Instances}},
        problems=(503,),
    )
    async def instances(self, _request: web.BaseRequest) -> web.StreamResponse:
        """Every instance."""
        return json_answer(Instances(await self.instance_states()))

    async def instance_states(self) -> list[Instance]:
        """The state of every instance, those that do not take part last."""
        last, held = await self.spool.last_runs(), await self._turns()
        known = [
            _instance(task, () if task.section == "senders" else last.get(task.task, ()), held, enabled=True)
            for task in self.health.tasks()
        ]
        others = [_instance(task, (), held, enabled=False) for task in self.not_enabled]
        return [*known, *others]

    @Operation(
        "GET",
        "/api/v1/health",
        "getHealth",
        "See how the daemon fares; 503 if a post would not be durable now.",
        Permission.METRICS,
        {200: {JSON: HealthReport}, 503: {JSON: HealthReport}},
    )
    async def show_health(self, _request: web.BaseRequest) -> web.StreamResponse:
        """Everything at a glance; 503 if a post would not be durable now."""
        report = await self.health_report()
        return json_answer(report, 200 if report.durable else 503)

    async def health_report(self) -> HealthReport:
        """Everything at a glance."""
        store, spool = await asyncio.gather(_try(self.ingest.store.check), _try(self.spool.check))
        failing = [task.task for task in self.health.tasks() if task.last_error is not None]
        durable = store.works or (spool.works and bool(self.ingest.destinations))
        statistics = await self._statistics()
        return HealthReport(
            status="failing" if not durable else "ok" if store.works and spool.works and not failing else "degraded",
            version=__version__,
            durable=durable,
            store=store,
            spool=spool,
            records=await self._count("total"),
            differences=await self._count("differences"),
            queues=[_queue(sender, statistics) for sender in statistics.queues],
            quarantine=[QuarantineCount(task, stage, count) for (stage, task), count in statistics.quarantined.items()],
            gaps={site: format_time(last) for site, last in self.health.gaps.items()},
            failing=failing,
            refused_hosts=sorted(self.health.refused_hosts),
        )

    async def _turns(self) -> _Turns:
        try:
            return {turn.task: turn for turn in await self.ingest.store.turns()}
        except StoreUnavailable:  # health says so
            return {}

    async def _statistics(self) -> SpoolStatistics:
        try:
            return await self.spool.statistics()
        except StoreUnavailable:
            return SpoolStatistics()

    async def _count(self, name: str) -> int | None:
        try:
            count: int = getattr(await self.ingest.store.counts(), name)
        except StoreUnavailable:
            return None
        return count


async def _try(check: Callable[[], Awaitable[object]]) -> Part:
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            await check()
    except StoreUnavailable as error:
        return Part(works=False, error=str(error))
    except TimeoutError:
        return Part(works=False, error=f"no answer within {HEALTH_SECONDS} s")
    return _WORKS


def _instance(task: TaskHealth, last: Sequence[LastRun], held: _Turns, *, enabled: bool) -> Instance:
    return Instance(
        name=task.task,
        kind=task.kind,
        section=task.section,
        enabled=enabled,
        running=task.running,
        next_run=_time(task.next_run),
        last_started=_time(task.last_started),
        last_success=_time(task.last_success),
        failures=task.failures,
        last_error=task.last_error,
        last_runs=[_run(run) for run in last],
        turn=_turn(held[task.task]) if task.section == "plugins" and task.task in held else None,
    )


def _turn(turn: memory.HeldTurn) -> HeldTurn:
    return HeldTurn(turn.host, turn.process, format_time(turn.since), turn.expired)


def _run(last: LastRun) -> Run:
    return Run(
        started=format_time(last.started),
        seconds=last.duration.total_seconds(),
        error=last.error,
        records=last.records,
        quarantined=last.quarantined,
        skipped=dict(last.skipped),
    )


def _queue(sender: str, statistics: SpoolStatistics) -> Queue:
    queue = statistics.queues[sender]
    return Queue(sender, queue.entries, _time(queue.oldest), queue.attempts)


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)
