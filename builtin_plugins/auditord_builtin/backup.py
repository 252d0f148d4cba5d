"""Plugin ``backup``: scheduled backups of the record store and the spool."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from pydantic import Field

from auditord_hookspecs import PluginConfig, PluginContext, PluginKind, hookimpl
from auditord_hookspecs.config import AbsolutePath


class BackupConfig(PluginConfig):
    """Backs up the record store and the spool while the daemon is running."""

    folder: AbsolutePath = Field(
        description="Where backups are written, each as a folder; use another disk, better another host."
    )
    keep: int = Field(
        default=14,
        ge=1,
        description="Keep this many of the newest backups, and the last one of each of as many days; older ones are "
        "deleted once a new one is complete.",
    )
    rate: int | None = Field(
        default=None, ge=1, description="The most bytes per second to read from SQLite files; default: no limit."
    )
    dump: bool = Field(
        default=True,
        description="Dump a record store in PostgreSQL with pg_dump; one daemon per database is enough.",
    )


async def back_up(config: BackupConfig, context: PluginContext) -> None:
    """Make one backup and delete the oldest beyond ``keep``."""
    if context.dry_run:
        context.show(f"would make a backup in {config.folder} and keep the newest {config.keep}")
        return
    made = await context.backups.make(config.folder, keep=config.keep, rate=config.rate, dump=config.dump)
    context.log.info("made the backup %s", made)


KIND: Final = PluginKind(
    name="backup",
    config=BackupConfig,
    run=back_up,
    interval=timedelta(days=1),
    timeout=timedelta(hours=12),
    effect=lambda config: f"makes a backup in {config.folder} and keeps the newest {config.keep}",
)


@hookimpl
def auditord_plugins() -> Iterable[PluginKind[Any]]:  # Any: each kind has its own configuration model
    yield KIND
