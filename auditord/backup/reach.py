"""The reach of collectors into their sources: which jobs can be collected again after a loss.

``auditord restore`` prints the warnings, with and without a backup.
"""

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from auditord.config.kinds import InstalledKinds
from auditord.config.model import Configuration, kind_of
from auditord.contexts.instances import SpoolCollectorContext, environment_of
from auditord.spool import Spool
from auditord_hookspecs import AuditordError, Reach
from auditord_hookspecs.wire import format_time


class SourceReach(msgspec.Struct, frozen=True):
    """A collector's reach into its source.

    Args:
        name: of the instance.
        without_checkpoint: None if the kind does not know it.
        with_checkpoint: None if there is no checkpoint, or if the kind does not know its reach.
        fault: why the source could not be queried.
    """

    name: str
    without_checkpoint: Reach | None = None
    with_checkpoint: Reach | None = None
    fault: str | None = None

    def warning(self, since: datetime | None) -> str | None:
        """Return a warning about data after ``since`` (None for all data) that cannot be collected again, or None."""
        if self.fault is not None:
            return f"{self.name}: its source does not answer, so its records may be lost for good: {self.fault}"
        if self.without_checkpoint is None:
            return f"{self.name}: its source cannot be read a second time; notes and files already collected are lost"
        remembers = self.without_checkpoint.remembers
        if remembers is None or (since is not None and remembers <= since):
            return None
        return (
            f"{self.name}: its source no longer has jobs that ended before {format_time(remembers)}; they are lost for "
            "good"
        )

    def earliest_to_configure(self, until: datetime | None) -> datetime | None:
        """Return the ``earliest_datetime`` to configure so that the collector does not start later than before.

        Returns None if this is not needed. ``until`` is the stop time of the last record in the store.
        """
        begins = None if self.without_checkpoint is None else self.without_checkpoint.collects
        former = None if self.with_checkpoint is None else self.with_checkpoint.collects
        wanted = former or until
        return wanted if begins is not None and wanted is not None and begins > wanted else None


async def query_sources(
    configuration: Configuration, kinds: InstalledKinds, spool: Spool, now: Callable[[], datetime]
) -> Sequence[SourceReach]:
    """Query the sources of all enabled collectors for their reach."""
    found: list[SourceReach] = []
    for name, config in sorted(configuration.collectors.items()):
        if config.enabled:
            kind, checkpoint = kinds.collectors[kind_of(config)], await spool.checkpoint(name)
            context = SpoolCollectorContext(
                name, kind.name, now, environment_of(config), spool=spool, checkpoint=checkpoint, dry_run=True
            )
            if kind.reach is None:
                found.append(SourceReach(name))
                continue
            try:
                anew = await kind.reach(config, dataclasses.replace(context, checkpoint=None))
                former = None if checkpoint is None else await kind.reach(config, context)
            except AuditordError as error:
                found.append(SourceReach(name, fault=str(error)))
            else:
                found.append(SourceReach(name, anew, former))
    return found
