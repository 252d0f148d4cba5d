"""Audits of collectors, on request and every night: contexts, limits, repairs and metrics of :mod:`auditord.audit`."""

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NoReturn

import msgspec
from msgspec.structs import replace
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from auditord.actions import Actions, Note, Observer, RecordActions, RunRequest
from auditord.audit.auditing import Audit, Repairs, Sides
from auditord.audit.values import AuditReport, AuditRequest
from auditord.config.kinds import list_audited, why_not_audited
from auditord.config.model import AuditSection, Configuration
from auditord.errors import UnsuitableRequest
from auditord.hooks import Hooks
from auditord.metrics import gauge
from auditord.spool import Spool
from auditord.storage import Storage
from auditord.tasks.instances import Instances, closing
from auditord.tasks.runs import Clock, Turn
from auditord_hookspecs import AuditordError, Batch, Reach, Record, Window, hookimpl
from auditord_hookspecs.wire import format_time, parse_time
from auditord_hookspecs.wording import counted

_CLUSTER: Final = re.escape("{cluster}")
_CLUSTER_NAME: Final = r".*[^\d_+-].*"
"""Matches a cluster's name but no job id, since the ids with and without a cluster can begin alike."""


class Audits:
    def __init__(self, instances: Instances, storage: Storage) -> None:
        self._instances = instances
        self._storage = storage

    async def audit(
        self, request: AuditRequest, records: RecordActions, observer: Observer | None = None
    ) -> AuditReport:
        """Audit a collector, which may run meanwhile.

        Raises:
            UnsuitableRequest: it has no inventory of its source, or its records go to another destination.
        """
        storage = self._storage
        kind, config = self._instances.collectors[request.instance]
        if (reason := why_not_audited(kind, config)) is not None or kind.inventory is None:
            raise UnsuitableRequest(f"{request.instance}: {reason}")
        if not storage.local_senders:
            text = "its records go to another destination, so there is no record store here to compare with its source"
            raise UnsuitableRequest(f"{request.instance}: {text}")
        run = RunRequest(request.instance, request.window, dry_run=True)
        with self._instances.noting_collected(request.instance) as collected:
            context = await self._instances.collector_context(run, observer)
            reach = Reach() if kind.reach is None else await kind.reach(config, context)
            if kind.prefix is not None:  # jobs from before a change of the prefix are stored under other ids
                since = await storage.spool.prefix_used_since(request.instance, kind.prefix(config))
                reach = replace(reach, collects=max(filter(None, (reach.collects, since)), default=None))
            audit = Audit(
                request,
                Sides(storage.store, storage.spool, storage.local_senders, request.instance, storage.transform),
                reach,
                own=self._own(request.instance),
                repairs=self._repairs(request, records, collected),
            )
            async with closing(kind.inventory(config, context)) as inventory:
                return await audit.run(inventory)

    def _own(self, name: str) -> Callable[[str], bool] | None:
        """Return a predicate that tells by its id whether a record is the collector's: the longest prefix decides."""
        found = {
            other: kind.prefix(config)
            for other, (kind, config) in self._instances.collectors.items()
            if kind.prefix is not None
        }
        if not (own := found.get(name)):
            return None
        prefixes = sorted(set(found.values()), key=len, reverse=True)
        patterns = [
            (prefix, re.compile(re.escape(prefix).replace(_CLUSTER, _CLUSTER_NAME) + "-")) for prefix in prefixes
        ]

        def is_own(record_id: str) -> bool:
            return next((prefix for prefix, pattern in patterns if pattern.match(record_id)), None) == own

        return is_own

    def _repairs(self, request: AuditRequest, records: RecordActions, collected: Collection[str]) -> Repairs:
        note = Note(request.replace or "", request.by)

        async def correct(record: Record, stored: Record) -> str | None:
            outcome = await records.correct(record, stored, note)
            return None if outcome.outcome in {"done", "same"} else outcome.detail or outcome.outcome

        turn = self._instances.turns[request.instance].borrow
        return Repairs(partial(self._instances.keep, request.instance, again=True), correct, turn, collected)


_log: Final = logging.getLogger(__name__)

TASK: Final = "nightly audit"
"""The name of the nightly audit for the clock."""

MISSING: Final = ("missing", "unclosed", "quarantined")


class NightlyResult(msgspec.Struct, frozen=True):
    """The result of a collector's nightly audit, with counts by day. It survives restarts."""

    finished: str
    missing: dict[str, int]


