"""Audits of collectors: contexts, limits and repairs around :mod:`auditord.audit`."""

import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from auditord.actions import Note, Observer, RecordActions, RunRequest
from auditord.audit.auditing import Audit, Repairs
from auditord.audit.comparing import Sides
from auditord.audit.values import AuditReport, AuditRequest
from auditord.errors import UnsuitableRequest
from auditord.storage import Storage
from auditord.tasks.instances import Instances, closing
from auditord_hookspecs import Reach, Record

_CLUSTER: Final = re.escape("{cluster}")


class Audits:
    """Audits the collectors of a configuration."""

    def __init__(self, instances: Instances, storage: Storage) -> None:
        self._instances = instances
        self._storage = storage

    async def audit(
        self, request: AuditRequest, records: RecordActions, observer: Observer | None = None
    ) -> AuditReport:
        """Audit a collector, which goes on meanwhile.

        Raises:
            UnsuitableRequest: its kind has no inventory, or its records go elsewhere.
        """
        kind, config = self._instances.collectors[request.instance]
        if kind.inventory is None:
            raise UnsuitableRequest(f"{request.instance}: kind {kind.name} has no inventory of its source")
        if not self._storage.local_senders:
            text = "what it collects goes elsewhere, so there is no record store here to compare its source with"
            raise UnsuitableRequest(f"{request.instance}: {text}")
        run = RunRequest(request.instance, request.window, dry_run=True)
        with self._instances.noting_collected(request.instance) as collected:
            context = await self._instances.collector_context(run, observer)
            reach = Reach() if kind.reach is None else await kind.reach(config, context)
            audit = Audit(
                request,
                self._sides(request.instance),
                reach,
                own=self._own(request.instance),
                repairs=self._repairs(request, records, collected),
                now=self._instances.now(),
            )
            async with closing(kind.inventory(config, context)) as inventory:
                return await audit.run(inventory)

    def _sides(self, task: str) -> Sides:
        storage = self._storage
        return Sides(storage.store, storage.spool, storage.local_senders, task, storage.transform)

    def _own(self, name: str) -> Callable[[str], bool] | None:
        """Tells by its id whether a record is the collector's: of all prefixes that fit, the longest counts."""
        found = {
            other: kind.prefix(config)
            for other, (kind, config) in self._instances.collectors.items()
            if kind.prefix is not None
        }
        return partial(_begins, _patterns(found.values()), found[name]) if found.get(name) else None

    def _repairs(self, request: AuditRequest, records: RecordActions, collected: Collection[str]) -> Repairs:
        note = Note(request.replace or "", request.by)

        async def correct(record: Record, stored: Record) -> str | None:
            outcome = await records.correct(record, stored, note)
            return None if outcome.outcome in {"done", "same"} else outcome.detail or outcome.outcome

        turn = self._instances.turns[request.instance].borrowed
        return Repairs(partial(self._instances.keep, request.instance, again=True), correct, turn, collected)


def _patterns(prefixes: Iterable[str]) -> list[tuple[str, re.Pattern[str]]]:
    ordered = sorted(set(prefixes), key=len, reverse=True)
    return [(prefix, re.compile(re.escape(prefix).replace(_CLUSTER, ".+") + "-")) for prefix in ordered]


def _begins(patterns: list[tuple[str, re.Pattern[str]]], prefix: str, record_id: str) -> bool:
    return next((each for each, pattern in patterns if pattern.match(record_id)), None) == prefix
