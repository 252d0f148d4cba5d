"""Regular looks at what surrounds the daemon: store, disks, certificates, clocks, sites. ``/metrics`` asks nobody."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NoReturn

import anyio
from anyio import to_thread
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from auditord.actions import Section
from auditord.audit.silence import SiteActivity, site_activity
from auditord.config.certificates import certificate_files
from auditord.config.model import Configuration, StoreSection
from auditord.config.store_url import is_postgresql, sqlite_path
from auditord.errors import StoreUnavailable
from auditord.health import Health
from auditord.store import RecordStore
from auditord.tasks.clock import latest_tick
from auditord.tasks.instances import Instances, when
from auditord_hookspecs import CollectorKind
from auditord_hookspecs.checks import certificate_end

_INTERVAL: Final = 30.0
"""Seconds between two looks."""

_SITES_EVERY: Final = timedelta(minutes=30)
"""The sums of ninety days are no small question."""

SECTIONS: Final[tuple[Section, Section]] = ("collectors", "plugins")

_log: Final = logging.getLogger(__name__)


def run_intervals(instances: Instances) -> Mapping[tuple[str, str, str], timedelta]:
    """The time between two runs of each enabled instance, by section, name and kind; watches have none."""
    found: dict[tuple[str, str, str], timedelta] = {}
    for section in SECTIONS:
        for name, (kind, config) in instances.enabled(section).items():
            if not (isinstance(kind, CollectorKind) and kind.continuous):
                found[section, name, kind.name] = _interval(when(config, kind.interval), instances.now())
    return found


def _interval(times: timedelta | str, now: datetime) -> timedelta:
    if isinstance(times, timedelta):
        return times
    last = latest_tick(times, now) or now
    return last - (latest_tick(times, last - timedelta(microseconds=1)) or last)


class HostMetrics(Collector):
    """The gauges of the last looks.

    Args:
        intervals: how often instances are to run, by section, name and kind.
        health: knows when instances have last run well, also before a restart.
        now: the present instant; silences grow between two looks.
    """

    def __init__(
        self, intervals: Mapping[tuple[str, str, str], timedelta], health: Health, now: Callable[[], datetime]
    ) -> None:
        self._intervals = intervals
        self._health = health
        self._now = now
        self.store_works: bool | None = None
        self.disks: Mapping[str, tuple[int, int]] = {}
        self.certificates: Mapping[str, datetime] = {}
        self.clock_offset: timedelta | None = None
        self.sites: Sequence[SiteActivity] = ()

    def collect(self) -> Iterator[Metric]:
        """The families."""
        yield self._run_intervals()
        yield self._last_successes()
        yield from self._disks()
        ends = GaugeMetricFamily(
            "auditord_certificate_expiry_timestamp_seconds",
            "When the first certificate in a file ends.",
            labels=["file"],
        )
        for file, end in self.certificates.items():
            ends.add_metric((file,), end.timestamp())
        yield ends
        if self.store_works is not None:
            yield GaugeMetricFamily("auditord_store_up", "Whether the record store could write.", int(self.store_works))
        if self.clock_offset is not None:
            yield GaugeMetricFamily(
                "auditord_clock_offset_seconds",
                "The database server's clock less this host's.",
                self.clock_offset.total_seconds(),
            )
        yield from self._sites()

    def _run_intervals(self) -> Metric:
        labels = ("section", "task", "kind")
        family = GaugeMetricFamily("auditord_run_interval_seconds", "How often an instance is to run.", labels=labels)
        for key, interval in self._intervals.items():
            family.add_metric(key, interval.total_seconds())
        return family

    def _last_successes(self) -> Metric:
        family = GaugeMetricFamily(
            "auditord_last_success_timestamp_seconds", "When a run last went well.", labels=("task", "kind")
        )
        for task in self._health.tasks():
            if task.section in SECTIONS and task.last_success is not None:
                family.add_metric((task.task, task.kind), task.last_success.timestamp())
        return family

    def _disks(self) -> Iterator[Metric]:
        free = GaugeMetricFamily(
            "auditord_disk_free_bytes", "Free space where the daemon keeps files.", labels=["path"]
        )
        size = GaugeMetricFamily("auditord_disk_size_bytes", "Size of that file system.", labels=["path"])
        for path, (room, total) in self.disks.items():
            free.add_metric((path,), room)
            size.add_metric((path,), total)
        yield free
        yield size

    def _sites(self) -> Iterator[Metric]:
        silence = GaugeMetricFamily(
            "auditord_site_silence_seconds", "Since the end of a site's last record.", labels=["site"]
        )
        usual = GaugeMetricFamily(
            "auditord_site_usual_interval_seconds", "Mean time between a site's days with records.", labels=["site"]
        )
        for site in self.sites:
            silence.add_metric((site.site,), (self._now() - site.last).total_seconds())
            if site.usual is not None:
                usual.add_metric((site.site,), site.usual.total_seconds())
        yield silence
        yield usual


async def _clock_offset(store: StoreSection, now: Callable[[], datetime]) -> timedelta:
    from auditord.database.postgres.address import address_of  # noqa: PLC0415 psycopg, where it is configured
    from auditord.store.postgres.administration import clock_offset  # noqa: PLC0415 the same

    return await clock_offset(address_of(store), now)


async def look_at_host(
    configuration: Configuration,
    store: RecordStore,
    metrics: HostMetrics,
    health: Health,
    now: Callable[[], datetime],
) -> NoReturn:
    """Keep the metrics fresh, and what health says of sites."""
    sites_seen: datetime | None = None
    while True:
        metrics.disks = await to_thread.run_sync(_disks, configuration)
        metrics.certificates = await to_thread.run_sync(_certificates, certificate_files(configuration))
        try:
            await store.check()
            metrics.store_works = True
            if is_postgresql(configuration.store.url):
                metrics.clock_offset = await _clock_offset(configuration.store, now)
            if sites_seen is None or now() - sites_seen >= _SITES_EVERY:
                metrics.sites, sites_seen = await site_activity(store, now()), now()
            health.gaps = {each.site: each.last for each in metrics.sites if each.is_gap(now())}
        except StoreUnavailable:  # the senders say so
            metrics.store_works = False
        await anyio.sleep(_INTERVAL)


def _disks(configuration: Configuration) -> Mapping[str, tuple[int, int]]:
    folders = {configuration.state_dir}
    if not is_postgresql(configuration.store.url):
        folders.add(sqlite_path(configuration.store.url).parent)
    found: dict[str, tuple[int, int]] = {}
    for folder in sorted(folders):
        usage = shutil.disk_usage(folder)
        found[str(folder)] = (usage.free, usage.total)
    return found


def _certificates(files: Sequence[Path]) -> Mapping[str, datetime]:
    ends: dict[str, datetime] = {}
    for file in files:
        try:
            ends[str(file)] = certificate_end(file)
        except (OSError, ValueError) as error:
            _log.warning("%s: no certificate can be read: %s", file, error)
    return ends
