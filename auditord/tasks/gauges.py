"""Metrics of the daemon, and its state for ``auditord status --all``; refreshed in the background.

A request for ``/metrics`` therefore runs no query.
"""

import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NoReturn

import anyio
import msgspec
from anyio import to_thread
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from auditord import __version__
from auditord.actions import RUN_SECTIONS
from auditord.config.model import Configuration
from auditord.config.store_url import is_postgresql
from auditord.errors import StoreUnavailable
from auditord.health import Health
from auditord.ingest import Pairing
from auditord.metrics import CountedKey, DatabaseMetrics, gauge
from auditord.spool import Spool
from auditord.spool.encoding import QueueStatistics, SpoolStatistics
from auditord.store.protocol import DaemonState
from auditord.store.silence import SiteActivity, site_activity
from auditord.store.store import RecordStore
from auditord.systemd import Notifier
from auditord.tasks.instances import Instances, when
from auditord.tasks.runs import latest_tick
from auditord_hookspecs import CollectorKind
from auditord_hookspecs.checks import certificate_end
from auditord_hookspecs.wording import counted

_SPOOL_SECONDS: Final = 5.0
_COUNTED: Final = {
    "RecordCountPerSite": ("num_records_database_per_site", "site"),
    "RecordCountPerGroup": ("num_records_database_per_group", "group_id"),
    "RecordCountPerUser": ("num_records_database_per_user", "user_id"),
}
"""AUDITOR's metric names and labels; only their meta keys can be configured."""

MOST_VALUES: Final = 200
"""For each key, how many values (those with the most records) get a gauge of their own; the rest counts as other."""

_log: Final = logging.getLogger(__name__)


def record_gauges(configuration: Configuration) -> DatabaseMetrics:
    """Return the configured gauges about records, without those by user if every client could see them."""
    section, counted_labels = configuration.metrics.database, configuration.counted_labels.items()
    with_users = any(each.enabled for each in configuration.authenticators.values())
    shown = {metric: key for metric, key in counted_labels if with_users or metric != "RecordCountPerUser"}
    keys = tuple(CountedKey(*_COUNTED[metric], key) for metric, key in shown.items())
    return DatabaseMetrics(total="RecordCount" in section.metrics, keys=keys, max_values=MOST_VALUES)


class SpoolMetrics(Collector):
    """The metrics of queues, quarantine and checkpoints.

    Args:
        senders: kind by instance, so that an empty queue is shown as 0.
        now: returns the current time, since ages grow between refreshes.
    """

    def __init__(self, senders: dict[str, str], now: Callable[[], datetime]) -> None:
        self._senders = senders
        self._now = now
        self.statistics = SpoolStatistics()

    def collect(self) -> Iterator[Metric]:
        labels, statistics = ("task", "kind"), self.statistics
        # A queue without a sender: its instance was removed from the configuration.
        queues = [
            ((sender, self._senders.get(sender, "")), statistics.queues.get(sender, QueueStatistics()))
            for sender in sorted(self._senders.keys() | statistics.queues.keys())
        ]
        yield gauge(
            "auditord_queue_entries",
            "Entries in the send-queue.",
            labels,
            ((key, queue.entries) for key, queue in queues),
        )
        yield gauge(
            "auditord_queue_oldest_age_seconds",
            "Age of the oldest entry in the send-queue.",
            labels,
            ((key, 0 if queue.oldest is None else self._age(queue.oldest)) for key, queue in queues),
        )
        yield gauge(
            "auditord_quarantine_entries",
            "Entries in quarantine, which wait for an operator's decision.",
            ("task", "stage"),
            (((task, stage), count) for (stage, task), count in statistics.quarantined.items()),
        )
        yield gauge(
            "auditord_checkpoint_age_seconds",
            "Time since the checkpoint was last saved.",
            ("task",),
            (((task,), self._age(saved_at)) for task, saved_at in statistics.checkpoints.items()),
        )
        yield CounterMetricFamily(
            "auditord_refused_bodies",
            "Request bodies that were refused with status 400 and kept in quarantine.",
            value=statistics.refused_bodies,
        )
        yield CounterMetricFamily(
            "auditord_dropped_bodies",
            "Request bodies that were deleted from quarantine to make room for newer ones.",
            value=statistics.dropped_bodies,
        )

    def _age(self, moment: datetime) -> float:
        return max((self._now() - moment).total_seconds(), 0)


