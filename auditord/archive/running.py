"""The archive as an instance that runs by the clock, as plugins do: one daemon of a database at a time."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge

from auditord.archive.opening import ConfiguredArchive
from auditord.config.archive import ArchiveSection
from auditord.store import RecordStore
from auditord_hookspecs import PluginContext, PluginKind

INSTANCE: Final = "archive"
"""Name and kind of the instance."""


def archive_kind(
    store: RecordStore, archive: ConfiguredArchive, registry: CollectorRegistry
) -> PluginKind[ArchiveSection]:
    """The kind of the one instance."""
    succeeded = Gauge(
        "auditord_archive_last_success_timestamp_seconds",
        "When the last run of the archive that went well has ended.",
        registry=registry,
    )
    archived = Gauge("auditord_archived_records", "Number of records in the archive.", registry=registry)

    async def run(section: ArchiveSection, context: PluginContext) -> None:
        before = first_kept(context.now(), section.after_months)
        sites = {site: first_kept(context.now(), age.months) for site, age in section.sites.items()}
        if context.dry_run:
            context.show(f"would archive the records that stopped before {before:%Y-%m-%d}, in {archive.folder}")
            for site, its_own in sites.items():
                context.show(f"those of site {site}: before {its_own:%Y-%m-%d}")
            return
        archive.folder.mkdir(parents=True, exist_ok=True)
        table = archive.table
        archiver: Any = import_module("auditord.archive.archiver").Archiver(store, table)
        result = await archiver.run(before, sites)
        context.log.info("archived %d records, %d were changed meanwhile", result.moved, result.kept)
        archived.set((await store.archive_state()).records)
        succeeded.set(context.now().timestamp())

    return PluginKind(
        name=INSTANCE, config=ArchiveSection, run=run, interval=timedelta(days=1), timeout=timedelta(days=1)
    )


def own_plugins(
    store: RecordStore, archive: ConfiguredArchive, section: ArchiveSection, registry: CollectorRegistry
) -> Mapping[str, tuple[PluginKind[Any], ArchiveSection]]:  # Any: as of kinds of hook modules
    """The instance by its name, if the configuration wants one."""
    return {INSTANCE: (archive_kind(store, archive, registry), section)} if section.enabled else {}


def first_kept(now: datetime, months: int) -> datetime:
    """The beginning of the first month of UTC whose records stay."""
    number = now.astimezone(UTC).year * 12 + now.astimezone(UTC).month - 1 - months
    return datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)
