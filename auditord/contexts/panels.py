"""Collect the panels of hook modules, and limit their queries to the records that a visitor may see."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from auditord.config.model import INSTANCE_NAME
from auditord.contexts.instances import StateStore, remote_source
from auditord.errors import HookError
from auditord.hooks import HookModule, Hooks
from auditord.spool import Spool
from auditord_hookspecs import (
    AggregateQuery,
    Aggregates,
    AuditordError,
    InstanceConfig,
    Panel,
    Permission,
    RunReport,
)

Aggregate = Callable[[AggregateQuery], Awaitable[Aggregates]]


class PanelInstance(msgspec.Struct, frozen=True):
    """An enabled instance."""

    section: str
    name: str
    kind: str
    config: InstanceConfig


class Memories(msgspec.Struct, frozen=True):
    """The stored states and runs of instances.

    Args:
        store: the state of plugins.
        spool: checkpoints, last runs, and the state of plugins with a remote ``source``.
    """

    store: StateStore
    spool: Spool

    async def state(self, instance: PanelInstance) -> Any:  # Any: JSON of its own
        """Return the checkpoint of a collector or the state of a plugin."""
        if instance.section == "collectors":
            return await self.spool.checkpoint(instance.name)
        states = self.store if remote_source(instance.config) is None else self.spool
        async with states.memory(instance.name, None) as memory:
            return await memory.load()

    async def last_runs(self, task: str) -> Sequence[RunReport]:
        """Return the last runs, the newest first."""
        runs = (await self.spool.last_runs()).get(task, ())
        return [
            RunReport(
                run.task, run.kind, run.started, run.duration, run.error, run.records, run.quarantined, run.skipped
            )
            for run in runs
        ]


class HostPanelContext(msgspec.Struct, frozen=True):
    """Implements :class:`auditord_hookspecs.PanelContext`.

    Args:
        of: the instance, if the panel belongs to a kind.
        sums: returns sums over the records that the visitor may see.
    """

    panel: Panel
    of: PanelInstance | None
    sums: Aggregate
    now: Callable[[], datetime]
    memories: Memories

    @property
    def instance(self) -> str | None:
        """The instance's name."""
        return None if self.of is None else self.of.name

    @property
    def config(self) -> Any:  # Any: the kind's own model
        """The instance's section."""
        return None if self.of is None else self.of.config

    async def aggregate(self, query: AggregateQuery) -> Aggregates:
        """Return sums over the records that the visitor may see."""
        return await self.sums(query)

    async def state(self) -> Any:  # Any: JSON of the instance's own
        """Return the JSON that the instance saved last."""
        return await self.memories.state(self._whole())

    async def pending(self) -> Mapping[str, Any]:  # Any: the same
        """Return the values that a collector keeps between runs."""
        return await self.memories.spool.pending(self._whole().name)

    async def last_runs(self) -> Sequence[RunReport]:
        """Return the reports of the last runs."""
        return await self.memories.last_runs(self._whole().name)

    def _whole(self) -> PanelInstance:
        if self.of is None or not self.panel.whole:
            raise AuditordError("only panels with whole=True and a kind can read an instance's saved data")
        return self.of


class Panels(msgspec.Struct, frozen=True):
    """The panels of all hook modules.

    Args:
        declared: the panels, each with the name of its module.
        instances: returns the currently enabled instances.
    """

    declared: Sequence[tuple[str, Panel]]
    instances: Callable[[], Iterable[PanelInstance]]
    memories: Memories

    def shown(self) -> Iterator[tuple[str, Panel, PanelInstance | None]]:
        """Yield module and panel, and the instance if the panel belongs to a kind: once for each of them."""
        for module, panel in self.declared:
            if panel.kind is None:
                yield module, panel, None
            else:
                yield from ((module, panel, each) for each in self.instances() if each.kind == panel.kind)


def declared_panels(hooks: Hooks) -> Sequence[tuple[str, Panel]]:
    """Return the panels that hook modules declare.

    Raises:
        HookError: a module declares something else, or fails.
    """
    found = list(hooks.declarations("auditord_panels"))
    named = set[tuple[HookModule, str]]()
    for module, panel in found:
        if fault := _fault(panel):
            raise HookError(f"{module} {fault}")
        if (module, panel.name) in named:
            raise HookError(f"{module} declares two panels '{panel.name}': give one of them another name")
        named.add((module, panel.name))
    return [(str(module), panel) for module, panel in found]


def _fault(declared: Any) -> str | None:  # Any: what a hook module yields
    if not isinstance(declared, Panel):
        return f"declares {declared!r} among its panels: yield values of Panel"
    panel: Any = declared  # Any: a dataclass checks none of its fields
    if not (isinstance(panel.name, str) and re.fullmatch(INSTANCE_NAME, panel.name)):
        return f"declares the panel '{panel.name}', whose name is no identifier: small letters, digits and _"
    if not inspect.iscoroutinefunction(panel.show):
        return f"declares the panel '{panel.name}', whose show is not async: write 'async def', without yield"
    if not isinstance(panel.permission, Permission):
        return f"declares the panel '{panel.name}', whose permission is none of auditord_hookspecs.Permission"
    return None