async def look_at_spool(spool: Spool, metrics: SpoolMetrics, notifier: Notifier) -> NoReturn:
    """Regularly refresh the spool's statistics and systemd's status line, and shrink the spool's file."""
    while True:
        try:
            metrics.statistics = await spool.statistics()
            await spool.give_room_back()
        except StoreUnavailable as error:
            _log.warning("cannot refresh the statistics of the spool: %s", error)
        queued = sum(queue.entries for queue in metrics.statistics.queues.values())
        quarantined = sum(metrics.statistics.quarantined.values())
        notifier.status(f"{counted(queued, 'entry')} queued, {quarantined} in quarantine")
        await anyio.sleep(_SPOOL_SECONDS)


async def count_records(
    store: RecordStore, metrics: DatabaseMetrics, interval: timedelta, now: Callable[[], datetime]
) -> NoReturn:
    """Regularly refresh AUDITOR's gauges. The store maintains the counts, so this scans no records."""
    while True:
        try:
            counts = await store.counts()
            metrics.update(counts.total, counts.per_value, counts.differences, counts.lag(now()))
        except StoreUnavailable as error:
            _log.warning("cannot refresh the counts of records: %s", error)
        await anyio.sleep(interval.total_seconds())


_HOST_SECONDS: Final = 30.0
"""The seconds between two refreshes of the host's metrics."""

_SITES_EVERY: Final = timedelta(minutes=30)
"""The time between two refreshes of the sites. It is long, because each queries the sums of ninety days."""


def run_intervals(instances: Instances) -> Mapping[tuple[str, str, str], timedelta]:
    """Return the interval of each enabled instance that is not continuous, by section, name and kind."""
    found: dict[tuple[str, str, str], timedelta] = {}
    for section in RUN_SECTIONS:
        for name, (kind, config) in instances.select_enabled(section).items():
            if not (isinstance(kind, CollectorKind) and kind.continuous):
                interval = when(config, kind.interval)
                if isinstance(interval, str):  # a cron line
                    now = instances.now()
                    last = latest_tick(interval, now) or now
                    interval = last - (latest_tick(interval, last - timedelta(microseconds=1)) or last)
                found[section, name, kind.name] = interval
    return found


class HostMetrics(Collector):
    """The metrics of host, store, instances and sites, as of the last refresh.

    Args:
        intervals: the time between two runs, by section, name and kind.
        health: has the last success of instances, also from before a restart.
        now: returns the current time, since silences grow between refreshes.
    """

    def __init__(
        self, intervals: Mapping[tuple[str, str, str], timedelta], health: Health, now: Callable[[], datetime]
    ) -> None:
        self._intervals = intervals
        self._health = health
        self.now = now
        self.store_works: bool | None = None
        self.disks: Mapping[str, tuple[int, int]] = {}
        self.certificates: Mapping[str, datetime] = {}
        self.clock_offset: timedelta | None = None
        self.sites: Sequence[SiteActivity] = ()

    def collect(self) -> Iterator[Metric]:
        yield gauge(
            "auditord_run_interval_seconds",
            "Configured time between two runs of an instance.",
            ("section", "task", "kind"),
            ((key, interval.total_seconds()) for key, interval in self._intervals.items()),
        )
        yield gauge(
            "auditord_last_success_timestamp_seconds",
            "Time of the last successful run.",
            ("task", "kind"),
            (
                ((task.task, task.kind), task.last_success.timestamp())
                for task in self._health.tasks()
                if task.section in RUN_SECTIONS and task.last_success is not None
            ),
        )
        yield gauge(
            "auditord_disk_free_bytes",
            "Free space of a file system where the daemon keeps files.",
            ["path"],
            (((path,), free) for path, (free, _) in self.disks.items()),
        )
        yield gauge(
            "auditord_disk_size_bytes",
            "Size of a file system where the daemon keeps files.",
            ["path"],
            (((path,), total) for path, (_, total) in self.disks.items()),
        )
        yield gauge(
            "auditord_certificate_expiry_timestamp_seconds",
            "Time when the first certificate in a file expires.",
            ["file"],
            (((file,), end.timestamp()) for file, end in self.certificates.items()),
        )
        if self.store_works is not None:
            yield GaugeMetricFamily(
                "auditord_store_up",
                "1 if the last test write to the record store worked, else 0.",
                int(self.store_works),
            )
        if self.clock_offset is not None:
            yield GaugeMetricFamily(
                "auditord_clock_offset_seconds",
                "Clock of the database server minus clock of this host.",
                self.clock_offset.total_seconds(),
            )
        yield gauge(
            "auditord_site_silence_seconds",
            "Time since the end of a site's last record.",
            ["site"],
            (((site.site,), (self.now() - site.last).total_seconds()) for site in self.sites),
        )
        yield gauge(
            "auditord_site_usual_interval_seconds",
            "Mean time between a site's days with records.",
            ["site"],
            (((site.site,), site.usual.total_seconds()) for site in self.sites if site.usual is not None),
        )


