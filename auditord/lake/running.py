"""The lake sync as a scheduled instance, like those of plugins. One daemon of a database runs it at a time."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from auditord.config.lake import LakeSection
from auditord.lake.opening import ConfiguredLake, lake_module
from auditord.store.lake import LakeOvertaken
from auditord.store.store import RecordStore
from auditord_hookspecs import PluginContext, PluginKind
from auditord_hookspecs.wording import counted

if TYPE_CHECKING:
    from auditord.lake.table import LakeFacts, LakeTable

INSTANCE: Final = "lake"
"""Name and kind of the instance."""

_COMMIT_TIME: Final = timedelta(days=1)
"""Longest duration of a commit. Older files that no snapshot refers to come from a failed commit."""

_INTERVALS: Final = {"cleaned_at": timedelta(hours=12), "listed_at": timedelta(days=7)}
"""Intervals between expiries of snapshots, and between searches for files of failed commits, which list all files."""


class LakeMetrics(Collector):
    def __init__(self) -> None:
        self.facts: LakeFacts | None = None
        self.complete_at: datetime | None = None
        self.waiting = 0
        self.released = 0

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, or none before the first successful run."""
        if (facts := self.facts) is None or facts.committed_at is None or self.complete_at is None:
            return
        yield GaugeMetricFamily(
            "auditord_lake_last_commit_timestamp_seconds",
            "Time of the newest snapshot of the lake.",
            facts.committed_at.timestamp(),
        )
        yield GaugeMetricFamily(
            "auditord_lake_complete_timestamp_seconds",
            "Time up to which the lake has all changes of this daemon's record store.",
            self.complete_at.timestamp(),
        )
        yield GaugeMetricFamily(
            "auditord_lake_waiting_changes", "Number of changes not synced yet when the last run ended.", self.waiting
        )
        yield GaugeMetricFamily(
            "auditord_lake_released_records",
            "Number of this daemon's records that are only in the lake.",
            self.released,
        )
        yield GaugeMetricFamily("auditord_lake_records", "Number of records of all daemons in the lake.", facts.records)
        yield GaugeMetricFamily("auditord_lake_files", "Number of the lake's data files.", facts.files)
        yield GaugeMetricFamily("auditord_lake_size_bytes", "Size of the lake's data files.", facts.size)


def lake_kind(store: RecordStore, lake: ConfiguredLake, metrics: LakeMetrics) -> PluginKind[LakeSection]:
    async def run(section: LakeSection, context: PluginContext) -> None:
        daemon = section.name or ""  # the model requires it
        if context.dry_run:
            context.show(f"would sync {counted(await store.lake_waiting(), 'change')} to {lake.warehouse} as {daemon}")
            if section.keep_months is not None:
                context.show(f"would release records older than {counted(section.keep_months, 'month')}")
            for site, age in section.sites.items():
                kept = "all" if age.keep_months is None else counted(age.keep_months, "month")
                context.show(f"would keep {kept} of site {site}")
            return
        started_at, table = context.now(), lake.table
        lake.make_folder()
        syncing = await asyncio.to_thread(lake_module, "syncing")  # importing the libraries takes a second
        synced = await syncing.sync(store, table, daemon, context.log)
        released = await syncing.release(store, table, daemon, partial(section.is_old, context.now()))
        with suppress(LakeOvertaken):  # another daemon committed first: the next run retries
            if synced.batches or released:
                await asyncio.to_thread(table.compact, daemon)
            await _clean(store, table, section.keep_snapshots, context, started_at)
        facts = await asyncio.to_thread(table.facts)
        metrics.facts, metrics.complete_at, metrics.waiting = facts, started_at, await store.lake_waiting()
        metrics.released = (await store.lake_state()).records
        context.log.info("synced %s in %s", counted(synced.records, "record"), counted(synced.batches, "commit"))
        if released:
            context.log.info("released %s", counted(released, "record"))
        summary = counted(facts.records, "record"), counted(facts.files, "file"), facts.size / 1e6
        context.log.info("the lake has %s in %s, %.1f MB", *summary)
        # Queries with source=lake refuse the same rows.
        await asyncio.to_thread(table.check_rows, daemon if section.scope == "own" else None)

    return PluginKind(
        name=INSTANCE, config=LakeSection, run=run, interval=timedelta(minutes=5), timeout=timedelta(days=1)
    )


async def _clean(
    store: RecordStore, table: "LakeTable", kept_for: timedelta, context: PluginContext, started_at: datetime
) -> None:
    """Expire snapshots, and search for files of failed commits, each if the last time is longer ago than its interval.

    Raises:
        LakeOvertaken: another daemon committed first.
    """
    state = dict[str, str](context.state or {})
    times = {work: datetime.fromisoformat(moment) for work, moment in state.items()}
    # A time in the future is that of a clock that was wrong.
    due = {
        work
        for work, every in _INTERVALS.items()
        if work not in times or not timedelta(0) <= started_at - times[work] < every
    }
    if "cleaned_at" not in due:
        return
    needed = (await store.lake_state()).snapshot_id
    deleted = await asyncio.to_thread(table.expire, started_at - kept_for, needed)
    if "listed_at" in due:
        deleted += await asyncio.to_thread(table.delete_strays, started_at - _COMMIT_TIME)
        state["listed_at"] = started_at.isoformat()
    await context.save_state({**state, "cleaned_at": started_at.isoformat()})
    context.log.info("deleted %s that no snapshot needs", counted(deleted, "file"))


def lake_plugins(
    store: RecordStore, lake: ConfiguredLake, section: LakeSection, registry: CollectorRegistry
) -> dict[str, tuple[PluginKind[Any], LakeSection]]:  # Any: as of kinds of hook modules
    """Return the instance by its name if the lake is enabled, and register its metrics."""
    if not section.enabled:
        return {}
    registry.register(metrics := LakeMetrics())
    return {INSTANCE: (lake_kind(store, lake, metrics), section)}
