"""The archive as an instance that runs by the clock, as plugins do: one daemon of a database at a time."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final, NoReturn

import anyio
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from auditord.archive.opening import ConfiguredArchive
from auditord.config.archive import ArchiveSection
from auditord.database.durable_files import make_private_folder
from auditord.errors import StoreUnavailable
from auditord.spool import Spool
from auditord.store import RecordStore
from auditord_hookspecs import PluginContext, PluginKind
from auditord_hookspecs.wording import counted

INSTANCE: Final = "archive"
"""Name and kind of the instance."""

_BETWEEN_LOOKS: Final = 30.0
"""Seconds; another daemon of the same database may run the archive."""


class ArchiveMetrics(Collector):
    """The gauges of the archive: those that are known, from the first scrape after a restart on."""

    def __init__(self) -> None:
        self.records: int | None = None
        self.succeeded: datetime | None = None

    def collect(self) -> Iterator[Metric]:
        """The families; what is not known has no sample."""
        succeeded = None if self.succeeded is None else self.succeeded.timestamp()
        yield GaugeMetricFamily(
            "auditord_archive_last_success_timestamp_seconds",
            "When the last run of the archive that went well has ended.",
            succeeded,
        )
        yield GaugeMetricFamily("auditord_archived_records", "Number of records in the archive.", self.records)

    async def look(self, store: RecordStore, spool: Spool) -> None:
        """Read what store and spool know; a store that is away is reported by others."""
        with suppress(StoreUnavailable):
            if runs := (await spool.last_runs()).get(INSTANCE):
                self.succeeded = runs[0].last_success
            self.records = (await store.archive_state()).records

    async def keep_looking(self, store: RecordStore, spool: Spool) -> NoReturn:
        """Look again and again."""
        while True:
            await anyio.sleep(_BETWEEN_LOOKS)
            await self.look(store, spool)


def archive_kind(store: RecordStore, archive: ConfiguredArchive, metrics: ArchiveMetrics) -> PluginKind[ArchiveSection]:
    """The kind of the one instance."""

    async def run(section: ArchiveSection, context: PluginContext) -> None:
        before = first_kept(context.now(), section.after_months)
        sites = {site: first_kept(context.now(), age.months) for site, age in section.sites.items()}
        if context.dry_run:
            context.show(f"would archive the records that stopped before {before:%Y-%m-%d}, in {archive.folder}")
            for site, its_own in sites.items():
                context.show(f"those of site {site}: before {its_own:%Y-%m-%d}")
            return
        make_private_folder(archive.folder)
        archiver = await asyncio.to_thread(_archiver, store, archive, context.report_progress)
        result = await archiver.run(before, sites)
        context.log.info("archived %s, %d changed meanwhile", counted(result.moved, "record"), result.kept)
        metrics.records, metrics.succeeded = (await store.archive_state()).records, context.now()

    return PluginKind(
        name=INSTANCE, config=ArchiveSection, run=run, interval=timedelta(days=1), timeout=timedelta(days=1)
    )


def _archiver(
    store: RecordStore, archive: ConfiguredArchive, progressed: Callable[[float], None]
) -> Any:  # Any: of a module that is imported late
    """An archiver; its libraries take a second to be imported, so this is for a thread."""
    table = archive.table  # first: it says which extra is missing
    return import_module("auditord.archive.archiver").Archiver(store, table, progressed)


def archive_plugins(
    store: RecordStore, archive: ConfiguredArchive, section: ArchiveSection, metrics: ArchiveMetrics
) -> Mapping[str, tuple[PluginKind[Any], ArchiveSection]]:  # Any: as of kinds of hook modules
    """The instance by its name, if the configuration wants one."""
    return {INSTANCE: (archive_kind(store, archive, metrics), section)} if section.enabled else {}


def first_kept(now: datetime, months: int) -> datetime:
    """The beginning of the first month of UTC whose records stay."""
    number = now.astimezone(UTC).year * 12 + now.astimezone(UTC).month - 1 - months
    return datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)