async def look_at_host(
    configuration: Configuration,
    certificates: Sequence[Path],
    store: RecordStore,
    metrics: HostMetrics,
    health: Health,
) -> NoReturn:
    """Regularly refresh the metrics, and the silent sites in health. A reload changes ``certificates`` in place."""
    sites_seen: datetime | None = None
    unreadable: Mapping[str, str] = {}
    now = metrics.now
    while True:
        metrics.disks = await to_thread.run_sync(_disks, configuration)
        metrics.certificates, faults = await to_thread.run_sync(_certificates, list(certificates))
        for file, fault in faults.items():
            if unreadable.get(file) != fault:
                _log.warning("%s: no certificate can be read: %s", file, fault)
        unreadable = faults
        try:
            await store.check()
            metrics.store_works = True
            if is_postgresql(configuration.store.url):
                from auditord.database.postgres.address import address_of  # noqa: PLC0415 psycopg, only if configured
                from auditord.store.postgres.administration import clock_offset  # noqa: PLC0415 the same

                metrics.clock_offset = await clock_offset(address_of(configuration.store), now)
            if sites_seen is None or now() - sites_seen >= _SITES_EVERY:
                metrics.sites, sites_seen = await site_activity(store, now()), now()
            health.gaps = {each.site: each.last for each in metrics.sites if each.is_gap(now())}
        except StoreUnavailable:  # the senders report it
            metrics.store_works = False
        await anyio.sleep(_HOST_SECONDS)


def _disks(configuration: Configuration) -> Mapping[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for folder in sorted(configuration.data_folders):
        with suppress(OSError):  # the store's own fault says more
            usage = shutil.disk_usage(folder)
            found[str(folder)] = (usage.free, usage.total)
    return found


def _certificates(files: Sequence[Path]) -> tuple[Mapping[str, datetime], Mapping[str, str]]:
    """Return the end of each file's certificate and, for files without a readable one, the reason."""
    ends, faults = dict[str, datetime](), dict[str, str]()
    for file in files:
        try:
            ends[str(file)] = certificate_end(file)
        except (OSError, ValueError) as error:
            faults[str(file)] = str(error)
    return ends, faults


_BEAT_SECONDS: Final = 30.0
_LAST_NOTE_SECONDS: Final = 2.0
"""The seconds that a stopping daemon waits for its database."""


class Heartbeat(msgspec.Struct, frozen=True):
    """Stores the state of this daemon in the record store, for `auditord status --all`."""

    store: RecordStore
    spool: Spool
    pairing: Pairing
    now: Callable[[], datetime]
    started: datetime

    async def beat(self) -> NoReturn:
        """Regularly store the state. An unavailable store is reported elsewhere.

        Raises:
            StoreMismatch: the store came back as an older copy, or is another one.
        """
        while True:
            with suppress(StoreUnavailable):
                await self.pairing.follow_writes()
                await self._note(ended=False)
            await anyio.sleep(_BEAT_SECONDS)

    async def end(self) -> None:
        """Store that the daemon has stopped in order."""
        with suppress(StoreUnavailable), anyio.move_on_after(_LAST_NOTE_SECONDS):
            await self._note(ended=True)

    async def _note(self, *, ended: bool) -> None:
        statistics, generation = await self.spool.statistics(), self.spool.generation
        oldest = [queue.oldest for queue in statistics.queues.values() if queue.oldest is not None]
        state = DaemonState(
            spool_id=generation.spool_id,
            host=socket.gethostname(),
            process=os.getpid(),
            version=__version__,
            state_dir=str(self.spool.state_dir),
            started_at=self.started,
            queued=sum(queue.entries for queue in statistics.queues.values()),
            oldest=min(oldest, default=None),
            quarantined=sum(statistics.quarantined.values()),
            ended=ended,
        )
        await self.store.note_daemon(state, self.now())