@hookimpl
def feature_work(  # noqa: PLR0917 the hook's arguments, by name
    configuration: Configuration,
    current: Callable[[], Configuration],
    hooks: Hooks,
    storage: Storage,
    actions: Actions,
    registry: CollectorRegistry,
    clock: Clock,
    start_soon: Callable[..., object],
    now: Callable[[], datetime],
) -> Awaitable[None] | None:
    """Audit every night, if ``audit.enabled``, the collectors with an inventory whose records are stored here."""
    section = configuration.audit
    if not section.enabled:
        return None

    def tasks() -> Sequence[str]:
        return list_audited(current(), hooks.kinds) if storage.local_senders else ()

    audits = NightlyAudits(section, tasks, actions, storage.spool)
    registry.register(audits)
    # Not at the start: an audit covers several nights, and one that ended the daemon would end it at every start.
    clock.add(TASK, audits.turn, section.schedule, timedelta(0), audits.log_skip, last_success=datetime.now(UTC))
    start_soon(audits.run, now)
    return audits.restore()  # awaited before the first scrape, which then shows the results


@dataclass(eq=False)
class NightlyAudits(Collector):
    """Audits the last complete days of each collector, one collector at a time, and exposes the results as metrics."""

    section: AuditSection
    tasks: Callable[[], Sequence[str]]
    actions: Actions
    spool: Spool
    turn: Turn = field(default_factory=Turn)
    results: dict[str, NightlyResult] = field(default_factory=dict[str, NightlyResult])

    def collect(self) -> Iterable[Metric]:
        ended = {(task,): parse_time(result.finished).timestamp() for task, result in self.results.items()}
        missing = {(task, day): n for task, result in self.results.items() for day, n in result.missing.items()}
        return (
            gauge(
                "auditord_source_missing_records",
                "Runs of the source without a record, or with an open one, as of the last nightly audit.",
                ("task", "day"),
                missing.items(),
            ),
            gauge(
                "auditord_audit_last_success_timestamp_seconds",
                "Time when the last complete nightly audit finished.",
                ["task"],
                ended.items(),
            ),
        )

    def log_skip(self) -> None:
        """Log that the previous audit is still running."""
        _log.warning("last night's audit is still running, so this one is skipped")

    async def restore(self) -> None:
        """Load the results from before a restart."""
        for task in self.tasks():
            stored: Any = await self.spool.checkpoint(_checkpoint_name(task))  # Any: JSON
            if stored is not None:
                self.results[task] = msgspec.convert(stored, NightlyResult)

    async def run(self, now: Callable[[], datetime]) -> NoReturn:
        """Audit at every request of the clock."""
        while True:
            async with self.turn.take():
                for task in self.tasks():
                    if task not in self.tasks():  # a reload removed it meanwhile
                        continue
                    try:
                        await self._audit(task, now)
                    except AuditordError as error:
                        _log.error("the audit of %s failed: %s", task, error)
                    except (Exception, SystemExit):  # noqa: BLE001 the error boundary of an inventory
                        _log.exception("the audit of %s failed", task)

    async def _audit(self, task: str, now: Callable[[], datetime]) -> None:
        end = now().replace(hour=0, minute=0, second=0, microsecond=0)
        window = Window(end - timedelta(days=self.section.days), end)
        report = await self.actions.audit(AuditRequest(task, window), None)
        if report.error is not None:
            _log.error("the audit of %s is incomplete: %s", task, report.error)
            return
        days = [(window.start + timedelta(days=number)).astimezone(UTC) for number in range(self.section.days)]
        missing = {day.date().isoformat(): 0 for day in days}
        for each in report.days:  # jobs of an unknown day have an empty key
            if count := sum(each.counts.get(state, 0) for state in MISSING):
                missing[each.day] = missing.get(each.day, 0) + count
        result = NightlyResult(format_time(now()), missing)
        self.results[task] = result
        if count := sum(result.missing.values()):
            records, held = counted(count, "record is", "records are"), report.total("quarantined")
            _log.warning("%s: %s missing, %d of them in quarantine: auditord audit %s", task, records, held, task)
        await self.spool.enqueue(_checkpoint_name(task), Batch(checkpoint=msgspec.to_builtins(result)), ())


def _checkpoint_name(task: str) -> str:
    """Return the name under which the result is stored as a checkpoint; no instance can have it."""
    return f"audit:{task}"
