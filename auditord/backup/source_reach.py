"""Find out what collectors can collect again after a loss: how far back their sources reach.

A collector whose checkpoint is set back reads its source again. Jobs that the source no longer has, or never lists
again (notes and files that were processed), stay lost; ``auditord restore`` names them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from auditord.config.kinds import InstalledKinds
from auditord.config.model import Configuration, kind_of
from auditord.contexts.instances import SpoolCollectorContext, environment_of
from auditord.spool import Spool
from auditord_hookspecs import AuditordError, CollectorKind, InstanceConfig, Reach
from auditord_hookspecs.wire import format_time


class Looked(msgspec.Struct, frozen=True):
    """A collector's reach.

    Args:
        name: the instance's name.
        anew: the reach without a checkpoint; None if the kind cannot tell.
        before: the reach with the current checkpoint; None if the kind cannot tell.
        fault: why the source could not be queried.
    """

    name: str
    anew: Reach | None = None
    before: Reach | None = None
    fault: str | None = None

    def warning(self, since: datetime | None) -> str | None:
        """Name what cannot be collected again of the time since a moment; None: since its beginning."""
        if self.fault is not None:
            return (
                f"{self.name}: its source does not answer, and records lost from it may be lost for good: {self.fault}"
            )
        if self.anew is None:
            return f"{self.name}: its source lists nothing again; notes and files that were taken in are lost"
        remembers = self.anew.remembers
        if remembers is None or (since is not None and remembers <= since):
            return None
        return (
            f"{self.name}: its source has forgotten what ended before {format_time(remembers)}; that is lost for good"
        )

    def late_beginning(self, until: datetime | None) -> datetime | None:
        """Return the ``earliest_datetime`` to configure, lest the collector begin later; None if not needed.

        Args:
            until: the end of the last record that is still there.
        """
        begins = None if self.anew is None else self.anew.collects
        wanted = until if self.before is None or self.before.collects is None else self.before.collects
        return wanted if begins is not None and wanted is not None and begins > wanted else None


async def look_at_sources(
    configuration: Configuration, kinds: InstalledKinds, spool: Spool, now: Callable[[], datetime]
) -> Sequence[Looked]:
    """Ask the sources of all enabled collectors."""
    found: list[Looked] = []
    for name, config in sorted(configuration.collectors.items()):
        if config.enabled:
            kind, checkpoint = kinds.collectors[kind_of(config)], await spool.checkpoint(name)
            context = SpoolCollectorContext(
                name, kind.name, now, environment_of(config), spool=spool, checkpoint=checkpoint, dry_run=True
            )
            found.append(await _look(kind, config, context))
    return found


async def _look(
    kind: CollectorKind[Any],  # Any: each kind has its own configuration model
    config: InstanceConfig,
    context: SpoolCollectorContext,
) -> Looked:
    if kind.reach is None:
        return Looked(context.instance)
    try:
        anew = await kind.reach(config, dataclasses.replace(context, checkpoint=None))
        before = None if context.checkpoint is None else await kind.reach(config, context)
    except AuditordError as error:
        return Looked(context.instance, fault=str(error))
    return Looked(context.instance, anew, before)
