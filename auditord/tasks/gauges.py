"""Regular looks at the spool and the record store, so that ``/metrics`` asks no database."""

import logging
from datetime import timedelta
from typing import Final, NoReturn

import anyio

from auditord.config.watching import DatabaseMetricsSection
from auditord.errors import StoreUnavailable
from auditord.metrics import CountedKey, DatabaseMetrics
from auditord.spool import Spool
from auditord.spool.exposition import SpoolMetrics
from auditord.store import RecordStore
from auditord.systemd import Notifier

_INTERVAL: Final = 5.0
_COUNTED: Final = {
    "RecordCountPerSite": ("num_records_database_per_site", "site"),
    "RecordCountPerGroup": ("num_records_database_per_group", "group_id"),
    "RecordCountPerUser": ("num_records_database_per_user", "user_id"),
}
"""AUDITOR's names and labels; only the meta keys behind them can be configured."""

_log: Final = logging.getLogger(__name__)


def record_gauges(section: DatabaseMetricsSection, *, with_users: bool) -> DatabaseMetrics:
    """The gauges about the records that the configuration asks for; those that name users only where they may."""
    shown = {metric: key for metric, key in section.keys.items() if with_users or metric != "RecordCountPerUser"}
    keys = tuple(CountedKey(*_COUNTED[metric], key) for metric, key in shown.items())
    return DatabaseMetrics(total="RecordCount" in section.metrics, keys=keys, most_values=section.most_values)


async def look_at_spool(spool: Spool, metrics: SpoolMetrics, notifier: Notifier) -> NoReturn:
    """Keep the statistics of the spool fresh, systemd's status line, and the file no larger than it must be."""
    while True:
        try:
            metrics.update(await spool.statistics())
            await spool.give_room_back()
        except StoreUnavailable as error:
            _log.warning("the statistics of the spool are old: %s", error)
        queued = sum(queue.entries for queue in metrics.statistics.queues.values())
        quarantined = sum(metrics.statistics.quarantined.values())
        notifier.status(f"{queued} entries queued, {quarantined} in quarantine")
        await anyio.sleep(_INTERVAL)


async def count_records(store: RecordStore, metrics: DatabaseMetrics, interval: timedelta) -> NoReturn:
    """Keep AUDITOR's gauges fresh; the store maintains the counts, so this scans nothing."""
    while True:
        try:
            counts = await store.counts()
            metrics.update(counts.total, counts.per_value, counts.differences)
        except StoreUnavailable as error:
            _log.warning("the counts of records are old: %s", error)
        await anyio.sleep(interval.total_seconds())
